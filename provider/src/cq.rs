// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queues.

use crate::ffi::memory::{Buffer, Slot};
use crate::lock::Lock;
use crate::qp::Queues;
use crate::wr::Completion;
use crate::Errno;
use qiao_hw::cqe::{Cqe, OPCODE_RECV};
use qiao_hw::doorbell::{Arm, ArmKind};
use qiao_hw::queue::CqLayout;
use qiao_hw::ring::{is_written, written_end};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// QP number of an entry whose queue pair is gone.
const GONE: u32 = u32::MAX;

const QPN_OFFSET: usize = core::mem::offset_of!(Cqe, qpn);
const OWNER_OFFSET: usize = core::mem::offset_of!(Cqe, owner);

/// A completion queue.
pub(crate) struct Cq {
    slot: Slot,
    state: Lock<State>,
}

/// A buffer that the device has written completions to, or will.
struct Ring {
    layout: CqLayout,
    buffer: Buffer,
    /// Index of its first completion: entries count from there.
    base: u32,
}

impl Ring {
    fn offset(&self, index: u32) -> usize {
        self.layout.entry_offset(index.wrapping_sub(self.base))
    }

    fn is_written(&self, index: u32) -> bool {
        let owner = self.buffer.load_u32(self.offset(index) + OWNER_OFFSET);
        is_written(self.layout.entries(), index.wrapping_sub(self.base), owner)
    }
}

struct State {
    /// Free-running index of the next entry.
    consumer: u32,
    /// The buffer that the device writes, after those that are not read to their end. Never empty.
    rings: VecDeque<Ring>,
    /// Index from which the last request for an event counts.
    from: u32,
    /// Sequence number of the last request for an event.
    sequence: u8,
    queues: HashMap<u32, Arc<Queues>>,
    /// The queue pair of the last entry: the next is mostly its, too.
    hot: Option<Arc<Queues>>,
}

impl State {
    /// Takes the next entry.
    fn take(&mut self) -> Option<Cqe> {
        // An old buffer ends where the next one begins.
        while self
            .rings
            .get(1)
            .is_some_and(|next| next.base == self.consumer)
        {
            self.rings.pop_front();
        }
        let ring = self
            .rings
            .front()
            .filter(|ring| ring.is_written(self.consumer))?;
        let mut cqe = Cqe::zeroed();
        ring.buffer
            .read(ring.offset(self.consumer), cqe.as_mut_bytes());
        self.consumer = self.consumer.wrapping_add(1);
        Some(cqe)
    }

    /// Returns the index behind the entries that are written.
    fn written_end(&self) -> u32 {
        let entries = |ring: &Ring| ring.layout.entries().entries();
        let limit = self.rings.iter().map(entries).sum();
        written_end(self.consumer, self.from, limit, |index| {
            // CAST: The sign tells which of two free-running indices is ahead.
            let holds = |ring: &&Ring| index.wrapping_sub(ring.base) as i32 >= 0;
            let ring = self.rings.iter().rev().find(holds);
            ring.is_some_and(|ring| ring.is_written(index))
        })
    }

    /// Tells the device how far the queue is read.
    fn consume(&self) {
        if let Some(ring) = self.rings.back() {
            ring.buffer
                .store_u32(ring.layout.record_offset(), self.consumer);
        }
    }

    /// Drops the completions of a queue pair.
    fn purge(&self, qpn: u32) {
        let mut index = self.consumer;
        for (n, ring) in self.rings.iter().enumerate() {
            let end = self.rings.get(n + 1).map(|next| next.base);
            for _ in 0..ring.layout.entries().entries() {
                if end == Some(index) || !ring.is_written(index) {
                    break;
                }
                let at = ring.offset(index) + QPN_OFFSET;
                if ring.buffer.load_u32(at) == qpn {
                    let mut cqe = Cqe::zeroed();
                    ring.buffer.read(ring.offset(index), cqe.as_mut_bytes());
                    if let Some(queues) = self.queues.get(&qpn) {
                        queues.forget(cqe.opcode, cqe.wqe_index.get());
                    }
                    ring.buffer.store_u32(at, GONE);
                }
                index = index.wrapping_add(1);
            }
        }
    }

    fn queues_of(&mut self, qpn: u32) -> Option<&Queues> {
        if self.hot.as_ref().is_none_or(|q| q.qpn() != qpn) {
            self.hot = self.queues.get(&qpn).cloned();
        }
        self.hot.as_deref()
    }
}

