// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The event queue.
//!
//! Nearly all events of a fabric lie a handful of constant delays ahead (serialisation and
//! propagation of full packets and of acknowledgements). Events of one delay are pushed in time
//! order, so each such delay has a FIFO, and the earliest head wins. All others go to a radix heap,
//! which moves every event a few times through memory in sequence and never sifts.
//! Events of equal time leave in the order in which they were pushed.

use std::collections::VecDeque;

/// Simulated time in picoseconds.
pub type Time = u64;

/// No time.
pub const NEVER: Time = u64::MAX;

/// An event: what it means is up to the world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When.
    pub time: Time,
    order: u32,
    /// What.
    pub kind: u32,
    /// First operand.
    pub a: u32,
    /// Second operand.
    pub b: u32,
}

impl Entry {
    /// Whether `self` leaves before `other`; push order wraps.
    fn before(&self, other: &Self) -> bool {
        self.time < other.time
            || (self.time == other.time && (self.order.wrapping_sub(other.order) as i32) < 0)
    }
}

const SLOTS: usize = 256;

/// The queue.
pub struct EventQueue {
    now: Time,
    order: u32,
    heads: Vec<Time>,
    lanes: Vec<VecDeque<Entry>>,
    delays: Vec<Time>,
    slots: [u8; SLOTS],
    rest: RadixHeap,
    popped: u64,
}

impl EventQueue {
    /// A queue with a FIFO for each of `delays`, at most 250 of them.
    pub fn new(mut delays: Vec<Time>) -> Self {
        delays.sort_unstable();
        delays.dedup();
        let mut queue = Self {
            now: 0,
            order: 0,
            heads: Vec::new(),
            lanes: Vec::new(),
            delays: Vec::new(),
            slots: [u8::MAX; SLOTS],
            rest: RadixHeap::new(),
            popped: 0,
        };
        for delay in delays {
            let slot = &mut queue.slots[Self::slot(delay)];
            // Two delays in one slot: the second uses the heap, which is only slower.
            if *slot == u8::MAX && queue.lanes.len() < 16 {
                *slot = queue.lanes.len() as u8;
                queue.lanes.push(VecDeque::new());
                queue.heads.push(NEVER);
                queue.delays.push(delay);
            }
        }
        queue
    }

    fn slot(delay: Time) -> usize {
        (delay.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize
    }

    /// The time of the event that was popped last.
    pub fn now(&self) -> Time {
        self.now
    }

    /// Events popped so far.
    pub fn popped(&self) -> u64 {
        self.popped
    }

    /// Adds an event `delay` after now.
    #[inline]
    pub fn push(&mut self, delay: Time, kind: u32, a: u32, b: u32) {
        let time = self.now + delay;
        let entry = Entry {
            time,
            order: self.order,
            kind,
            a,
            b,
        };
        self.order = self.order.wrapping_add(1);
        let lane = self.slots[Self::slot(delay)] as usize;
        if lane < self.lanes.len() && self.delays[lane] == delay {
            if self.lanes[lane].is_empty() {
                self.heads[lane] = time;
            }
            self.lanes[lane].push_back(entry);
        } else {
            self.rest.push(entry);
        }
    }

    /// Takes the earliest event if it is not after `until`.
    #[inline]
    pub fn pop(&mut self, until: Time) -> Option<Entry> {
        let mut best = self.rest.earliest();
        let mut from = usize::MAX;
        let mut time = best.map_or(NEVER, |entry| entry.time);
        for (lane, &head) in self.heads.iter().enumerate() {
            if head > time || head == NEVER {
                continue;
            }
            let entry = self.lanes[lane][0];
            if best.is_none_or(|chosen| entry.before(&chosen)) {
                best = Some(entry);
                from = lane;
                time = head;
            }
        }
        let entry = best?;
        if entry.time > until {
            return None;
        }
        if from == usize::MAX {
            self.rest.pop();
        } else {
            self.lanes[from].pop_front();
            self.heads[from] = self.lanes[from].front().map_or(NEVER, |next| next.time);
        }
        self.now = entry.time;
        self.popped += 1;
        Some(entry)
    }
}

/// A monotone heap: bucket `i` holds the events whose time first differs from `last` in bit `i-1`.
struct RadixHeap {
    last: Time,
    buckets: Vec<Vec<Entry>>,
    occupied: u128,
    /// Next event of bucket 0, whose events all have time `last`.
    taken: usize,
    earliest: Option<Entry>,
}

impl RadixHeap {
    fn new() -> Self {
        Self {
            last: 0,
            buckets: (0..=64).map(|_| Vec::new()).collect(),
            occupied: 0,
            taken: 0,
            earliest: None,
        }
    }

    fn bucket(&self, time: Time) -> usize {
        (64 - (time ^ self.last).leading_zeros()) as usize
    }

    fn earliest(&self) -> Option<Entry> {
        self.earliest
    }

    fn push(&mut self, entry: Entry) {
        let bucket = self.bucket(entry.time);
        self.buckets[bucket].push(entry);
        self.occupied |= 1 << bucket;
        if self.earliest.is_none_or(|first| entry.before(&first)) {
            self.earliest = Some(entry);
        }
    }

    fn pop(&mut self) {
        let Some(first) = self.earliest else {
            return;
        };
        if self.occupied & 1 == 0 {
            self.spread(first.time);
        }
        self.taken += 1;
        if self.taken == self.buckets[0].len() {
            self.buckets[0].clear();
            self.taken = 0;
            self.occupied &= !1;
        }
        self.earliest = self.find();
    }

    /// Makes `time`, the earliest one, the reference. Order within a bucket is kept.
    fn spread(&mut self, time: Time) {
        let bucket = self.occupied.trailing_zeros() as usize;
        self.last = time;
        let mut moved = std::mem::take(&mut self.buckets[bucket]);
        self.occupied &= !(1 << bucket);
        for entry in moved.drain(..) {
            let target = self.bucket(entry.time);
            self.buckets[target].push(entry);
            self.occupied |= 1 << target;
        }
        self.buckets[bucket] = moved;
    }

    fn find(&self) -> Option<Entry> {
        if self.occupied & 1 == 1 {
            return Some(self.buckets[0][self.taken]);
        }
        let bucket = self.buckets.get(self.occupied.trailing_zeros() as usize)?;
        bucket
            .iter()
            .copied()
            .reduce(|first, next| if next.before(&first) { next } else { first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a sorted list, with pushes between pops.
        #[test]
        fn leaves_in_time_then_push_order(steps in prop::collection::vec((0u64..5000, 0usize..3), 1..400)) {
            let mut queue = EventQueue::new(vec![100, 1083]);
            let mut model: Vec<(Time, u32)> = Vec::new();
            for (id, &(delay, pops)) in steps.iter().enumerate() {
                let delay = match delay % 4 { 0 => 100, 1 => 1083, _ => delay };
                queue.push(delay, 0, id as u32, 0);
                model.push((queue.now() + delay, id as u32));
                for _ in 0..pops {
                    model.sort();
                    let got = queue.pop(NEVER).map(|entry| (entry.time, entry.a));
                    let want = if model.is_empty() { None } else { Some(model.remove(0)) };
                    prop_assert_eq!(got, want);
                }
            }
        }
    }

    #[test]
    fn nothing_leaves_after_the_limit() {
        let mut queue = EventQueue::new(vec![]);
        queue.push(10, 1, 2, 3);
        assert!(queue.pop(9).is_none());
        assert_eq!(
            queue.pop(10).map(|entry| (entry.kind, entry.a, entry.b)),
            Some((1, 2, 3))
        );
    }
}
