// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The doorbell slots that are bound to queues.
//!
//! A slot is *trapped*: each write of it comes as a message; or it is *polled*: it lies in memory that
//! the client maps, and [`Slots::poll`] finds what has changed. A queue cannot tell the one from the
//! other:
//!
//! - A slot is a state. Of several writes between two looks the last one is found, and that is the one
//!   that counts; the mailbox of trapped slots does the same.
//! - No write is lost. What is compared is the value in memory and the one last found, so a write stays
//!   to be found for as long as nobody looks. It cannot hide behind an equal value, because the value
//!   in memory and the one last found are both set to zero whenever the state of the queue is: when it
//!   is created, and when it enters and leaves RESET. The same keeps a value of a slot's former owner from
//!   ringing the next one.
//! - A request is in memory before its doorbell is seen. Software writes the one before the other; the
//!   load of a slot acquires.
//! - Doorbells come before later commands. CMDQ_PRODUCER is trapped in both modes, and whoever takes it
//!   from the mailbox looks at the slots after that and before executing: what was stored before
//!   CMDQ_PRODUCER was written is found. So no request that was posted before its queue pair is
//!   modified or destroyed is seen after it.
//! - Doorbells of different slots have no order among them. Trapped ones have, and nothing may rely on
//!   it (interface specification, section 4).

use crate::shared::Shared;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The queue that a doorbell slot belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotOwner {
    /// An event queue.
    Eq(u32),
    /// A completion queue.
    Cq(u32),
    /// A send queue.
    Send(u32),
    /// A receive queue.
    Recv(u32),
    /// A shared receive queue.
    Srq(u32),
}

#[derive(Debug)]
struct Bound {
    owner: SlotOwner,
    /// The value that was last found in memory.
    seen: u64,
}

/// The slots of an HCA.
#[derive(Debug)]
pub(super) struct Slots {
    shared: Arc<Shared>,
    bound: BTreeMap<u32, Bound>,
    count: u32,
    gone: bool,
}

impl Slots {
    /// Makes `count` slots that belong to nobody.
    pub fn new(shared: Arc<Shared>, count: u32) -> Self {
        Self {
            shared,
            bound: BTreeMap::new(),
            count,
            gone: false,
        }
    }

    /// Returns the number of slots.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Binds a slot; its value is zero then.
    pub fn bind(&mut self, slot: u32, owner: SlotOwner) {
        self.bound.insert(slot, Bound { owner, seen: 0 });
        self.zero(slot);
    }

    /// Releases a slot. What its owner wrote last is not there for the next one to read.
    pub fn unbind(&mut self, slot: u32) {
        self.zero(slot);
        self.bound.remove(&slot);
    }

    /// Releases all slots, at a reset.
    pub fn clear(&mut self) {
        self.gone = false;
        let bound = std::mem::take(&mut self.bound);
        bound.keys().for_each(|&slot| self.zero(slot));
    }

    /// Sets a slot to zero, as if it had just been bound.
    pub fn zero(&mut self, slot: u32) {
        if let Some(bound) = self.bound.get_mut(&slot) {
            bound.seen = 0;
        }
        if let Some(memory) = &self.shared.slots {
            // Commands name none but those that there are.
            let stored = memory.store(slot, 0);
            debug_assert!(stored.is_some());
        }
    }

    /// Returns whether a slot is bound.
    pub fn is_bound(&self, slot: u32) -> bool {
        self.bound.contains_key(&slot)
    }

    /// Returns the queue that a slot belongs to.
    pub fn owner(&self, slot: u32) -> Option<SlotOwner> {
        self.bound.get(&slot).map(|bound| bound.owner)
    }

    /// Returns whether there is anything to poll.
    pub fn is_polled(&self) -> bool {
        self.shared.slots.is_some() && !self.bound.is_empty() && !self.gone
    }

    /// Pulls the function. What is written until the reset at its return is lost, as trapped writes are.
    pub fn pull(&mut self) {
        self.gone = true;
    }

    /// Returns the slots whose value has changed since the last look, with their values.
    pub fn poll(&mut self) -> Vec<(u32, u64)> {
        let (Some(memory), false) = (&self.shared.slots, self.gone) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        for (&slot, bound) in &mut self.bound {
            let value = memory.load(slot).unwrap_or(bound.seen);
            if value != bound.seen {
                bound.seen = value;
                found.push((slot, value));
            }
        }
        found
    }
}