impl Cq {
    pub(crate) fn new(layout: CqLayout, buffer: Buffer, slot: Slot) -> Self {
        let ring = Ring {
            layout,
            buffer,
            base: 0,
        };
        Self {
            slot,
            state: Lock::new(State {
                consumer: 0,
                from: 0,
                rings: VecDeque::from([ring]),
                sequence: 0,
                queues: HashMap::new(),
                hot: None,
            }),
        }
    }

    /// Calls `device` with what the device writes to, and with the index that it counts from.
    #[cfg(test)]
    pub(crate) fn with_newest<T>(&self, device: impl FnOnce(CqLayout, &Buffer, u32) -> T) -> T {
        let state = self.state.lock();
        let ring = state.rings.back().expect("never empty");
        device(ring.layout, &ring.buffer, ring.base)
    }

    /// Makes the completions of a queue pair known here.
    pub(crate) fn attach(&self, queues: &Arc<Queues>) {
        self.state
            .lock()
            .queues
            .insert(queues.qpn(), Arc::clone(queues));
    }

    /// Forgets a queue pair: its completions that have not been polled are dropped.
    pub(crate) fn detach(&self, qpn: u32) {
        let mut state = self.state.lock();
        state.purge(qpn);
        state.queues.remove(&qpn);
        state.hot = None;
    }

    /// Drops the completions of a queue pair that goes to RESET.
    pub(crate) fn clean(&self, qpn: u32) {
        self.state.lock().purge(qpn);
    }

    /// Goes on in another buffer, which `command` gives to the device; it returns the index of the
    /// first completion that the device writes there.
    ///
    /// # Errors
    ///
    /// Those of `command`; the queue stays as it is then.
    pub(crate) fn resize(
        &self,
        layout: CqLayout,
        buffer: Buffer,
        command: impl FnOnce(&Buffer) -> Result<u32, Errno>,
    ) -> Result<(), Errno> {
        let mut state = self.state.lock();
        buffer.store_u32(layout.record_offset(), state.consumer);
        let base = command(&buffer)?;
        state.rings.push_back(Ring {
            layout,
            buffer,
            base,
        });
        Ok(())
    }

    /// Takes the next completion.
    fn next(state: &mut State) -> Option<Completion> {
        while let Some(cqe) = state.take() {
            let Some(queues) = state.queues_of(cqe.qpn.get()) else {
                continue;
            };
            let index = cqe.wqe_index.get();
            let id = if cqe.opcode & OPCODE_RECV != 0 {
                queues.received(index)
            } else {
                queues.send.complete(index)
            };
            return Some(Completion { id, cqe });
        }
        None
    }

    /// Polls up to `max` completions and gives each to `take`. Returns how many.
    pub(crate) fn poll(&self, max: usize, mut take: impl FnMut(usize, &Completion)) -> usize {
        let mut state = self.state.lock();
        let before = state.consumer;
        let mut n = 0;
        while n < max {
            let Some(completion) = Self::next(&mut state) else {
                break;
            };
            take(n, &completion);
            n += 1;
        }
        if state.consumer != before {
            state.consume();
        }
        n
    }

    /// Takes the first completion of a batch, and holds the queue until [`Cq::end`]; if there is
    /// none, nothing is held.
    pub(crate) fn start(&self) -> Option<Completion> {
        let mut state = self.state.lock();
        let before = state.consumer;
        let completion = Self::next(&mut state);
        if completion.is_some() {
            state.keep();
        } else if state.consumer != before {
            state.consume();
        }
        completion
    }

    /// Takes the next completion of a batch.
    pub(crate) fn advance(&self) -> Option<Completion> {
        Self::next(&mut self.state.resume())
    }

    /// Ends a batch.
    pub(crate) fn end(&self) {
        self.state.resume().consume();
        self.state.release();
    }

    /// Asks for an event at the next completion, or the next solicited or failed one, which those that
    /// are there are not (IBTA vol. 1, 11.4.2.2): a program that has been told of them and reads them
    /// later must not be told again.
    pub(crate) fn arm(&self, solicited_only: bool) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.from = state.written_end();
        state.sequence = state.sequence.wrapping_add(1);
        let kind = if solicited_only {
            ArmKind::Solicited
        } else {
            ArmKind::Any
        };
        let arm = Arm {
            index: state.from,
            kind,
            sequence: state.sequence,
        };
        self.slot.ring(arm.to_wire());
        Ok(())
    }
}
