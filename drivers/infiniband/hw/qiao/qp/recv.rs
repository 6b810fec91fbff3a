// SPDX-License-Identifier: GPL-2.0

//! The receive queue of a queue pair of the kernel.

use super::{
    kernel::{
        Done,
        Posting, //
    },
    send::segment, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use qiao_hw::{
    queue::QpLayout,
    ring::Window,
    wqe::{
        BlockWriter,
        RecvCtrl,
        MIN_RECV_STRIDE, //
    }, //
};
use rdma::{
    dma::{
        Ring,
        RingMemory, //
    },
    QpCap,
    RecvWr,
    WcOpcode, //
};
use zerocopy::IntoBytes;

/// What the ring is written in: each request has a power of two of them.
type Unit = [u8; MIN_RECV_STRIDE];

/// Log2 of the bytes of a unit.
const LOG_UNIT: u8 = MIN_RECV_STRIDE.trailing_zeros() as u8;

/// A request that was posted.
#[derive(Clone, Copy)]
struct Request {
    id: u64,
    /// Bytes of its memory.
    room: u64,
}

/// The receive queue of a queue pair of the kernel.
pub(super) struct RecvQueue {
    ring: Ring<Unit>,
    /// Log2 of the units of a request.
    log_units: u8,
    window: Window,
    requests: KVVec<Request>,
    posting: Posting,
    max_sge: usize,
}

impl RecvQueue {
    pub(super) fn new(memory: &Arc<RingMemory>, cap: &QpCap, layout: &QpLayout) -> Result<Self> {
        let size = layout.rq();
        let stride = layout.rings().log_rq_stride;
        let log_units = stride.checked_sub(LOG_UNIT).ok_or(EINVAL)?;
        let none = Request { id: 0, room: 0 };
        Ok(Self {
            ring: Ring::within(
                memory.clone(),
                layout.recv_offset(0),
                size.log() + log_units,
            )?,
            log_units,
            window: Window::new(size),
            requests: KVVec::from_elem(none, size.entries() as usize, GFP_KERNEL)?,
            posting: Posting::Refused,
            max_sge: cap.max_recv_sge as usize,
        })
    }

    /// Returns the free-running index behind the last request.
    pub(super) fn producer(&self) -> u32 {
        self.window.head()
    }

    pub(super) fn set_posting(&mut self, posting: Posting) {
        self.posting = posting;
    }

    /// Empties the queue, whose indices start at zero again.
    pub(super) fn reset(&mut self) {
        self.window = Window::new(self.window.size());
    }

    /// Returns whether a request is not done.
    pub(super) fn is_used(&self) -> bool {
        self.window.head() != self.window.tail()
    }

    /// Puts a request into the ring.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the request is malformed, larger than the consumer has said, or not allowed in
    /// this state; `ENOMEM` if there is no room.
    pub(super) fn post(&mut self, wr: &RecvWr<'_>) -> Result {
        let sges = wr.sges()?;
        if self.posting == Posting::Refused || sges.len() > self.max_sge {
            return Err(EINVAL);
        }
        let index = self.window.head();
        let slot = self.window.size().slot(index);
        if self.window.free() == 0 {
            return Err(ENOMEM);
        }
        let ctrl = RecvCtrl {
            num_sge: u32::try_from(sges.len())?.into(),
            index: index.into(),
            rsvd: 0.into(),
        };
        let ring = &self.ring;
        let mut out = BlockWriter::new(slot << self.log_units, |at, unit: &Unit| {
            ring.write(at, unit)
        });
        out.push(ctrl.as_bytes());
        sges.iter()
            .for_each(|sge| out.push(segment(sge).as_bytes()));
        out.finish();

        *self.requests.get_mut(slot as usize).ok_or(EINVAL)? = Request {
            id: wr.id(),
            room: sges.iter().map(|sge| u64::from(sge.length())).sum(),
        };
        self.window.take(1).map(drop).ok_or(ENOMEM)
    }

    /// Frees the request at `index`, which must be the oldest since each has a completion; returns
    /// what the consumer knows it by, and the bytes of its memory.
    pub(super) fn complete(&mut self, index: u32) -> Option<(u64, u64)> {
        if index != self.window.tail() || !self.window.holds(index) {
            return None;
        }
        let slot = self.window.size().slot(index) as usize;
        let request = *self.requests.get(slot)?;
        self.window.release(index.wrapping_add(1));
        Some((request.id, request.room))
    }

    /// Frees the oldest request.
    pub(super) fn complete_next(&mut self) -> Option<Done> {
        let (id, _) = self.complete(self.window.tail())?;
        Some(Done {
            id,
            opcode: WcOpcode::Recv,
        })
    }
}
