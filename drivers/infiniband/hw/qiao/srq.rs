// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

mod kernel;

pub(crate) use self::kernel::KernelSrq;

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
use ::kernel::{
    prelude::*,
    sync::Arc, //
};
use qiao_abi::{
    qiao_create_srq_req,
    qiao_create_srq_resp, //
};
use qiao_hw::{
    cmd::{
        srq_flag,
        CreateSrq,
        DestroySrq,
        ModifySrq,
        QuerySrq, //
    },
    queue::{
        RecvRing,
        SrqLayout, //
    }, //
};
use rdma::{
    sync::Id,
    Cx,
    Lent,
    RecvWrs,
    SrqAttr,
    SrqHandle,
    Ucontext,
    Udata,
    Umem, //
};

/// A shared receive queue.
pub(crate) struct Srq {
    layout: SrqLayout,
    max_sge: u32,
    queue: Lent<Queue>,
}

/// What the device has for a shared receive queue.
struct Queue {
    id: Id<SrqHandle>,
    owner: Owner,
}

/// What the device has of the owner of a shared receive queue.
enum Owner {
    User { _slot: UserSlot, _umem: Umem },
    Kernel(Arc<KernelSrq>),
}

impl Object for Queue {
    type Destroy = DestroySrq;

    fn destroy_command(&self) -> DestroySrq {
        let mut cmd = DestroySrq::zeroed();
        cmd.srqn.set(self.id.get());
        cmd
    }

    fn unpublish(&self) {
        self.id.unpublish();
    }
}

/// Lays out a queue by `requests`, which gets what is asked for.
fn layout(
    attr: &SrqAttr,
    requests: impl FnOnce(u32, u32) -> Option<RecvRing>,
) -> Result<SrqLayout> {
    requests(attr.max_wr, attr.max_sge)
        .filter(|_| attr.max_wr > 0)
        .and_then(SrqLayout::of)
        .ok_or(EINVAL)
}

/// Makes the command for a queue, all but what its owner has. It starts without a limit: the verbs
/// manual calls that irrelevant here, and its event would come before the queue is known.
fn command(pdn: u32, layout: &SrqLayout) -> CreateSrq {
    let mut cmd = CreateSrq::zeroed();
    cmd.pdn.set(pdn);
    layout.fill(&mut cmd);
    cmd
}

impl Srq {
    /// Returns the number of the queue.
    pub(crate) fn srqn(&self) -> u32 {
        self.queue.id.get()
    }

    /// Returns the queue as one of the kernel, if it is.
    pub(crate) fn kernel(&self) -> Option<&Arc<KernelSrq>> {
        match &self.queue.owner {
            Owner::User { .. } => None,
            Owner::Kernel(srq) => Some(srq),
        }
    }

    fn new_user(
        cx: &Cx<'_, Qiao>,
        pdn: u32,
        attr: &SrqAttr,
        handle: &SrqHandle,
        ctx: &Ucontext<Qiao>,
        udata: &mut Udata,
    ) -> Result<Self> {
        let hca = cx.data().hca();
        let req: qiao_create_srq_req = udata.read()?;
        if req.comp_mask != 0 || req.reserved.iter().any(|&b| b != 0) {
            return Err(EOPNOTSUPP);
        }
        let logs = (req.log_wqes, req.log_stride);
        let limits = hca.queue_limits();
        let layout = layout(attr, |max_wr, max_sge| {
            RecvRing::new(&limits, logs, max_wr, max_sge)
        })?;
        let mut cmd = command(pdn, &layout);

        let id = hca.srqs().reserve()?;
        let slot = ctx.take_slots(hca, Take::One)?;
        let mut umem = Umem::pin_srq_buffer(cx.device(), udata, req.buf_addr, layout.size())?;
        let tables = PageTables::of_buffer(hca, &mut umem)?;

        cmd.srqn.set(id.get());
        cmd.slot.set(slot.number());
        cmd.buffer = tables.list();
        let resp = qiao_create_srq_resp {
            comp_mask: 0,
            db_mmap_offset: *slot.attachment(),
            db_offset: slot.offset(),
            srqn: id.get(),
        };
        let owner = Owner::User {
            _slot: slot,
            _umem: umem,
        };
        let queue = object::create(hca, &cmd, Queue { id, owner }, tables, |queue| {
            queue.id.publish(handle.clone())?;
            udata.respond(&resp)
        })?;
        Ok(Self {
            layout,
            max_sge: attr.max_sge,
            queue,
        })
    }

