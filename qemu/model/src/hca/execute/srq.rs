// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the commands of shared receive queues do.

use super::{free_id, require, Hca, NoReply, Refused, SlotOwner, Status};
use crate::hca::srq::Srq;
use qiao_hw::cmd::{srq_flag, CreateSrq, DestroySrq, ModifySrq, QuerySrq, QuerySrqReply};
use qiao_hw::queue::{Limits, RecvRing, SrqLayout, BUFFER_ALIGN};

impl Hca {
    pub(super) fn create_srq(&mut self, cmd: CreateSrq) -> Result<NoReply, Refused> {
        let (caps, srqn, pdn) = (self.caps(), cmd.srqn.get(), cmd.pdn.get());
        free_id(srqn, caps.log_max_srq, self.core.srqs.contains_key(&srqn))?;
        // In `CreateQp` 0 is none.
        require(srqn != 0, Status::BadOperand)?;
        self.use_pd(pdn)?;
        let flags = cmd.flags.get();
        require(flags & !srq_flag::KERNEL == 0, Status::BadOperand)?;
        self.free_slots(&[cmd.slot.get()])?;
        let logs = (cmd.log_wqes, cmd.log_stride);
        let layout = RecvRing::new(&Limits::from(&caps), logs, 0, 0)
            .and_then(SrqLayout::of)
            .ok_or(Status::BadOperand)?;
        require(
            cmd.order_offset.get() as usize == layout.order_offset(0),
            Status::BadOperand,
        )?;
        let entries = layout.requests().size().entries();
        require(cmd.limit.get() <= entries, Status::BadOperand)?;
        let buffer = self.walk(&cmd.buffer, layout.size() as u64, BUFFER_ALIGN)?;
        self.core.ring_pages += buffer.pages();
        self.slots.bind(cmd.slot.get(), SlotOwner::Srq(srqn));
        let owner = (pdn, flags & srq_flag::KERNEL != 0);
        let srq = Srq::new(
            cmd.slot.get(),
            owner,
            layout,
            buffer,
            caps.max_sge.get().into(),
        );
        self.core.srqs.insert(srqn, srq);
        self.use_pd(pdn)?.users += 1;
        self.core.set_srq_limit(srqn, cmd.limit.get());
        Ok(NoReply {})
    }

    pub(super) fn destroy_srq(&mut self, cmd: DestroySrq) -> Result<NoReply, Refused> {
        let srqn = cmd.srqn.get();
        let srq = self.core.srqs.get(&srqn).ok_or(Status::NoSuchObject)?;
        require(srq.users == 0, Status::Busy)?;
        let pdn = srq.pdn;
        self.slots.unbind(srq.slot);
        self.core.ring_pages -= srq.pages();
        self.core.srqs.remove(&srqn);
        self.core.forget_srq_events(srqn);
        self.use_pd(pdn)?.users -= 1;
        Ok(NoReply {})
    }

    pub(super) fn modify_srq(&mut self, cmd: ModifySrq) -> Result<NoReply, Refused> {
        let (srqn, limit) = (cmd.srqn.get(), cmd.limit.get());
        let srq = self.core.srqs.get(&srqn).ok_or(Status::NoSuchObject)?;
        require(!srq.failed, Status::BadState)?;
        require(limit <= srq.entries(), Status::BadOperand)?;
        self.core.set_srq_limit(srqn, limit);
        Ok(NoReply {})
    }

    pub(super) fn query_srq(&mut self, cmd: QuerySrq) -> Result<QuerySrqReply, Refused> {
        let found = self.core.srqs.get(&cmd.srqn.get());
        let mut reply = QuerySrqReply::zeroed();
        reply.limit.set(found.ok_or(Status::NoSuchObject)?.limit);
        Ok(reply)
    }
}
