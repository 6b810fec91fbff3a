// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

mod kernel;
mod recv;
mod send;

pub(crate) use self::kernel::WorkQueues;

use crate::{
    ah::to_path,
    cq::KernelCq,
    device::Qiao,
    doorbell::Take,
    hca::Hca,
    mr::peer_rights,
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
    qiao_create_qp_req,
    qiao_create_qp_resp, //
};
use qiao_hw::{
    caps::feature,
    cmd::{
        qp_flag,
        CreateQp,
        DestroyQp,
        ModifyQp,
        QueryQp, //
    },
    doorbell::NO_SLOT,
    qp::{
        self,
        attr, //
    },
    queue::{
        QpLayout,
        QpNeeds,
        QpRings, //
    }, //
};
use rdma::{
    sync::Id,
    Cx,
    Lent,
    QpAttr,
    QpCap,
    QpHandle,
    QpInitAttr,
    QpMask,
    QpModify,
    QpQuery,
    QpState,
    QpType,
    RecvWrs,
    SendWrs,
    Ucontext,
    Udata,
    Umem, //
};

/// A queue pair.
#[pin_data]
pub(crate) struct Qp {
    queues: Lent<Queues>,
    ty: QpType,
    cap: QpCap,
    signal_all: bool,
    /// What was set last. The device may have gone to an error state on its own. Held while the
    /// attributes are changed, so that changes meet each other's results.
    #[pin]
    attr: Mutex<QpAttr>,
}

/// What the device has for a queue pair.
struct Queues {
    id: Id<QpHandle>,
    owner: Owner,
}

/// What the device has of the owner of a queue pair.
enum Owner {
    User { _slots: UserSlot, _umem: Umem },
    Kernel(Kernel),
}

/// A queue pair of the kernel.
struct Kernel {
    queues: Arc<WorkQueues>,
    send_cq: Arc<KernelCq>,
    recv_cq: Arc<KernelCq>,
}

impl Queues {
    fn qpn(&self) -> u32 {
        self.id.get()
    }

    fn kernel(&self) -> Option<&Kernel> {
        match &self.owner {
            Owner::User { .. } => None,
            Owner::Kernel(kernel) => Some(kernel),
        }
    }

    /// Forgets completions that were not polled, when the device writes no more.
    fn detach(&self) {
        if let Some(kernel) = self.kernel() {
            kernel.send_cq.detach(self.qpn());
            kernel.recv_cq.detach(self.qpn());
        }
    }
}

impl Kernel {
    fn attach(&self) -> Result {
        self.queues.attach(&self.send_cq, &self.recv_cq)
    }
}

impl Object for Queues {
    type Destroy = DestroyQp;

    fn destroy_command(&self) -> DestroyQp {
        let mut cmd = DestroyQp::zeroed();
        cmd.qpn.set(self.qpn());
        cmd
    }

    fn unpublish(&self) {
        self.id.unpublish();
    }
}

/// Returns what the application asks for.
fn needs(init: &QpInitAttr<'_, Qiao>) -> QpNeeds {
    let (cap, shared) = (init.cap(), init.srq().is_some());
    QpNeeds {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
        shared,
    }
}

/// Returns how many doorbell slots are needed: one for each queue.
fn slots_of(init: &QpInitAttr<'_, Qiao>) -> Take {
    match init.srq() {
        Some(_) => Take::One,
        None => Take::Pair,
    }
}

/// Returns the doorbell slot of the receive queue, behind that of the send queue.
fn recv_slot(init: &QpInitAttr<'_, Qiao>, send_slot: u32) -> u32 {
    match init.srq() {
        Some(_) => NO_SLOT,
        None => send_slot + 1,
    }
}

/// Returns the transport as the device takes it.
///
/// # Errors
///
/// `EOPNOTSUPP` if the part does not have it.
fn transport(hca: &Hca<'_>, ty: QpType) -> Result<qp::QpType> {
    let (transport, needs) = match ty {
        QpType::Smi => (qp::QpType::Smi, feature::MAD),
        QpType::Gsi => (qp::QpType::Gsi, feature::MAD),
        QpType::Rc => (qp::QpType::Rc, feature::RC),
        QpType::Uc => (qp::QpType::Uc, feature::UC),
        QpType::Ud => (qp::QpType::Ud, feature::UD),
    };
    if !hca.has(needs) {
        return Err(EOPNOTSUPP);
    }
    Ok(transport)
}

