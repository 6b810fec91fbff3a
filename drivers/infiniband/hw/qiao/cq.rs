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
    cmd::{
        CreateCq,
        DestroyCq, //
    },
    queue::{
        CqLayout,
        BUFFER_ALIGN,
        CQ_RECORD_SIZE, //
    }, //
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

// The library allocates the buffer.
static_assert!(QIAO_CQ_RECORD_SIZE as usize == CQ_RECORD_SIZE);

/// A completion queue of user space.
pub(crate) struct Cq {
    layout: CqLayout,
    queue: Lent<Queue>,
}

/// What the device has for a completion queue.
struct Queue {
    id: Id<CqHandle>,
    slot: UserSlot,
    _umem: Umem,
}

impl Cq {
    /// Returns the number of the queue.
    pub(crate) fn cqn(&self) -> u32 {
        self.queue.id.get()
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
        if req.comp_mask != 0 || req.reserved.iter().any(|&b| b != 0) || attr.flags != 0 {
            return Err(EOPNOTSUPP);
        }
        let layout =
            CqLayout::new(&hca.queue_limits(), req.log_entries, attr.entries).ok_or(EINVAL)?;
        let eqn = hca.completion_eqn(attr.comp_vector).ok_or(EINVAL)?;

        let id = hca.cqs().reserve()?;
        let slot = ctx.take_slots(hca, Take::One)?;
        let mut umem = Umem::pin_cq_buffer(cx.device(), udata, req.buf_addr, layout.size())?;
        let addr = umem.addr();
        if addr % BUFFER_ALIGN != 0 {
            return Err(EINVAL);
        }
        let tables = PageTables::new(
            hca.pdev().as_ref(),
            &umem.blocks(hca.caps().page_sizes.get(), addr)?,
        )?;

        let mut cmd = CreateCq::zeroed();
        cmd.cqn.set(id.get());
        cmd.eqn.set(eqn);
        cmd.slot.set(slot.number());
        cmd.log_entries = layout.entries().log();
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
        Ok(Self { layout, queue })
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
        self.layout.entries().entries()
    }

    fn destroy(cq: &rdma::Cq<Qiao>, cx: &Cx<'_, Qiao>) {
        object::destroy(cx.data().hca(), &cq.queue);
    }
}
