// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues.

use crate::ffi::memory::{Buffer, Slot};
use crate::qp::Queues;
use crate::wr::Completion;
use crate::Errno;
use qiao_hw::cqe::{Cqe, OPCODE_RECV};
use qiao_hw::doorbell::{Arm, ArmKind};
use qiao_hw::queue::CqLayout;
use qiao_hw::ring::is_written;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// QP number of an entry whose queue pair is gone.
const GONE: u32 = u32::MAX;

const QPN_OFFSET: usize = core::mem::offset_of!(Cqe, qpn);
const OWNER_OFFSET: usize = core::mem::offset_of!(Cqe, owner);

/// A completion queue.
pub(crate) struct Cq {
    layout: CqLayout,
    buffer: Buffer,
    slot: Slot,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Free-running index of the next entry.
    consumer: u32,
    /// Sequence number of the last request for an event.
    sequence: u8,
    queues: HashMap<u32, Arc<Queues>>,
    /// The queue pair of the last entry: the next is mostly its, too.
    hot: Option<Arc<Queues>>,
}

impl State {
    fn queues_of(&mut self, qpn: u32) -> Option<&Queues> {
        if self.hot.as_ref().is_none_or(|q| q.qpn() != qpn) {
            self.hot = self.queues.get(&qpn).cloned();
        }
        self.hot.as_deref()
    }
}

impl Cq {
    pub(crate) fn new(layout: CqLayout, buffer: Buffer, slot: Slot) -> Self {
        Self {
            layout,
            buffer,
            slot,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Panics abort: a poisoned lock is never seen.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the completions of a queue pair known here.
    pub(crate) fn attach(&self, queues: &Arc<Queues>) {
        self.lock().queues.insert(queues.qpn(), Arc::clone(queues));
    }

    /// Forgets a queue pair: its completions that have not been polled are dropped.
    pub(crate) fn detach(&self, qpn: u32) {
        let mut state = self.lock();
        state.queues.remove(&qpn);
        state.hot = None;
        self.purge(&state, qpn);
    }

    /// Drops the completions of a queue pair that goes to RESET.
    pub(crate) fn clean(&self, qpn: u32) {
        let state = self.lock();
        self.purge(&state, qpn);
    }

    fn purge(&self, state: &State, qpn: u32) {
        for ahead in 0..self.layout.entries().entries() {
            let index = state.consumer.wrapping_add(ahead);
            if !self.is_written(index) {
                break;
            }
            let at = self.layout.entry_offset(index) + QPN_OFFSET;
            if self.buffer.load_u32(at) == qpn {
                self.buffer.store_u32(at, GONE);
            }
        }
    }

    fn is_written(&self, index: u32) -> bool {
        let at = self.layout.entry_offset(index) + OWNER_OFFSET;
        is_written(self.layout.entries(), index, self.buffer.load_u32(at))
    }

    /// Polls up to `max` completions and gives each to `take`. Returns how many.
    pub(crate) fn poll(&self, max: usize, mut take: impl FnMut(usize, &Completion)) -> usize {
        let mut state = self.lock();
        let before = state.consumer;
        let mut n = 0;
        while n < max && self.is_written(state.consumer) {
            let mut cqe = Cqe::zeroed();
            self.buffer
                .read(self.layout.entry_offset(state.consumer), cqe.as_mut_bytes());
            state.consumer = state.consumer.wrapping_add(1);
            let Some(queues) = state.queues_of(cqe.qpn.get()) else {
                continue;
            };
            let index = cqe.wqe_index.get();
            let id = if cqe.opcode & OPCODE_RECV != 0 {
                queues.recv.complete(index)
            } else {
                queues.send.complete(index)
            };
            take(n, &Completion { id, cqe });
            n += 1;
        }
        if state.consumer != before {
            self.buffer
                .store_u32(self.layout.record_offset(), state.consumer);
        }
        n
    }

    /// Asks for an event at the next completion, or the next solicited or failed one.
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<(), Errno> {
        let mut state = self.lock();
        state.sequence = state.sequence.wrapping_add(1);
        let kind = if solicited_only {
            ArmKind::Solicited
        } else {
            ArmKind::Any
        };
        let arm = Arm {
            consumer: state.consumer,
            kind,
            sequence: state.sequence,
        };
        self.slot.ring(arm.to_wire());
        Ok(())
    }
}
