// SPDX-License-Identifier: GPL-2.0

//! The work queues of a queue pair of the kernel.
//!
//! Locks: a completion queue's, then a work queue's. Both are taken with interrupts off, and
//! nothing is taken inside.

use super::{
    recv::RecvQueue,
    send::SendQueue, //
};
use crate::{
    cq::KernelCq,
    device::Qiao,
    doorbell::{
        Slot,
        Take, //
    },
    hca::Hca,
    recv::Request,
    srq::KernelSrq, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    rbtree::RBTreeNode,
    sync::{
        Arc,
        SpinLockIrq, //
    }, //
};
use qiao_hw::{
    cqe::{
        cqe_flag,
        Cqe,
        CqeOpcode,
        CqeStatus,
        OPCODE_RECV, //
    },
    qp::QpType,
    queue::QpLayout, //
};
use rdma::{
    dma::RingMemory,
    QpCap,
    QpEvent,
    QpHandle,
    QpState,
    RecvWrs,
    SendWrs,
    Wc,
    WcOpcode,
    WcSource,
    WcStatus,
    Wcs, //
};

/// What becomes of requests that are posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Posting {
    /// The state of the queue pair forbids them (IBTA vol. 1, 10.3.1).
    Refused,
    /// They are executed when the state allows it.
    Open,
    /// They are flushed.
    Flushed,
}

impl Posting {
    fn of_send(state: QpState) -> Self {
        match state {
            QpState::Reset | QpState::Init | QpState::Rtr => Self::Refused,
            QpState::Rts | QpState::Sqd | QpState::Sqe => Self::Open,
            QpState::Err => Self::Flushed,
        }
    }

    fn of_recv(state: QpState) -> Self {
        match state {
            QpState::Reset => Self::Refused,
            QpState::Err => Self::Flushed,
            _ => Self::Open,
        }
    }
}

/// A request that is done.
pub(super) struct Done {
    /// What the consumer knows the request by.
    pub(super) id: u64,
    /// What it was.
    pub(super) opcode: WcOpcode,
}

/// The work queues of a queue pair of the kernel.
#[pin_data]
pub(crate) struct WorkQueues {
    handle: QpHandle,
    qpn: u32,
    transport: QpType,
    send_cq: u32,
    recv_cq: u32,
    slots: Slot<()>,
    memory: Arc<RingMemory>,
    #[pin]
    send: SpinLockIrq<SendQueue>,
    recv: Receive,
}

/// Where receive requests come from.
enum Receive {
    /// The queue pair.
    Own(Pin<KBox<SpinLockIrq<RecvQueue>>>),
    /// A queue that it shares.
    Shared(Arc<KernelSrq>),
}

impl Receive {
    fn own(&self) -> Option<&SpinLockIrq<RecvQueue>> {
        match self {
            Self::Own(queue) => Some(queue),
            Self::Shared(_) => None,
        }
    }

    /// Frees a request that a completion names; [`None`] if it is not outstanding.
    fn complete(&self, index: u32) -> Option<Request> {
        match self {
            Self::Own(queue) => queue.lock().complete(index),
            Self::Shared(srq) => srq.complete(index),
        }
    }
}

/// What work queues are made of.
pub(super) struct Parts<'a> {
    pub(super) handle: &'a QpHandle,
    pub(super) qpn: u32,
    pub(super) transport: QpType,
    pub(super) cap: QpCap,
    pub(super) layout: QpLayout,
    pub(super) send_cq: &'a KernelCq,
    pub(super) recv_cq: &'a KernelCq,
    pub(super) srq: Option<&'a Arc<KernelSrq>>,
}

