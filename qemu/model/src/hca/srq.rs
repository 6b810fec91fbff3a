// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues.

use super::buffer::Buffer;
use super::rings::{received, Ring};
use crate::mem::Dma;
use crate::transport::RecvWqe;
use qiao_hw::queue::SrqLayout;

/// An order ring that names a request that there is not, or cannot be read: the queue has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    /// Doorbell slot.
    pub slot: u32,
    /// PD of the keys of its requests.
    pub pdn: u32,
    /// Whether it belongs to the kernel.
    pub kernel: bool,
    /// Number of queue pairs that use it.
    pub users: u32,
    /// Set once it has failed: no request is taken any more.
    pub failed: bool,
    /// Raise the event when there are fewer requests; 0 if it is not asked for.
    pub limit: u32,
    buffer: Buffer,
    layout: SrqLayout,
    max_sge: usize,
    order: Ring,
    /// Requests that were taken and not used.
    returned: Vec<RecvWqe>,
}

impl Srq {
    /// Makes a queue without requests.
    pub fn new(
        slot: u32,
        (pdn, kernel): (u32, bool),
        layout: SrqLayout,
        buffer: Buffer,
        max_sge: usize,
    ) -> Self {
        let offset = layout.order_offset(0) as u64;
        Self {
            slot,
            pdn,
            kernel,
            users: 0,
            failed: false,
            limit: 0,
            buffer,
            order: Ring::new(offset, layout.requests().size(), size_of::<u32>()),
            layout,
            max_sge,
            returned: Vec::new(),
        }
    }

    /// Returns producer index, index of the next one, and the number of requests that have come back.
    pub fn indices(&self) -> (u32, u32, usize) {
        let (producer, next) = self.order.indices();
        (producer, next, self.returned.len())
    }

    /// Returns the pages that the buffer keeps.
    pub fn pages(&self) -> usize {
        self.buffer.pages()
    }

    /// Returns how many requests there can be.
    pub fn entries(&self) -> u32 {
        self.layout.requests().size().entries()
    }

    /// Takes the value of the slot; returns false if it cannot be a producer index.
    pub fn ring(&mut self, value: u64) -> bool {
        self.order.set_producer(value)
    }

    /// Takes back the request for an event if it is fulfilled, which this returns.
    pub fn take_event(&mut self) -> bool {
        // CAST: Requests that have come back are among the entries.
        let waiting = self.order.waiting() + self.returned.len() as u32;
        let below = !self.failed && waiting < self.limit;
        if below {
            self.limit = 0;
        }
        below
    }

    /// Takes the next request; [`None`] if there is none.
    ///
    /// # Errors
    ///
    /// If what says which is the next cannot be true or read.
    pub fn next(&mut self, dma: &Dma) -> Result<Option<RecvWqe>, Broken> {
        if let Some(wqe) = self.returned.pop() {
            return Ok(Some(wqe));
        }
        let Some(index) = self.order.take() else {
            return Ok(None);
        };
        let mut word = [0; size_of::<u32>()];
        self.order
            .read(dma, &self.buffer, index, &mut word)
            .map_err(|_| Broken)?;
        let number = u32::from_le_bytes(word);
        if number >= self.entries() {
            return Err(Broken);
        }
        let requests = self.layout.requests();
        let mut bytes = vec![0; 1 << requests.log_stride()];
        let at = requests.offset(number) as u64;
        let fetched = self.buffer.read(dma, at, &mut bytes);
        let fetched = fetched.map(|()| bytes.as_slice());
        Ok(Some(received(number, fetched, index, self.max_sge)))
    }

    /// Takes a request back that was not used: it is the next one.
    pub fn put_back(&mut self, wqe: RecvWqe) {
        self.returned.push(wqe);
    }
}
