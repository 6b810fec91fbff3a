// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

mod kernel;
mod lost;

pub(crate) use self::{
    kernel::KernelCq,
    lost::KernelCqs, //
};

use crate::{
    device::Qiao,
    doorbell::Take,
    hca::Hca,
    object::{
        self,
        Object, //
    },
    page_list::PageTables,
    ucontext::UserSlot, //
};
use ::kernel::{
    new_mutex,
    prelude::*,
    sync::{
        Arc,
        Mutex, //
    }, //
};
use qiao_abi::{
    qiao_create_cq_req,
    qiao_create_cq_resp,
    qiao_resize_cq_req,
    qiao_resize_cq_resp,
    QIAO_CQ_RECORD_SIZE, //
};
use qiao_hw::{
    caps::feature,
    cmd::{
        CreateCq,
        DestroyCq,
        ResizeCq, //
    },
    queue::{
        CqLayout,
        CQ_RECORD_SIZE, //
    }, //
};
use rdma::{
    sync::Id,
    Access,
    CqHandle,
    CqInitAttr,
    Cx,
    Lent,
    Notify,
    Ucontext,
    Udata,
    Umem,
    Wcs, //
};

// The library allocates the buffer.
static_assert!(QIAO_CQ_RECORD_SIZE as usize == CQ_RECORD_SIZE);

/// A completion queue.
pub(crate) struct Cq {
    /// When it was created.
    layout: CqLayout,
    queue: Lent<Queue>,
}

/// What the device has for a completion queue.
struct Queue {
    id: Id<CqHandle>,
    owner: Owner,
}

/// What the device has of the owner of a completion queue.
enum Owner {
    User {
        _slot: UserSlot,
        /// What the device writes to. Held while the queue is resized, so that the device and this
        /// agree whatever is resized at the same time.
        memory: Pin<KBox<Mutex<Umem>>>,
    },
    Kernel(Arc<KernelCq>),
}

impl Cq {
    /// Returns the number of the queue.
    pub(crate) fn cqn(&self) -> u32 {
        self.queue.id.get()
    }

    /// Returns the queue as one of the kernel, if it is.
    pub(crate) fn kernel(&self) -> Option<&Arc<KernelCq>> {
        match &self.queue.owner {
            Owner::User { .. } => None,
            Owner::Kernel(cq) => Some(cq),
        }
    }

    fn new_user(
        cx: &Cx<'_, Qiao>,
        attr: &CqInitAttr,
        handle: &CqHandle,
        ctx: &Ucontext<Qiao>,
        udata: &mut Udata,
    ) -> Result<Self> {
        let hca = cx.data().hca();
        let req: qiao_create_cq_req = udata.read()?;
        if req.comp_mask != 0 || req.reserved.iter().any(|&b| b != 0) {
            return Err(EOPNOTSUPP);
        }
        let layout =
            CqLayout::new(&hca.queue_limits(), req.log_entries, attr.entries).ok_or(EINVAL)?;
        let mut cmd = command(hca, attr, &layout)?;

        let id = hca.cqs().reserve()?;
        let slot = ctx.take_slots(hca, Take::One)?;
        let mut umem = Umem::pin_cq_buffer(cx.device(), udata, req.buf_addr, layout.size())?;
        let tables = PageTables::of_buffer(hca, &mut umem)?;

        cmd.cqn.set(id.get());
        cmd.slot.set(slot.number());
        cmd.buffer = tables.list();
        let resp = qiao_create_cq_resp {
            comp_mask: 0,
            db_mmap_offset: *slot.attachment(),
            db_offset: slot.offset(),
            cqn: id.get(),
        };
        let owner = Owner::User {
            _slot: slot,
            memory: KBox::pin_init(new_mutex!(umem), GFP_KERNEL)?,
        };
        let queue = object::create(hca, &cmd, Queue { id, owner }, tables, |queue| {
            queue.id.publish(handle.clone())?;
            udata.respond(&resp)
        })?;
        Ok(Self { layout, queue })
    }