/// Makes the command for a queue pair, all but what its owner has.
fn command(
    init: &QpInitAttr<'_, Qiao>,
    transport: qp::QpType,
    layout: &QpLayout,
) -> Result<CreateQp> {
    if init.create_flags() != 0 {
        return Err(EOPNOTSUPP);
    }
    let mut cmd = CreateQp::zeroed();
    cmd.pdn.set(init.pd().pdn());
    cmd.send_cqn.set(init.send_cq()?.cqn());
    cmd.recv_cqn.set(init.recv_cq()?.cqn());
    if let Some(srq) = init.srq() {
        cmd.srqn.set(srq.srqn());
    }
    if init.signal_all() {
        cmd.flags.set(qp_flag::SIGNAL_ALL);
    }
    cmd.qp_type = transport.to_wire();
    layout.fill(&mut cmd);
    Ok(cmd)
}

impl Qp {
    fn with_queues(init: &QpInitAttr<'_, Qiao>, queues: Lent<Queues>) -> impl PinInit<Self, Error> {
        let (ty, cap, signal_all) = (init.ty(), init.cap(), init.signal_all());
        try_pin_init!(Self {
            queues,
            ty,
            cap,
            signal_all,
            attr <- new_mutex!(QpAttr::default()),
        })
    }

    fn create_user_queues(
        cx: &Cx<'_, Qiao>,
        init: &QpInitAttr<'_, Qiao>,
        handle: &QpHandle,
        ctx: &Ucontext<Qiao>,
        udata: &mut Udata,
    ) -> Result<Lent<Queues>> {
        let hca = cx.data().hca();
        let req: qiao_create_qp_req = udata.read()?;
        if req.comp_mask != 0 || req.reserved.iter().any(|&b| b != 0) {
            return Err(EOPNOTSUPP);
        }
        // The special ones are the kernel's.
        if matches!(init.ty(), QpType::Smi | QpType::Gsi) {
            return Err(EOPNOTSUPP);
        }
        let transport = transport(hca, init.ty())?;
        let rings = QpRings {
            log_sq_blocks: req.log_sq_blocks,
            log_rq_wqes: req.log_rq_wqes,
            log_rq_stride: req.log_rq_stride,
        };
        let layout = QpLayout::new(&hca.queue_limits(), transport, rings, &needs(init));
        let layout = layout.ok_or(EINVAL)?;
        let mut cmd = command(init, transport, &layout)?;

        let id = hca.qps().reserve()?;
        let slots = ctx.take_slots(hca, slots_of(init))?;
        let mut umem = Umem::pin_qp_buffer(cx.device(), udata, req.buf_addr, layout.size())?;
        let tables = PageTables::of_buffer(hca, &mut umem)?;

        cmd.qpn.set(id.get());
        cmd.sq_slot.set(slots.number());
        cmd.rq_slot.set(recv_slot(init, slots.number()));
        cmd.buffer = tables.list();
        let resp = qiao_create_qp_resp {
            comp_mask: 0,
            db_mmap_offset: *slots.attachment(),
            db_offset: slots.offset(),
            qpn: id.get(),
        };
        let owner = Owner::User {
            _slots: slots,
            _umem: umem,
        };
        object::create(hca, &cmd, Queues { id, owner }, tables, |queues| {
            queues.id.publish(handle.clone())?;
            udata.respond(&resp)
        })
    }

    fn create_kernel_queues(
        cx: &Cx<'_, Qiao>,
        init: &QpInitAttr<'_, Qiao>,
        handle: &QpHandle,
    ) -> Result<Lent<Queues>> {
        let hca = cx.data().hca();
        let (ty, cap) = (init.ty(), init.cap());
        let transport = transport(hca, ty)?;
        let layout =
            QpLayout::for_needs(&hca.queue_limits(), transport, &needs(init)).ok_or(EINVAL)?;
        let mut cmd = command(init, transport, &layout)?;
        let send_cq = init.send_cq()?.kernel().ok_or(EINVAL)?.clone();
        let recv_cq = init.recv_cq()?.kernel().ok_or(EINVAL)?.clone();
        let srq = match init.srq() {
            Some(srq) => Some(srq.kernel().ok_or(EINVAL)?),
            None => None,
        };

        let id = hca.qps().reserve()?;
        let queues = WorkQueues::new(
            hca,
            &kernel::Parts {
                handle,
                qpn: id.get(),
                transport,
                cap,
                layout,
                send_cq: &send_cq,
                recv_cq: &recv_cq,
                srq,
            },
        )?;
        let (slots, memory) = queues.place();
        let tables = PageTables::of_memory(hca.pdev().as_ref(), memory)?;
        cmd.qpn.set(id.get());
        cmd.sq_slot.set(slots);
        cmd.rq_slot.set(recv_slot(init, slots));
        cmd.buffer = tables.list();
        cmd.flags.set(cmd.flags.get() | qp_flag::KERNEL);
        if matches!(ty, QpType::Smi | QpType::Gsi) {
            cmd.port = u8::try_from(init.port())?;
        }
        let owner = Owner::Kernel(Kernel {
            queues,
            send_cq,
            recv_cq,
        });
        object::create(hca, &cmd, Queues { id, owner }, tables, |queues| {
            queues.id.publish(handle.clone())?;
            // The last that can fail.
            queues.kernel().map_or(Ok(()), Kernel::attach)
        })
    }

