// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The link layer of a port: queues by virtual lane, arbitration, credits.

use crate::agent::VL15;
use crate::arbiter::Arbiter;
use crate::capture::Capture;
use crate::counters::Counters;
use crate::credit::{blocks, FlowControl, Receiver, Sender};
use crate::link::End;
use crate::mad::{LinkState, MULTICAST_BASE, PERMISSIVE_LID};
use crate::node;
use crate::wire::Frame;
use std::collections::VecDeque;

/// Data VLs of a port.
pub const DATA_VLS: usize = 8;

/// Blocks of the receive buffer of each data VL: 64 KiB.
const BUFFER: u16 = 1024;

/// Packets of VL 15 that wait; it has no flow control and drops (IBTA 7.6.3).
const VL15_PACKETS: usize = 128;

/// A count that a link has lost is made good after this time, in nanoseconds.
const REFRESH: u64 = 1_000_000;

/// The place in the receive buffer of a switch that a packet takes until it has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hold {
    pub input: u8,
    pub vl: u8,
    pub blocks: u16,
    /// Copies of one multicast packet share a place; the last one frees it.
    pub group: Option<u64>,
}

/// A packet that waits to be sent.
#[derive(Debug)]
pub(super) struct Queued {
    pub packet: Frame,
    pub hold: Option<Hold>,
    /// When it came into the node.
    pub arrived: u64,
}

/// A port of an HCA or of a switch.
#[derive(Debug)]
pub(super) struct LinkPort {
    /// Link and end.
    pub wire: Option<(usize, End)>,
    /// Whether management has not switched it off.
    pub enabled: bool,
    pub capture: Option<Capture>,
    /// What this layer counts itself; the link counts the rest.
    pub counters: Counters,
    queues: [VecDeque<Queued>; 16],
    /// Blocks of the data that waits.
    waiting: usize,
    senders: [Sender; DATA_VLS],
    receivers: [Receiver; DATA_VLS],
    arbiter: Arbiter,
    state: LinkState,
    /// Data VLs in operation.
    vls: u8,
    /// How long a packet may be the first of its queue, in nanoseconds.
    head_life: Option<u64>,
    /// Since when the first packet of a queue is that.
    head_since: [u64; 16],
    /// How many packets of a VL may grow too old one after the other before it stalls.
    stall_count: u8,
    /// How many of a data VL have, since one was sent.
    overdue: [u8; DATA_VLS],
    /// Until when a data VL that has stalled drops everything.
    stalled_until: [Option<u64>; DATA_VLS],
    /// VLs whose peer is to get a message; one bit each.
    due: u16,
    /// VLs on which data has been sent since their last message.
    unreported: u16,
    refresh_at: Option<u64>,
}

impl LinkPort {
    pub fn new() -> Self {
        Self {
            wire: None,
            enabled: true,
            capture: None,
            counters: Counters::default(),
            queues: Default::default(),
            waiting: 0,
            senders: [Sender::default(); DATA_VLS],
            receivers: [Receiver::new(BUFFER); DATA_VLS],
            arbiter: Arbiter::default(),
            state: LinkState::Down,
            vls: 1,
            head_life: None,
            head_since: [0; 16],
            stall_count: 0,
            overdue: [0; DATA_VLS],
            stalled_until: [None; DATA_VLS],
            due: 0,
            unreported: 0,
            refresh_at: None,
        }
    }

    /// Takes over what subnet management has set.
    pub fn configure(&mut self, port: &node::Port) {
        self.state = port.state();
        self.vls = port.info.operational_vls();
        self.arbiter = Arbiter::new(&port.arbitration, port.info.vl_high_limit);
        self.head_life = life(port.info.hoq_life());
        self.stall_count = port.info.vl_stall_count();
    }

    /// Returns whether nothing waits, the receive buffer is empty, and the peer's is granted whole.
    #[cfg(test)]
    pub fn is_quiet(&self) -> bool {
        let empty = self.receivers.iter().all(|receiver| receiver.used() == 0);
        let granted = self
            .senders
            .iter()
            .all(|s| s.may_send(BUFFER) && !s.may_send(BUFFER + 1));
        self.waiting == 0 && empty && granted
    }

    /// Starts flow control anew on a link that has come up.
    pub fn link_up(&mut self) {
        self.senders = [Sender::default(); DATA_VLS];
        self.receivers.iter_mut().for_each(Receiver::restart);
        self.due = (1 << DATA_VLS) - 1;
        (self.unreported, self.refresh_at) = (0, None);
    }