    fn new_kernel(cx: &Cx<'_, Qiao>, attr: &CqInitAttr, handle: &CqHandle) -> Result<Self> {
        let hca = cx.data().hca();
        let layout = CqLayout::for_entries(&hca.queue_limits(), attr.entries).ok_or(EINVAL)?;
        let mut cmd = command(hca, attr, &layout)?;

        let id = hca.cqs().reserve()?;
        let cq = KernelCq::new(hca, id.get(), layout, handle)?;
        let entry = lost::Entry::new(id.get(), cq.clone(), GFP_KERNEL)?;
        let (slot, memory) = cq.place();
        let tables = PageTables::of_memory(hca.pdev().as_ref(), memory)?;
        cmd.cqn.set(id.get());
        cmd.slot.set(slot);
        cmd.buffer = tables.list();
        let owner = Owner::Kernel(cq);
        let queue = object::create(hca, &cmd, Queue { id, owner }, tables, |queue| {
            queue.id.publish(handle.clone())
        })?;
        hca.kernel_cqs().insert(entry);
        Ok(Self { layout, queue })
    }

    fn change_buffer(&self, cx: &Cx<'_, Qiao>, entries: u32, udata: &mut Udata) -> Result<u32> {
        let hca = cx.data().hca();
        let Owner::User { memory, .. } = &self.queue.owner else {
            return Err(EINVAL);
        };
        if hca.caps().features.get() & feature::CQ_RESIZE == 0 {
            return Err(EOPNOTSUPP);
        }
        let req: qiao_resize_cq_req = udata.read()?;
        if req.comp_mask != 0 || req.reserved.iter().any(|&b| b != 0) {
            return Err(EOPNOTSUPP);
        }
        let layout = CqLayout::new(&hca.queue_limits(), req.log_entries, entries).ok_or(EINVAL)?;
        let mut umem = Umem::pin(
            cx.device(),
            req.buf_addr,
            layout.size(),
            Access::LOCAL_WRITE,
        )?;
        let tables = PageTables::of_buffer(hca, &mut umem)?;

        let mut cmd = ResizeCq::zeroed();
        cmd.cqn.set(self.cqn());
        cmd.log_entries = layout.entries().log();
        cmd.buffer = tables.list();
        let mut memory = memory.lock();
        // If this fails then the device does not have the new buffer: it said so, or it is fenced.
        let base = hca.cmd().exec(&cmd)?.base.get();
        // The device has left the old one.
        *memory = umem;
        udata.respond(&qiao_resize_cq_resp { base, reserved: 0 })?;
        Ok(layout.entries().entries())
    }
}

/// Makes the command for a queue, all but what its owner has.
fn command(hca: &Hca<'_>, attr: &CqInitAttr, layout: &CqLayout) -> Result<CreateCq> {
    if attr.flags != 0 {
        return Err(EOPNOTSUPP);
    }
    let mut cmd = CreateCq::zeroed();
    cmd.eqn
        .set(hca.completion_eqn(attr.comp_vector).ok_or(EINVAL)?);
    cmd.log_entries = layout.entries().log();
    Ok(cmd)
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
        Self::new_user(cx, attr, handle, ctx, udata)
    }

    fn create_kernel(
        cx: &Cx<'_, Qiao>,
        attr: &CqInitAttr,
        handle: &CqHandle,
    ) -> impl PinInit<Self, Error> {
        Self::new_kernel(cx, attr, handle)
    }

    fn poll(cq: &rdma::Cq<Qiao>, cx: &Cx<'_, Qiao>, wcs: &mut Wcs<'_>) {
        if let Some(cq) = cq.kernel() {
            cq.poll(cx.data().hca(), wcs);
        }
    }

    fn notify(cq: &rdma::Cq<Qiao>, cx: &Cx<'_, Qiao>, what: Notify) -> bool {
        cq.kernel()
            .is_some_and(|cq| cq.notify(cx.data().hca(), what))
    }

    fn entries(&self) -> u32 {
        self.layout.entries().entries()
    }

    fn resize(
        cq: &rdma::Cq<Qiao>,
        cx: &Cx<'_, Qiao>,
        entries: u32,
        udata: &mut Udata,
    ) -> Result<u32> {
        cq.change_buffer(cx, entries, udata)
    }

    fn destroy(cq: &rdma::Cq<Qiao>, cx: &Cx<'_, Qiao>) {
        let hca = cx.data().hca();
        hca.kernel_cqs().remove(cq.cqn());
        object::destroy(hca, &cq.queue);
    }
}