    fn change(&self, cx: &Cx<'_, Qiao>, modify: &QpModify) -> Result {
        let hca = cx.data().hca();
        let mut current = self.attr.lock();
        let from = if modify.mask().contains(QpMask::CUR_STATE) {
            modify.attr().cur_state
        } else {
            current.state
        };
        let to = modify.next_state(from, self.ty)?;
        let command = self.modify_command(hca, modify)?;
        self.carry_out(hca, &command, current.state, to)?;

        if to == QpState::Reset {
            // The device forgets all of them.
            *current = QpAttr::default();
        } else {
            modify.apply(&mut current);
        }
        current.state = to;
        Ok(())
    }

    /// Has the device execute a modification from the state `from` to the state `to`.
    fn carry_out(&self, hca: &Hca<'_>, command: &ModifyQp, from: QpState, to: QpState) -> Result {
        let kernel = self.queues.kernel();
        if let (Some(kernel), QpState::Reset) = (kernel, to) {
            kernel.queues.close();
        }
        let done = hca.cmd().exec(command).map(drop);
        let Some(kernel) = kernel else {
            return done;
        };
        // What a device that is lost has left behind is flushed without it.
        let done = match to {
            QpState::Reset | QpState::Err if !hca.is_alive() => Ok(()),
            _ => done,
        };
        if done.is_ok() && to == QpState::Reset {
            kernel.queues.reset(hca, &kernel.send_cq, &kernel.recv_cq);
        }
        kernel
            .queues
            .set_state(if done.is_ok() { to } else { from });
        done
    }

    fn modify_command(&self, hca: &Hca<'_>, modify: &QpModify) -> Result<ModifyQp> {
        let mask = modify.mask();
        let from = modify.attr();
        let caps = hca.caps();
        if from.max_rd_atomic > caps.max_rd_atomic
            || from.max_dest_rd_atomic > caps.max_dest_rd_atomic
        {
            return Err(EINVAL);
        }

        let mut cmd = ModifyQp::zeroed();
        cmd.qpn.set(self.queues.qpn());
        cmd.mask.set(wire_mask(mask));
        let to = &mut cmd.attr;
        to.qkey.set(from.qkey);
        to.rq_psn.set(from.rq_psn);
        to.sq_psn.set(from.sq_psn);
        to.dest_qpn.set(from.dest_qpn);
        to.access
            .set(peer_rights(from.access, caps.features.get())?);
        to.pkey_index.set(from.pkey_index);
        to.port = u8::try_from(from.port)?;
        to.path_mtu = from.path_mtu.map_or(0, |mtu| mtu as u8);
        to.state = wire_state(from.state);
        to.cur_state = wire_state(from.cur_state);
        to.notify_drained = u8::from(from.sqd_async_notify);
        to.max_rd_atomic = from.max_rd_atomic;
        to.max_dest_rd_atomic = from.max_dest_rd_atomic;
        to.min_rnr_timer = from.min_rnr_timer;
        to.timeout = from.timeout;
        to.retry_count = from.retry_cnt;
        to.rnr_retry = from.rnr_retry;
        if mask.contains(QpMask::AV) {
            to.path = to_path(&from.ah)?;
        }
        Ok(cmd)
    }

    fn ask(&self, cx: &Cx<'_, Qiao>) -> Result<QpQuery> {
        let mut cmd = QueryQp::zeroed();
        cmd.qpn.set(self.queues.qpn());
        let mut current = self.attr.lock();
        let reply = cx.data().hca().cmd().exec(&cmd)?;
        current.state = state_from_wire(reply.attr.state)?;
        let mut attr = *current;
        attr.cur_state = attr.state;
        attr.rq_psn = reply.attr.rq_psn.get() & PSN_MASK;
        attr.sq_psn = reply.attr.sq_psn.get() & PSN_MASK;
        Ok(QpQuery {
            attr,
            cap: self.cap,
            signal_all: self.signal_all,
            sq_draining: reply.sq_draining != 0,
        })
    }
}

/// Bits of a packet sequence number.
const PSN_MASK: u32 = 0xff_ffff;

