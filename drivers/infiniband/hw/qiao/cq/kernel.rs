// SPDX-License-Identifier: GPL-2.0

//! Completion queues of the kernel.
//!
//! The device is hostile: a completion may name any queue pair and any request. It counts only if
//! the queue pair uses this queue, and has posted the request and not seen it complete.

use crate::{
    doorbell::{
        Slot,
        Take, //
    },
    fatal::Oddity,
    hca::Hca,
    qp::WorkQueues, //
};
use kernel::{
    new_spinlock_irq,
    prelude::*,
    rbtree::{
        RBTree,
        RBTreeNode, //
    },
    static_lock_class,
    sync::{
        barrier::{
            dma_mb,
            Full,
            Read, //
        },
        Arc,
        SpinLockIrq, //
    },
    workqueue, //
};
use qiao_hw::{
    cqe::Cqe,
    doorbell::{
        Arm,
        ArmKind, //
    },
    queue::CqLayout,
    ring::{
        self,
        RingSize, //
    },
    U32, //
};
use rdma::{
    dma::{
        Ring,
        RingMemory, //
    },
    sync::Work,
    CqHandle,
    Notify,
    Wcs, //
};

/// Most entries that one call skips since they are no completions of a queue pair.
const MAX_SKIPPED: u32 = 64;

/// What an entry names when its queue pair is gone: no number has so many bits.
const GONE: u32 = u32::MAX;

/// A queue pair that uses a completion queue, by its number.
pub(crate) type User = RBTreeNode<u32, Arc<WorkQueues>>;

/// The entries of a completion queue of the kernel, and who uses it.
#[pin_data]
pub(crate) struct KernelCq {
    number: u32,
    slot: Slot<()>,
    size: RingSize,
    entries: Ring<Cqe>,
    record: Ring<U32>,
    /// Calls the consumer's handler when the device, which is lost, does not.
    #[pin]
    alarm: Work<CqHandle>,
    #[pin]
    state: SpinLockIrq<State>,
}

struct State {
    /// Free-running index of the next entry.
    consumer: u32,
    /// Index from which the last request for an event counts.
    from: u32,
    /// Number of the last request for an event.
    sequence: u8,
    /// The consumer has asked for an event, and `alarm` has not answered. The device may have.
    is_armed: bool,
    /// Queue pairs by number.
    users: RBTree<u32, Arc<WorkQueues>>,
}