    fn new_kernel(cx: &Cx<'_, Qiao>, pdn: u32, attr: &SrqAttr, handle: &SrqHandle) -> Result<Self> {
        let hca = cx.data().hca();
        let limits = hca.queue_limits();
        let layout = layout(attr, |max_wr, max_sge| {
            RecvRing::for_needs(&limits, max_wr, max_sge)
        })?;
        let mut cmd = command(pdn, &layout);

        let id = hca.srqs().reserve()?;
        let srq = KernelSrq::new(hca, &layout, attr.max_sge)?;
        let (slot, memory) = srq.place();
        let tables = PageTables::of_memory(hca.pdev().as_ref(), memory)?;
        cmd.srqn.set(id.get());
        cmd.slot.set(slot);
        cmd.flags.set(srq_flag::KERNEL);
        cmd.buffer = tables.list();
        let owner = Owner::Kernel(srq);
        let queue = object::create(hca, &cmd, Queue { id, owner }, tables, |queue| {
            queue.id.publish(handle.clone())
        })?;
        Ok(Self {
            layout,
            max_sge: attr.max_sge,
            queue,
        })
    }
}

impl rdma::SrqOps for Srq {
    type Driver = Qiao;

    fn create_user(
        cx: &Cx<'_, Qiao>,
        pd: &rdma::Pd<Qiao>,
        attr: &SrqAttr,
        handle: &SrqHandle,
        ctx: &Ucontext<Qiao>,
        udata: &mut Udata,
    ) -> impl PinInit<Self, Error> {
        Self::new_user(cx, pd.pdn(), attr, handle, ctx, udata)
    }

    fn create_kernel(
        cx: &Cx<'_, Qiao>,
        pd: &rdma::Pd<Qiao>,
        attr: &SrqAttr,
        handle: &SrqHandle,
    ) -> impl PinInit<Self, Error> {
        Self::new_kernel(cx, pd.pdn(), attr, handle)
    }

    fn post_recv(srq: &rdma::Srq<Qiao>, cx: &Cx<'_, Qiao>, wrs: &mut RecvWrs<'_>) -> Result {
        let kernel = srq.kernel().ok_or(EINVAL)?;
        kernel.post(cx.data().hca(), wrs)
    }

    fn size(&self) -> (u32, u32) {
        (self.layout.requests().size().entries(), self.max_sge)
    }

    fn set_limit(srq: &rdma::Srq<Qiao>, cx: &Cx<'_, Qiao>, limit: u32) -> Result {
        if limit > srq.layout.requests().size().entries() {
            return Err(EINVAL);
        }
        let mut cmd = ModifySrq::zeroed();
        cmd.srqn.set(srq.srqn());
        cmd.limit.set(limit);
        cx.data().hca().cmd().exec(&cmd).map(drop)
    }

    fn limit(srq: &rdma::Srq<Qiao>, cx: &Cx<'_, Qiao>) -> Result<u32> {
        let mut cmd = QuerySrq::zeroed();
        cmd.srqn.set(srq.srqn());
        Ok(cx.data().hca().cmd().exec(&cmd)?.limit.get())
    }

    fn destroy(srq: &rdma::Srq<Qiao>, cx: &Cx<'_, Qiao>) {
        object::destroy(cx.data().hca(), &srq.queue);
    }
}
