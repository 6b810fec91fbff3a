// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Credit-based flow control of one virtual lane (IBTA 7.9.4).
//!
//! The sender counts the blocks that it has sent ever (FCTBS) and may send up to a limit (FCCL) that the receiver grants: what
//! it has received ever (ABR) and the room that it has. Both counts travel in flow control messages; FCTBS makes good what the
//! link has lost. Counts wrap at 4096.

use crate::wire::Frame;

/// Bytes of a block.
pub const BLOCK: usize = 64;

/// Counts wrap here.
const MODULUS: u16 = 4096;

/// Most blocks that a receiver grants at a time.
pub const MAX_GRANT: u16 = 2048;

/// Returns the blocks of a packet.
pub fn blocks(packet: &Frame) -> u16 {
    // CAST: A packet is shorter than 8 KiB.
    packet.wire_len().div_ceil(BLOCK) as u16
}

/// A flow control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControl {
    /// Virtual lane.
    pub vl: u8,
    /// Blocks that the sender of this message has sent.
    pub fctbs: u16,
    /// Limit up to which its receiver may send.
    pub fccl: u16,
}

/// The sending side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    fctbs: u16,
    /// Nothing may be sent before the first message.
    fccl: u16,
}

impl Sender {
    /// Returns whether `blocks` may be sent now.
    pub fn may_send(&self, blocks: u16) -> bool {
        let after = (self.fctbs + blocks) % MODULUS;
        (self.fccl + MODULUS - after) % MODULUS <= MAX_GRANT
    }

    /// Notes that `blocks` have been sent.
    pub fn sent(&mut self, blocks: u16) {
        self.fctbs = (self.fctbs + blocks) % MODULUS;
    }

    /// Takes a message.
    pub fn limit(&mut self, message: &FlowControl) {
        self.fccl = message.fccl % MODULUS;
    }

    /// Returns the count for a message.
    pub fn fctbs(&self) -> u16 {
        self.fctbs
    }
}

/// The receiving side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    abr: u16,
    used: u16,
    capacity: u16,
}

impl Receiver {
    /// Makes a buffer of `capacity` blocks.
    pub fn new(capacity: u16) -> Self {
        Self {
            abr: 0,
            used: 0,
            capacity,
        }
    }

    /// Takes a packet of `blocks` in. Returns false if there is no room, which a sender that keeps to its limit never sees.
    #[must_use]
    pub fn arrived(&mut self, blocks: u16) -> bool {
        if self.used + blocks > self.capacity {
            return false;
        }
        self.used += blocks;
        self.abr = (self.abr + blocks) % MODULUS;
        true
    }

    /// Starts to count anew, as on a new link; what is in the buffer stays there.
    pub fn restart(&mut self) {
        self.abr = 0;
    }

    /// Notes that a packet of `blocks` has left the buffer.
    pub fn freed(&mut self, blocks: u16) {
        self.used = self.used.saturating_sub(blocks);
    }

    /// Takes a message: what has been sent and is not here is lost. Returns whether there was such a loss, after which the
    /// sender is to get a new limit.
    pub fn resync(&mut self, message: &FlowControl) -> bool {
        let before = std::mem::replace(&mut self.abr, message.fctbs % MODULUS);
        before != self.abr
    }

    /// Returns the limit for a message.
    pub fn fccl(&self) -> u16 {
        let room = (self.capacity - self.used).min(MAX_GRANT);
        (self.abr + room) % MODULUS
    }

    /// Returns the blocks in use.
    pub fn used(&self) -> u16 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    enum OnWire {
        Packet(u16),
        Message(FlowControl),
    }

    proptest! {
        /// Whatever is lost and however slow the receiver is, the buffer never overflows; and when all is quiet the whole
        /// buffer is granted again.
        #[test]
        fn no_overflow_and_no_leak(
            capacity in 66u16..3000, steps in prop::collection::vec((0u8..5, 1u16..67, any::<bool>()), 1..600),
        ) {
            let (mut tx, mut rx) = (Sender::default(), Receiver::new(capacity));
            let mut wire = VecDeque::new();
            let mut buffered = VecDeque::new();
            let message = |tx: &Sender| OnWire::Message(FlowControl { vl: 0, fctbs: tx.fctbs(), fccl: 0 });
            let grant = |rx: &Receiver, tx: &mut Sender| tx.limit(&FlowControl { vl: 0, fctbs: 0, fccl: rx.fccl() });
            grant(&rx, &mut tx);
            for (what, blocks, lost) in steps {
                match what {
                    0 | 1 if tx.may_send(blocks) => {
                        tx.sent(blocks);
                        if !lost {
                            wire.push_back(OnWire::Packet(blocks));
                        }
                    }
                    2 => wire.push_back(message(&tx)),
                    3 => match wire.pop_front() {
                        Some(OnWire::Packet(blocks)) => {
                            prop_assert!(rx.arrived(blocks));
                            buffered.push_back(blocks);
                        }
                        Some(OnWire::Message(m)) => {
                            rx.resync(&m);
                        }
                        None => grant(&rx, &mut tx),
                    },
                    4 => if let Some(blocks) = buffered.pop_front() {
                        rx.freed(blocks);
                    },
                    _ => {}
                }
            }
            for arrival in wire {
                match arrival {
                    OnWire::Packet(blocks) => {
                        prop_assert!(rx.arrived(blocks));
                        buffered.push_back(blocks);
                    }
                    OnWire::Message(m) => {
                        rx.resync(&m);
                    }
                }
            }
            for blocks in buffered {
                rx.freed(blocks);
            }
            rx.resync(&FlowControl { vl: 0, fctbs: tx.fctbs(), fccl: 0 });
            grant(&rx, &mut tx);
            let room = capacity.min(MAX_GRANT);
            prop_assert!(tx.may_send(room));
            prop_assert!(!tx.may_send(room + 1));
        }
    }

    #[test]
    fn nothing_is_sent_before_the_first_grant() {
        assert!(!Sender::default().may_send(1));
    }
}