    /// Drops what waits to be sent; returns the places that it took.
    pub fn flush(&mut self) -> Vec<Hold> {
        let dropped: Vec<Queued> = self.queues.iter_mut().flat_map(std::mem::take).collect();
        self.counters.xmit_discards += dropped.len() as u64;
        self.waiting = 0;
        self.overdue = [0; DATA_VLS];
        self.stalled_until = [None; DATA_VLS];
        (self.due, self.unreported, self.refresh_at) = (0, 0, None);
        dropped.into_iter().filter_map(|q| q.hold).collect()
    }

    /// Blocks of data that wait to be sent.
    pub fn waiting(&self) -> usize {
        self.waiting
    }

    /// Returns whether data of a VL may leave the port.
    pub fn carries(&self, vl: u8) -> bool {
        self.state == LinkState::Active && vl < self.vls && usize::from(vl) < DATA_VLS
    }

    /// Puts a packet into the queue of a VL that the port carries.
    pub fn enqueue_data(&mut self, vl: u8, mut queued: Queued, now: u64) {
        queued.packet.set_vl(vl);
        let queue = &mut self.queues[usize::from(vl)];
        if queue.is_empty() {
            self.head_since[usize::from(vl)] = now;
        }
        self.waiting += usize::from(blocks(&queued.packet));
        queue.push_back(queued);
    }

    /// Puts a packet into the queue of VL 15, if there is room.
    pub fn enqueue_management(&mut self, packet: Frame, now: u64) {
        let queue = &mut self.queues[usize::from(VL15)];
        if self.state == LinkState::Down || queue.len() >= VL15_PACKETS {
            self.counters.vl15_dropped += 1;
            return;
        }
        queue.push_back(Queued {
            packet,
            hold: None,
            arrived: now,
        });
    }

    /// Takes the packet that is to be sent next.
    pub fn next(&mut self, now: u64) -> Option<Queued> {
        if let Some(queued) = self.queues[usize::from(VL15)].pop_front() {
            return Some(queued);
        }
        if self.waiting == 0 {
            return None;
        }
        let (queues, senders, stalled) = (&self.queues, &self.senders, &self.stalled_until);
        let ready = |vl: u8| {
            let vl = usize::from(vl);
            let first = queues[vl].front().filter(|_| vl < DATA_VLS);
            first.is_some_and(|q| {
                senders[vl].may_send(blocks(&q.packet))
                    && stalled[vl].is_none_or(|until| now >= until)
            })
        };
        let Some(vl) = self.arbiter.next(ready) else {
            self.counters.xmit_wait += 1;
            return None;
        };
        let queued = self.pop(vl, now)?;
        self.overdue[usize::from(vl)] = 0;
        let size = blocks(&queued.packet);
        self.arbiter.sent(queued.packet.wire_len());
        self.senders[usize::from(vl)].sent(size);
        self.unreported |= 1 << vl;
        self.refresh_at.get_or_insert(now.saturating_add(REFRESH));
        Some(queued)
    }

    fn pop(&mut self, vl: u8, now: u64) -> Option<Queued> {
        let queued = self.queues[usize::from(vl)].pop_front()?;
        self.head_since[usize::from(vl)] = now;
        self.waiting -= usize::from(blocks(&queued.packet));
        Some(queued)
    }

    /// Takes a packet that has waited for too long: at the head, or in a switch whose packets live `life` nanoseconds
    /// (IBTA 18.2.5.4). A VL on which VLStallCount packets in a row were too old at the head drops all for eight such times.
    pub fn expired(&mut self, now: u64, life: Option<u64>) -> Option<Queued> {
        for vl in 0..DATA_VLS as u8 {
            let index = usize::from(vl);
            let Some(arrived) = self.queues[index].front().map(|first| first.arrived) else {
                continue;
            };
            let over = |since: u64, life: Option<u64>| {
                life.is_some_and(|life| now.saturating_sub(since) > life)
            };
            let stalled = self.stalled_until[index].is_some_and(|until| now < until);
            let too_old_at_head = over(self.head_since[index], self.head_life);
            if !stalled && too_old_at_head {
                self.stalled_until[index] = self.note_overdue(index, now);
            }
            if stalled || too_old_at_head || over(arrived, life) {
                self.counters.xmit_discards += 1;
                return self.pop(vl, now);
            }
        }
        None
    }