impl KernelCq {
    /// Allocates the entries, and the record behind them.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(super) fn new(
        hca: &Hca<'_>,
        number: u32,
        layout: CqLayout,
        handle: &CqHandle,
    ) -> Result<Arc<Self>> {
        let memory = RingMemory::new(hca.pdev().as_ref(), layout.size())?;
        let size = layout.entries();
        Arc::pin_init(
            try_pin_init!(Self {
                number,
                slot: hca.kernel_slots(Take::One)?,
                size,
                entries: Ring::within(memory.clone(), 0, size.log())?,
                record: Ring::within(memory, layout.record_offset(), 0)?,
                alarm <- Work::new(handle.clone(), c"qiao_cq_alarm", static_lock_class!()),
                state <- new_spinlock_irq!(State {
                    consumer: 0,
                    from: 0,
                    sequence: 0,
                    is_armed: false,
                    users: RBTree::new(),
                }),
            }? Error),
            GFP_KERNEL,
        )
    }

    /// Returns the number of the doorbell slot, and the memory of the queue.
    pub(super) fn place(&self) -> (u32, &RingMemory) {
        (self.slot.number(), self.entries.memory())
    }

    /// Returns the number of the queue.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Lets completions of a queue pair through from now on.
    pub(crate) fn attach(&self, user: User) {
        let old = self.state.lock().users.insert(user);
        drop(old);
    }

    /// Drops the completions of a queue pair that were not polled, now and later.
    pub(crate) fn detach(&self, qpn: u32) {
        let mut state = self.state.lock();
        self.purge(&state, qpn);
        let user = state.users.remove_node(&qpn);
        drop(state);
        drop(user);
        self.settle();
    }

    /// Drops the completions of a queue pair that were not polled; then, with the queue locked,
    /// calls `reset`.
    pub(crate) fn clean(&self, qpn: u32, reset: impl FnOnce()) {
        let state = self.state.lock();
        self.purge(&state, qpn);
        reset();
    }

    fn purge(&self, state: &State, qpn: u32) {
        const QPN: usize = core::mem::offset_of!(Cqe, qpn);

        for ahead in 0..self.size.entries() {
            let index = state.consumer.wrapping_add(ahead);
            if !self.is_written(index) {
                break;
            }
            if self.entries.read_word::<QPN>(index) == qpn {
                // The device writes the owner word last.
                dma_mb(Read);
                if let Some(user) = state.users.get(&qpn) {
                    let cqe = self.entries.read(index);
                    user.forget(self.number, cqe.opcode, cqe.wqe_index.get());
                }
                self.entries.write_word::<QPN>(index, GONE);
            }
        }
    }

    fn is_written(&self, index: u32) -> bool {
        const OWNER: usize = core::mem::offset_of!(Cqe, owner);

        ring::is_written(self.size, index, self.entries.read_word::<OWNER>(index))
    }

    /// Takes completions out of the queue.
    pub(super) fn poll(&self, hca: &Hca<'_>, wcs: &mut Wcs<'_>) {
        let mut state = self.state.lock();
        let first = state.consumer;
        let mut skipped = 0;
        while wcs.room() > 0 && skipped < MAX_SKIPPED && self.is_written(state.consumer) {
            // The device writes the owner word last.
            dma_mb(Read);
            let cqe = self.entries.read(state.consumer);
            state.consumer = state.consumer.wrapping_add(1);
            let qpn = cqe.qpn.get();
            if qpn == GONE {
                skipped += 1;
                continue;
            }
            let user = state.users.get(&qpn);
            if !user.is_some_and(|user| user.complete(self.number, &cqe, wcs)) {
                skipped += 1;
                hca.note(Oddity::WorkCompletion);
            }
        }
        if state.consumer != first {
            // The device may use the entries when it sees the index.
            dma_mb(Full);
            self.record.write(0, &state.consumer.into());
        }
        if !hca.is_alive() && !self.is_written(state.consumer) {
            // The device does not do it any more.
            for user in state.users.values() {
                user.flush(self.number, wcs);
            }
        }
    }

    /// Asks for an event at the next completion, which those that are there are not (IBTA vol. 1,
    /// 11.4.2.2); true if there are any.
    pub(super) fn notify(&self, hca: &Hca<'_>, what: Notify) -> bool {
        let mut state = self.state.lock();
        state.from = ring::written_end(state.consumer, state.from, self.size.entries(), |index| {
            self.is_written(index)
        });
        state.sequence = state.sequence.wrapping_add(1);
        let arm = Arm {
            index: state.from,
            kind: match what {
                Notify::Solicited => ArmKind::Solicited,
                Notify::Next => ArmKind::Any,
            },
            sequence: state.sequence,
        };
        // With the lock held, since the last value that is written counts.
        hca.ring_doorbell(self.slot.number(), arm.to_wire());
        state.is_armed = true;
        if hca.is_alive() {
            return state.from != state.consumer;
        }
        let is_due = self.is_due(&state);
        self.raise(&mut state);
        is_due
    }

    /// Returns whether a poll finds something, of a device that is lost.
    fn is_due(&self, state: &State) -> bool {
        self.is_written(state.consumer)
            || state.users.values().any(|user| user.is_used(self.number))
    }

    /// Raises the event that the consumer has asked for if a poll finds something, of a device that
    /// is lost. Callable from any context, with no lock of a work queue held.
    pub(super) fn raise_if_due(&self) {
        self.raise(&mut self.state.lock());
    }

    fn raise(&self, state: &mut State) {
        if state.is_armed && self.is_due(state) {
            state.is_armed = false;
            // Needs no thread, hence no memory, which somebody may wait for to be written back.
            self.alarm.queue(workqueue::system_bh());
        }
    }

    /// As [`raise_if_due`](Self::raise_if_due), if the device is lost: for who has posted requests.
    ///
    /// If this sees the device alive, then who gives it up sees the requests: both take the lock of
    /// the work queue.
    pub(crate) fn posted(&self, hca: &Hca<'_>) {
        if !hca.is_alive() {
            self.raise_if_due();
        }
    }

    /// Sees that the consumer's handler is not called for what is gone: the core stops polling
    /// before it destroys the queue, and must not be made to begin again.
    fn settle(&self) {
        if self.alarm.cancel() {
            let mut state = self.state.lock();
            state.is_armed = true;
            self.raise(&mut state);
        }
    }
}
