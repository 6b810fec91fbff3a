// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

use crate::{
    ah::to_path,
    device::Qiao,
    doorbell::Take,
    hca::Hca,
    mr::rights,
    object::{
        self,
        Object, //
    },
    page_list::PageTables,
    ucontext::UserSlot, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::Mutex, //
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
    qp::{
        self,
        access,
        attr, //
    },
    queue::{
        QpLayout,
        QpNeeds,
        QpRings,
        BUFFER_ALIGN, //
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
    Ucontext,
    Udata,
    Umem, //
};

/// A queue pair of user space.
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
    slots: UserSlot,
    _umem: Umem,
}

impl Queues {
    fn qpn(&self) -> u32 {
        self.id.get()
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
fn needs(cap: &QpCap) -> QpNeeds {
    QpNeeds {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}

/// Returns the transport as the device takes it.
///
/// # Errors
///
/// `EOPNOTSUPP` if the part does not have it.
fn transport(hca: &Hca<'_>, ty: QpType) -> Result<qp::QpType> {
    let (transport, needs) = match ty {
        QpType::Rc => (qp::QpType::Rc, feature::RC),
        QpType::Uc => (qp::QpType::Uc, feature::UC),
        QpType::Ud => (qp::QpType::Ud, feature::UD),
    };
    if hca.caps().features.get() & needs == 0 {
        return Err(EOPNOTSUPP);
    }
    Ok(transport)
}

impl Qp {
    fn create_queues(
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
        if init.has_srq() || init.create_flags() != 0 {
            return Err(EOPNOTSUPP);
        }
        let transport = transport(hca, init.ty())?;
        let rings = QpRings {
            log_sq_blocks: req.log_sq_blocks,
            log_rq_wqes: req.log_rq_wqes,
            log_rq_stride: req.log_rq_stride,
        };
        let needs = needs(&init.cap());
        let layout = QpLayout::new(&hca.queue_limits(), transport, rings, &needs).ok_or(EINVAL)?;

        let id = hca.qps().reserve()?;
        let slots = ctx.take_slots(hca, Take::Pair)?;
        let mut umem = Umem::pin_qp_buffer(cx.device(), udata, req.buf_addr, layout.size())?;
        let addr = umem.addr();
        if addr % BUFFER_ALIGN != 0 {
            return Err(EINVAL);
        }
        let tables = PageTables::new(
            hca.pdev().as_ref(),
            &umem.blocks(hca.caps().page_sizes.get(), addr)?,
        )?;

        let mut cmd = CreateQp::zeroed();
        cmd.qpn.set(id.get());
        cmd.pdn.set(init.pd().pdn());
        cmd.send_cqn.set(init.send_cq()?.cqn());
        cmd.recv_cqn.set(init.recv_cq()?.cqn());
        cmd.sq_slot.set(slots.number());
        cmd.rq_slot.set(slots.number() + 1);
        if init.signal_all() {
            cmd.flags.set(qp_flag::SIGNAL_ALL);
        }
        cmd.qp_type = transport.to_wire();
        layout.fill(&mut cmd);
        cmd.buffer = tables.list();
        let queues = Queues {
            id,
            slots,
            _umem: umem,
        };
        object::create(hca, &cmd, queues, tables, |queues| {
            queues.id.publish(handle.clone())?;
            udata.respond(&qiao_create_qp_resp {
                comp_mask: 0,
                db_mmap_offset: *queues.slots.attachment(),
                db_offset: queues.slots.offset(),
                qpn: queues.qpn(),
            })
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
        hca.cmd().exec(&self.modify_command(hca, modify)?)?;

        if to == QpState::Reset {
            // The device forgets all of them.
            *current = QpAttr::default();
        } else {
            modify.apply(&mut current);
        }
        current.state = to;
        Ok(())
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
        to.access.set(rights(from.access)? & REMOTE);
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

/// Rights that a queue pair gives to its peer; a local one is the business of the memory region.
const REMOTE: u32 = access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

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
            let queues = Self::create_queues(cx, init, handle, ctx, udata)?;
            // Nothing fails from here on.
            Ok(try_pin_init!(Self {
                queues,
                ty: init.ty(),
                cap: init.cap(),
                signal_all: init.signal_all(),
                attr <- new_mutex!(QpAttr::default()),
            }))
        })
    }

    fn qpn(&self) -> u32 {
        self.queues.qpn()
    }

    fn modify(qp: &rdma::Qp<Qiao>, cx: &Cx<'_, Qiao>, modify: &QpModify) -> Result {
        qp.change(cx, modify)
    }

    fn query(qp: &rdma::Qp<Qiao>, cx: &Cx<'_, Qiao>) -> Result<QpQuery> {
        qp.ask(cx)
    }

    fn destroy(qp: &rdma::Qp<Qiao>, cx: &Cx<'_, Qiao>) {
        object::destroy(cx.data().hca(), &qp.queues);
    }
}
