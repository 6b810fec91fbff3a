// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What the library remembers of the requests in a ring.

use qiao_hw::ring::RingSize;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Cookies of the requests in one ring, and where the ring is free again.
pub(crate) struct Tracker {
    size: RingSize,
    ids: Box<[AtomicU64]>,
    /// Free-running index behind the request that starts at a slot.
    ends: Box<[AtomicU32]>,
    /// Free-running index before which all is free.
    tail: AtomicU32,
}

impl Tracker {
    pub(crate) fn new(size: RingSize) -> Self {
        let n = size.entries() as usize;
        Self {
            size,
            ids: (0..n).map(|_| AtomicU64::new(0)).collect(),
            ends: (0..n).map(|_| AtomicU32::new(0)).collect(),
            tail: AtomicU32::new(0),
        }
    }

    /// Notes a request from block `index` to before `end`.
    pub(crate) fn post(&self, index: u32, end: u32, id: u64) {
        let slot = self.size.slot(index) as usize;
        self.ids[slot].store(id, Ordering::Relaxed);
        self.ends[slot].store(end, Ordering::Relaxed);
    }

    /// Returns how much of the ring is free when the next request starts at `head`.
    pub(crate) fn free(&self, head: u32) -> u32 {
        let used = head.wrapping_sub(self.tail.load(Ordering::Acquire));
        self.size.entries().saturating_sub(used)
    }

    /// Empties the ring; indices start at zero again.
    pub(crate) fn reset(&self) {
        self.tail.store(0, Ordering::Release);
    }

    /// Frees the request at `index` and all before it; returns its cookie.
    pub(crate) fn complete(&self, index: u32) -> u64 {
        let slot = self.size.slot(index) as usize;
        let id = self.ids[slot].load(Ordering::Relaxed);
        let end = self.ends[slot].load(Ordering::Relaxed);
        self.tail.store(end, Ordering::Release);
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_frees_the_requests_before_it() {
        let t = Tracker::new(RingSize::from_log(2).unwrap());
        t.post(u32::MAX, 1, 7);
        t.post(1, 2, 8);
        t.tail.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(t.free(2), 1);
        assert_eq!(t.complete(1), 8);
        assert_eq!(t.free(2), 4);
    }
}