    /// Counts a packet that was too old at the head of its queue. Returns until when its VL is now stalled, if it is.
    fn note_overdue(&mut self, vl: usize, now: u64) -> Option<u64> {
        const STALL_LIVES: u64 = 8;

        self.overdue[vl] = self.overdue[vl].saturating_add(1);
        if self.stall_count == 0 || self.overdue[vl] < self.stall_count {
            return None;
        }
        self.overdue[vl] = 0;
        let stall = self.head_life?.saturating_mul(STALL_LIVES);
        Some(now.saturating_add(stall))
    }

    /// Takes a packet of a data VL into the receive buffer. Returns its size; [`None`] if there is no room.
    pub fn receive(&mut self, vl: u8, packet: &Frame) -> Option<u16> {
        let size = blocks(packet);
        let room = self.receivers.get_mut(usize::from(vl))?.arrived(size);
        if !room {
            // Only a link that duplicates or reorders brings more than was granted.
            self.counters.rcv_errors += 1;
            self.due |= 1 << vl;
            return None;
        }
        Some(size)
    }

    /// Frees a place in the receive buffer.
    pub fn free(&mut self, vl: u8, size: u16) {
        self.receivers[usize::from(vl)].freed(size);
        self.due |= 1 << vl;
    }

    /// Takes a flow control message.
    pub fn message_in(&mut self, message: &FlowControl) {
        let vl = usize::from(message.vl);
        if vl < DATA_VLS {
            self.senders[vl].limit(message);
            if self.receivers[vl].resync(message) {
                // What was lost may be granted again.
                self.due |= 1 << vl;
            }
        }
    }

    /// Takes a message that is to be sent.
    pub fn message_out(&mut self, now: u64) -> Option<FlowControl> {
        if self.refresh_at.is_some_and(|at| at <= now) {
            self.due |= self.unreported;
            self.refresh_at = None;
        }
        if self.due == 0 {
            return None;
        }
        // CAST: Below 16.
        let vl = self.due.trailing_zeros() as u8;
        self.due &= self.due - 1;
        self.unreported &= !(1 << vl);
        if self.unreported == 0 {
            self.refresh_at = None;
        }
        Some(FlowControl {
            vl,
            fctbs: self.senders[usize::from(vl)].fctbs(),
            fccl: self.receivers[usize::from(vl)].fccl(),
        })
    }

    /// Returns when something is to be done though nothing has come; `life` as in [`LinkPort::expired`].
    pub fn deadline(&self, life: Option<u64>) -> Option<u64> {
        let mut next = self.refresh_at;
        if self.head_life.is_none() && life.is_none() {
            return next;
        }
        for (queue, &since) in self.queues[..DATA_VLS].iter().zip(&self.head_since) {
            let Some(first) = queue.front() else { continue };
            let ends = [
                self.head_life.map(|life| since.saturating_add(life)),
                life.map(|life| first.arrived.saturating_add(life)),
            ];
            let over = ends.into_iter().flatten().map(|end| end.saturating_add(1));
            next = next.into_iter().chain(over).min();
        }
        next
    }

    /// Writes a packet that passes into the capture; one that cannot be written ends.
    pub fn record(&mut self, now: u64, packet: &mut Frame) {
        let Some(open) = &mut self.capture else {
            return;
        };
        if let Err(error) = open.write(now, packet.wire()) {
            log::error!("a capture ends: {error}");
            self.capture = None;
        }
    }

    /// Counts a packet that is sent or received, if it is a multicast one.
    pub fn count_multicast(&mut self, packet: &Frame, sent: bool) {
        let is_multicast = packet
            .lrh()
            .is_some_and(|lrh| (MULTICAST_BASE..PERMISSIVE_LID).contains(&lrh.dlid.get()));
        let (sent, received) = (is_multicast && sent, is_multicast && !sent);
        self.counters.multicast_xmit_pkts += u64::from(sent);
        self.counters.multicast_rcv_pkts += u64::from(received);
    }
}

/// Returns the duration of a coded lifetime in nanoseconds; [`None`] if it is infinite (IBTA 14.2.5.4, 14.2.5.6).
pub(super) fn life(code: u8) -> Option<u64> {
    (code <= 19).then(|| 4096 << code)
}