/// Attributes as the device names them.
const ATTRIBUTES: [(QpMask, u32); 18] = [
    (QpMask::STATE, attr::STATE),
    (QpMask::CUR_STATE, attr::CUR_STATE),
    (QpMask::SQD_ASYNC_NOTIFY, attr::NOTIFY_DRAINED),
    (QpMask::ACCESS, attr::ACCESS),
    (QpMask::PKEY_INDEX, attr::PKEY_INDEX),
    (QpMask::PORT, attr::PORT),
    (QpMask::QKEY, attr::QKEY),
    (QpMask::AV, attr::PATH),
    (QpMask::PATH_MTU, attr::PATH_MTU),
    (QpMask::TIMEOUT, attr::TIMEOUT),
    (QpMask::RETRY_CNT, attr::RETRY_COUNT),
    (QpMask::RNR_RETRY, attr::RNR_RETRY),
    (QpMask::RQ_PSN, attr::RQ_PSN),
    (QpMask::MAX_RD_ATOMIC, attr::MAX_RD_ATOMIC),
    (QpMask::MIN_RNR_TIMER, attr::MIN_RNR_TIMER),
    (QpMask::SQ_PSN, attr::SQ_PSN),
    (QpMask::MAX_DEST_RD_ATOMIC, attr::MAX_DEST_RD_ATOMIC),
    (QpMask::DEST_QPN, attr::DEST_QPN),
];

fn wire_mask(mask: QpMask) -> u32 {
    ATTRIBUTES
        .iter()
        .filter(|(m, _)| mask.contains(*m))
        .fold(0, |bits, (_, bit)| bits | bit)
}

fn wire_state(state: QpState) -> u8 {
    match state {
        QpState::Reset => qp::QpState::Reset,
        QpState::Init => qp::QpState::Init,
        QpState::Rtr => qp::QpState::Rtr,
        QpState::Rts => qp::QpState::Rts,
        QpState::Sqd => qp::QpState::Sqd,
        QpState::Sqe => qp::QpState::Sqe,
        QpState::Err => qp::QpState::Err,
    }
    .to_wire()
}

fn state_from_wire(wire: u8) -> Result<QpState> {
    Ok(match qp::QpState::from_wire(wire).ok_or(EIO)? {
        qp::QpState::Reset => QpState::Reset,
        qp::QpState::Init => QpState::Init,
        qp::QpState::Rtr => QpState::Rtr,
        qp::QpState::Rts => QpState::Rts,
        qp::QpState::Sqd => QpState::Sqd,
        qp::QpState::Sqe => QpState::Sqe,
        qp::QpState::Err => QpState::Err,
    })
}

impl rdma::QpOps for Qp {
    type Driver = Qiao;

    fn create_user(
        cx: &Cx<'_, Qiao>,
        init: &QpInitAttr<'_, Qiao>,
        handle: &QpHandle,
        ctx: &Ucontext<Qiao>,
        udata: &mut Udata,
    ) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let queues = Self::create_user_queues(cx, init, handle, ctx, udata)?;
            // Nothing fails from here on.
            Ok(Self::with_queues(init, queues))
        })
    }

    fn create_kernel(
        cx: &Cx<'_, Qiao>,
        init: &QpInitAttr<'_, Qiao>,
        handle: &QpHandle,
    ) -> impl PinInit<Self, Error> {
        pin_init::pin_init_scope(move || {
            let queues = Self::create_kernel_queues(cx, init, handle)?;
            // Nothing fails from here on.
            Ok(Self::with_queues(init, queues))
        })
    }

    fn post_send(qp: &rdma::Qp<Qiao>, cx: &Cx<'_, Qiao>, wrs: &mut SendWrs<'_, Qiao>) -> Result {
        let (hca, kernel) = (cx.data().hca(), qp.queues.kernel().ok_or(EINVAL)?);
        let ret = kernel.queues.post_send(hca, wrs);
        kernel.send_cq.posted(hca);
        ret
    }

    fn post_recv(qp: &rdma::Qp<Qiao>, cx: &Cx<'_, Qiao>, wrs: &mut RecvWrs<'_>) -> Result {
        let (hca, kernel) = (cx.data().hca(), qp.queues.kernel().ok_or(EINVAL)?);
        let ret = kernel.queues.post_recv(hca, wrs);
        kernel.recv_cq.posted(hca);
        ret
    }

    fn qpn(&self) -> u32 {
        self.queues.qpn()
    }

    fn modify(qp: &rdma::Qp<Qiao>, cx: &Cx<'_, Qiao>, modify: &QpModify) -> Result {
        qp.change(cx, modify)?;
        let to_error = modify.mask().contains(QpMask::STATE) && modify.attr().state == QpState::Err;
        if let (Some(kernel), true, false) =
            (qp.queues.kernel(), to_error, cx.data().hca().is_alive())
        {
            kernel.queues.report_last_request();
        }
        Ok(())
    }

    fn query(qp: &rdma::Qp<Qiao>, cx: &Cx<'_, Qiao>) -> Result<QpQuery> {
        qp.ask(cx)
    }

    fn destroy(qp: &rdma::Qp<Qiao>, cx: &Cx<'_, Qiao>) {
        object::destroy(cx.data().hca(), &qp.queues);
        qp.queues.detach();
    }
}
