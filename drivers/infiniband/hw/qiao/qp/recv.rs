// SPDX-License-Identifier: GPL-2.0

//! The receive queue of a queue pair of the kernel.

use super::kernel::{
    Done,
    Posting, //
};
use crate::recv::{
    Places,
    Request, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};
use qiao_hw::{
    queue::RecvRing,
    ring::Window, //
};
use rdma::{
    dma::RingMemory,
    RecvWr,
    WcOpcode, //
};

/// The receive queue of a queue pair of the kernel.
pub(super) struct RecvQueue {
    places: Places,
    window: Window,
    requests: KVVec<Request>,
    posting: Posting,
}

impl RecvQueue {
    pub(super) fn new(memory: &Arc<RingMemory>, layout: RecvRing, max_sge: u32) -> Result<Self> {
        let size = layout.size();
        let none = Request { id: 0, room: 0 };
        Ok(Self {
            places: Places::new(memory, layout, max_sge)?,
            window: Window::new(size),
            requests: KVVec::from_elem(none, size.entries() as usize, GFP_KERNEL)?,
            posting: Posting::Refused,
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
        if self.posting == Posting::Refused {
            return Err(EINVAL);
        }
        let (request, sges) = self.places.check(wr)?;
        let index = self.window.head();
        let slot = self.window.size().slot(index);
        if self.window.free() == 0 {
            return Err(ENOMEM);
        }
        self.places.write(slot, index, sges)?;
        *self.requests.get_mut(slot as usize).ok_or(EINVAL)? = request;
        self.window.take(1).map(drop).ok_or(ENOMEM)
    }

    /// Frees the request at `index`, which must be the oldest since each has a completion.
    pub(super) fn complete(&mut self, index: u32) -> Option<Request> {
        if index != self.window.tail() || !self.window.holds(index) {
            return None;
        }
        let slot = self.window.size().slot(index) as usize;
        let request = *self.requests.get(slot)?;
        self.window.release(index.wrapping_add(1));
        Some(request)
    }

    /// Frees the oldest request.
    pub(super) fn complete_next(&mut self) -> Option<Done> {
        let request = self.complete(self.window.tail())?;
        Some(Done {
            id: request.id,
            opcode: WcOpcode::Recv,
        })
    }
}