impl WorkQueues {
    /// # Errors
    ///
    /// `ENOMEM`, or `ENOSPC` if there is no doorbell slot left.
    pub(super) fn new(hca: &Hca<'_>, parts: &Parts<'_>) -> Result<Arc<Self>> {
        let Parts {
            handle,
            qpn,
            transport,
            cap,
            layout,
            send_cq,
            recv_cq,
            srq,
        } = parts;
        let memory = RingMemory::new(hca.pdev().as_ref(), layout.size())?;
        let recv = match (srq, layout.rq()) {
            (Some(srq), _) => Receive::Shared((*srq).clone()),
            (None, Some(ring)) => {
                let queue = RecvQueue::new(&memory, ring, cap.max_recv_sge)?;
                Receive::Own(KBox::pin_init(new_spinlock_irq!(queue), GFP_KERNEL)?)
            }
            (None, None) => return Err(EINVAL),
        };
        Arc::pin_init(
            try_pin_init!(Self {
                handle: (*handle).clone(),
                qpn: *qpn,
                transport: *transport,
                send_cq: send_cq.number(),
                recv_cq: recv_cq.number(),
                slots: hca.kernel_slots(if srq.is_some() { Take::One } else { Take::Pair })?,
                send <- new_spinlock_irq!(SendQueue::new(&memory, *transport, cap, layout)?),
                recv,
                memory,
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the number of the first of two doorbell slots, and the memory of the rings.
    pub(super) fn place(&self) -> (u32, &RingMemory) {
        (self.slots.number(), &self.memory)
    }

    /// Makes the completion queues take the completions.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; then nothing has changed.
    pub(super) fn attach(self: &Arc<Self>, send_cq: &KernelCq, recv_cq: &KernelCq) -> Result {
        let user = || RBTreeNode::new(self.qpn, self.clone(), GFP_KERNEL);
        let (send, recv) = (user()?, user()?);
        send_cq.attach(send);
        if self.send_cq != self.recv_cq {
            recv_cq.attach(recv);
        }
        Ok(())
    }

    /// Refuses requests: the device is about to forget those that were posted.
    pub(super) fn close(&self) {
        self.send.lock().set_posting(Posting::Refused);
        if let Some(recv) = self.recv.own() {
            recv.lock().set_posting(Posting::Refused);
        }
    }

    /// Takes requests as the state allows it.
    pub(super) fn set_state(&self, state: QpState) {
        self.send.lock().set_posting(Posting::of_send(state));
        if let Some(recv) = self.recv.own() {
            recv.lock().set_posting(Posting::of_recv(state));
        }
    }

    /// Empties the queues, as the device has done, with their completions.
    pub(super) fn reset(&self, hca: &Hca<'_>, send_cq: &KernelCq, recv_cq: &KernelCq) {
        let (send_slot, recv_slot) = (self.slots.number(), self.slots.number() + 1);
        send_cq.clean(self.qpn, || {
            self.send.lock().reset();
            hca.ring_doorbell(send_slot, 0);
        });
        recv_cq.clean(self.qpn, || {
            if let Some(recv) = self.recv.own() {
                recv.lock().reset();
                hca.ring_doorbell(recv_slot, 0);
            }
        });
    }

    /// Posts send requests, up to the first that can not be.
    pub(super) fn post_send(&self, hca: &Hca<'_>, wrs: &mut SendWrs<'_, Qiao>) -> Result {
        let mut send = self.send.lock();
        let before = send.producer();
        let ret = wrs.post_each(|wr| send.post(wr));
        if send.producer() != before {
            // With the lock held, since the last value that is written counts.
            hca.ring_doorbell(self.slots.number(), send.producer().into());
        }
        ret
    }

    /// Posts receive requests, up to the first that can not be.
    pub(super) fn post_recv(&self, hca: &Hca<'_>, wrs: &mut RecvWrs<'_>) -> Result {
        let mut recv = self.recv.own().ok_or(EINVAL)?.lock();
        let before = recv.producer();
        let ret = wrs.post_each(|wr| recv.post(wr));
        if recv.producer() != before {
            // As for send requests.
            hca.ring_doorbell(self.slots.number() + 1, recv.producer().into());
        }
        ret
    }

    /// Gives a completion that was in the queue `cqn` to the consumer, unless it makes no sense.
    pub(crate) fn complete(&self, cqn: u32, cqe: &Cqe, wcs: &mut Wcs<'_>) -> bool {
        let wc = if cqe.opcode & OPCODE_RECV != 0 {
            self.received(cqn, cqe)
        } else {
            self.sent(cqn, cqe)
        };
        wc.inspect(|wc| wcs.push(&self.handle, wc)).is_some()
    }

    fn sent(&self, cqn: u32, cqe: &Cqe) -> Option<Wc> {
        if cqn != self.send_cq {
            return None;
        }
        let done = self.send.lock().complete(cqe.wqe_index.get())?;
        let mut wc = Wc::new(done.id, status(cqe.status), done.opcode);
        wc.vendor_error = cqe.vendor_error.into();
        wc.byte_len = cqe.byte_len.get();
        Some(wc)
    }

    fn received(&self, cqn: u32, cqe: &Cqe) -> Option<Wc> {
        if cqn != self.recv_cq {
            return None;
        }
        let Request { id, room } = self.recv.complete(cqe.wqe_index.get())?;
        let mut wc = Wc::new(id, status(cqe.status), WcOpcode::Recv);
        wc.vendor_error = cqe.vendor_error.into();
        if wc.status != WcStatus::Success {
            return Some(wc);
        }
        wc.byte_len = cqe.byte_len.get();
        if CqeOpcode::from_wire(cqe.opcode) == Some(CqeOpcode::RecvRdmaWithImm) {
            wc.opcode = WcOpcode::RecvRdmaWithImm;
        } else if u64::from(wc.byte_len) > room {
            // Consumers take this for what is theirs in the buffer.
            wc.status = WcStatus::General;
            return Some(wc);
        }
        wc.imm = (cqe.flags & cqe_flag::IMM != 0).then_some(cqe.imm_or_rkey);
        if self.transport.is_datagram() {
            wc.source = source(cqe);
        }
        Some(wc)
    }

    /// Flushes requests that a device which is lost has left behind, as far as they belong to the
    /// queue `cqn` and have room.
    pub(crate) fn flush(&self, cqn: u32, wcs: &mut Wcs<'_>) {
        if cqn == self.send_cq {
            let mut send = self.send.lock();
            self.flush_each(wcs, || send.complete_next());
        }
        if let Some(recv) = self.recv.own().filter(|_| cqn == self.recv_cq) {
            let mut recv = recv.lock();
            self.flush_each(wcs, || recv.complete_next());
        }
    }

    fn flush_each(&self, wcs: &mut Wcs<'_>, mut next: impl FnMut() -> Option<Done>) {
        while wcs.room() > 0 {
            let Some(done) = next() else {
                break;
            };
            let wc = Wc::new(done.id, WcStatus::WrFlush, done.opcode);
            wcs.push(&self.handle, &wc);
        }
    }

    /// Returns whether requests that belong to the queue `cqn` are not done.
    pub(crate) fn is_used(&self, cqn: u32) -> bool {
        (cqn == self.send_cq && self.send.lock().is_used())
            || (cqn == self.recv_cq && self.recv.own().is_some_and(|recv| recv.lock().is_used()))
    }

    /// Takes note of a completion that nobody will poll: a request of a shared queue is free then.
    pub(crate) fn forget(&self, cqn: u32, opcode: u8, index: u32) {
        if let (Receive::Shared(srq), true) = (&self.recv, cqn == self.recv_cq) {
            if opcode & OPCODE_RECV != 0 {
                srq.complete(index);
            }
        }
    }

    /// Tells the consumer that no request of a shared queue is in use, if it has one, since a
    /// device that is lost does not.
    pub(super) fn report_last_request(&self) {
        if self.recv.own().is_none() {
            self.handle.event(QpEvent::LastWqeReached);
        }
    }
}

/// Translates how a request ended.
fn status(wire: u8) -> WcStatus {
    match CqeStatus::from_wire(wire) {
        Some(CqeStatus::Success) => WcStatus::Success,
        Some(CqeStatus::LocalLength) => WcStatus::LocalLength,
        Some(CqeStatus::LocalQpOperation) => WcStatus::LocalQpOperation,
        Some(CqeStatus::LocalProtection) => WcStatus::LocalProtection,
        Some(CqeStatus::WrFlush) => WcStatus::WrFlush,
        Some(CqeStatus::MwBind) => WcStatus::MwBind,
        Some(CqeStatus::BadResponse) => WcStatus::BadResponse,
        Some(CqeStatus::LocalAccess) => WcStatus::LocalAccess,
        Some(CqeStatus::RemoteInvalidRequest) => WcStatus::RemoteInvalidRequest,
        Some(CqeStatus::RemoteAccess) => WcStatus::RemoteAccess,
        Some(CqeStatus::RemoteOperation) => WcStatus::RemoteOperation,
        Some(CqeStatus::RetryExceeded) => WcStatus::RetryExceeded,
        Some(CqeStatus::RnrRetryExceeded) => WcStatus::RnrRetryExceeded,
        Some(CqeStatus::RemoteAborted) => WcStatus::RemoteAborted,
        Some(CqeStatus::Fatal) => WcStatus::Fatal,
        Some(CqeStatus::ResponseTimeout) => WcStatus::ResponseTimeout,
        // Those of transports that nobody has, and what makes no sense.
        _ => WcStatus::General,
    }
}

fn source(cqe: &Cqe) -> WcSource {
    WcSource {
        qpn: cqe.src_qpn.get(),
        lid: cqe.slid.get(),
        sl: cqe.sl,
        path_bits: cqe.path_bits,
        pkey_index: cqe.pkey_index.get(),
        grh: cqe.flags & cqe_flag::GRH != 0,
    }
}
