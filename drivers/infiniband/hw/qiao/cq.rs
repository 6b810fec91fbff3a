// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use crate::{
    device::Qiao,
    doorbell::Take,
    object::{
        self,
        Object, //
    },
    page_list::PageTables,
    ucontext::UserSlot, //
};
use kernel::prelude::*;
use qiao_abi::{
    qiao_create_cq_req,
    qiao_create_cq_resp,
    QIAO_CQ_RECORD_SIZE, //
};
use qiao_hw::{
    caps::Caps,
    cmd::{
        CreateCq,
        DestroyCq, //
    },
    cqe::Cqe,
    ring::RingSize, //
};
use rdma::{
    sync::Id,
    CqHandle,
    CqInitAttr,
    Cx,
    Lent,
    Ucontext,
    Udata,
    Umem, //
};

/// A completion queue of user space.
pub(crate) struct Cq {
    size: RingSize,
    queue: Lent<Queue>,
}

/// What the device has for a completion queue.
struct Queue {
    id: Id<CqHandle>,
    slot: UserSlot,
    _umem: Umem,
}

/// Alignment of the buffer of a queue, in bytes.
const BUFFER_ALIGN: u64 = 64;

/// Checks the address of a queue's buffer.
pub(crate) fn check_buffer(addr: u64) -> Result {
    if addr % BUFFER_ALIGN != 0 {
        return Err(EINVAL);
    }
    Ok(())
}

impl Cq {
    /// Returns the number of the queue.
    pub(crate) fn cqn(&self) -> u32 {
        self.queue.id.get()
    }

    /// Checks the request of the library, all of which is user input.
    fn check(caps: &Caps, attr: &CqInitAttr, req: &qiao_create_cq_req) -> Result<RingSize> {
        if req.comp_mask != 0 || req.reserved.iter().any(|&b| b != 0) || attr.flags != 0 {
            return Err(EOPNOTSUPP);
        }
        if req.log_entries > caps.log_max_cqe {
            return Err(EINVAL);
        }
        let size = RingSize::from_log(req.log_entries).ok_or(EINVAL)?;
        if attr.entries > size.entries() {
            return Err(EINVAL);
        }
        Ok(size)
    }

    /// Returns the bytes of the buffer: the entries, and the doorbell record.
    fn buffer_size(size: RingSize) -> Result<usize> {
        let entries = usize::try_from(size.entries())?;
        entries
            .checked_mul(size_of::<Cqe>())
            .and_then(|n| n.checked_add(usize::try_from(QIAO_CQ_RECORD_SIZE).ok()?))
            .ok_or(EINVAL)
    }

    fn new(
        cx: &Cx<'_, Qiao>,
        attr: &CqInitAttr,
        handle: &CqHandle,
        ctx: &Ucontext<Qiao>,
        udata: &mut Udata,
    ) -> Result<Self> {
        let hca = cx.data().hca();
        let req: qiao_create_cq_req = udata.read()?;
        let size = Self::check(hca.caps(), attr, &req)?;
        check_buffer(req.buf_addr)?;
        let eqn = hca.completion_eqn(attr.comp_vector).ok_or(EINVAL)?;

        let id = hca.cqs().reserve()?;
        let slot = ctx.take_slots(hca, Take::One)?;
        let mut umem =
            Umem::pin_cq_buffer(cx.device(), udata, req.buf_addr, Self::buffer_size(size)?)?;
        check_buffer(umem.addr())?;
        let addr = umem.addr();
        let tables = PageTables::new(
            hca.pdev().as_ref(),
            &umem.blocks(hca.caps().page_sizes.get(), addr)?,
        )?;

        let mut cmd = CreateCq::zeroed();
        cmd.cqn.set(id.get());
        cmd.eqn.set(eqn);
        cmd.slot.set(slot.number());
        cmd.log_entries = size.log();
        cmd.buffer = tables.list();
        let queue = Queue {
            id,
            slot,
            _umem: umem,
        };
        let queue = object::create(hca, &cmd, queue, tables, |queue| {
            queue.id.publish(handle.clone())?;
            udata.respond(&qiao_create_cq_resp {
                comp_mask: 0,
                db_mmap_offset: *queue.slot.attachment(),
                db_offset: queue.slot.offset(),
                cqn: queue.id.get(),
            })
        })?;
        Ok(Self { size, queue })
    }
}

impl Object for Queue {
    type Destroy = DestroyCq;

    fn destroy_command(&self) -> DestroyCq {
        let mut cmd = DestroyCq::zeroed();
        cmd.cqn.set(self.id.get());
        cmd
    }

    fn unpublish(&self) {
        self.id.unpublish();
    }
}

impl rdma::CqOps for Cq {
    type Driver = Qiao;

    fn create_user(
        cx: &Cx<'_, Qiao>,
        attr: &CqInitAttr,
        handle: &CqHandle,
        ctx: &Ucontext<Qiao>,
        udata: &mut Udata,
    ) -> impl PinInit<Self, Error> {
        Self::new(cx, attr, handle, ctx, udata)
    }

    fn entries(&self) -> u32 {
        self.size.entries()
    }

    fn destroy(cq: &rdma::Cq<Qiao>, cx: &Cx<'_, Qiao>) {
        object::destroy(cx.data().hca(), &cq.queue);
    }
}
