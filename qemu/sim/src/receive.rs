// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The receiving side of hosts, and what senders do with the answers.

use qiao_cc::{most_loaded, Event};

use crate::host::Flow;
use crate::queue::{Time, NEVER};
use crate::switch::PAUSE_BYTES;
use crate::world::{kind, Kind, Packet, Slow, World};

/// Shortest time between two NAKs for the same gap.
const NAK_INTERVAL: Time = 500_000_000;
/// Retransmission timeout; the nearest Local Ack Timeout of InfiniBand is 1.05 ms.
const TIMEOUT: Time = 1_048_576_000;
/// Bytes in the buffer of a slow host from which it pauses its link, and below which it resumes:
/// few, so that a slow host is felt by the fabric at once.
const PAUSE_AT: u64 = 16 << 10;
const RESUME_AT: u64 = 8 << 10;

impl World {
    /// Takes a packet that is for `host`.
    pub fn receive(&mut self, host: u32, index: u32) {
        let packet = self.packets[index as usize];
        let flow = &self.flows[packet.flow as usize];
        if flow.generation != packet.generation {
            if packet.kind == Kind::Data {
                self.return_credits(self.hosts[host as usize].port, u64::from(packet.size));
            }
            self.free(index);
            return;
        }
        match packet.kind {
            Kind::Data if self.config.slow.is_some_and(|slow| slow.host == host) => {
                self.buffer(host, index);
            }
            Kind::Data => self.receive_data(host, index),
            _ => self.receive_answer(index, &packet),
        }
    }

    /// Puts a packet into the buffer of a slow host.
    fn buffer(&mut self, host: u32, index: u32) {
        let size = u64::from(self.packets[index as usize].size);
        let slow = &mut self.hosts[host as usize];
        slow.waiting.push_back(index);
        slow.waiting_bytes += size;
        let first = slow.waiting.len() == 1;
        let full = slow.waiting_bytes > PAUSE_AT && !slow.pausing && self.config.credits.is_none();
        if full {
            slow.pausing = true;
            self.pause_link(host, Kind::Pause);
        }
        if first {
            self.take_next(host);
        }
    }

    fn take_next(&mut self, host: u32) {
        let Some(Slow { percent, stop, .. }) = self.config.slow else {
            return;
        };
        let Some(&index) = self.hosts[host as usize].waiting.front() else {
            return;
        };
        let port = &self.ports[self.hosts[host as usize].port as usize];
        let size = u64::from(self.packets[index as usize].size);
        let now = self.now();
        let stopped = match stop {
            Some((from, length)) if (from..from + length).contains(&now) => from + length - now,
            _ => 0,
        };
        let time = stopped + size * port.byte_ps * 100 / percent;
        self.events.push(time, kind::TAKEN, host, 0);
    }

    /// The memory of a slow host has taken its first packet.
    pub fn packet_taken(&mut self, host: u32) {
        let slow = &mut self.hosts[host as usize];
        let Some(index) = slow.waiting.pop_front() else {
            return;
        };
        slow.waiting_bytes -= u64::from(self.packets[index as usize].size);
        if slow.pausing && slow.waiting_bytes < RESUME_AT {
            slow.pausing = false;
            self.pause_link(host, Kind::Resume);
        }
        self.receive_data(host, index);
        self.take_next(host);
    }

    /// Sends a pause frame, which MAC control lets overtake everything.
    fn pause_link(&mut self, host: u32, kind: Kind) {
        let port = &self.ports[self.hosts[host as usize].port as usize];
        let time = self.config.tx_time(port, u32::from(PAUSE_BYTES)) + port.delay;
        let peer = port.peer;
        self.counters.pauses += u64::from(kind == Kind::Pause);
        let frame = self.alloc(Packet {
            size: PAUSE_BYTES,
            kind,
            ..Packet::default()
        });
        self.events.push(time, kind::ARRIVE, peer, frame);
    }

    fn receive_data(&mut self, host: u32, index: u32) {
        let now = self.now();
        let packet = self.packets[index as usize];
        self.return_credits(self.hosts[host as usize].port, u64::from(packet.size));
        let selective = self.config.selective;
        let reorders = self.config.adaptive;
        let flow = &mut self.flows[packet.flow as usize];
        let before = flow.expected;
        let mut missing = 0;
        let answer = if packet.seq == flow.expected {
            flow.expected += u64::from(packet.payload);
            flow.take_ahead(self.config.mtu);
            Kind::Ack
        } else if packet.seq > flow.expected && selective {
            flow.ahead.insert(packet.seq);
            if !reorders {
                let first = flow.ahead.first().copied().unwrap_or(packet.seq);
                missing = (first - flow.expected).div_ceil(u64::from(self.config.mtu)) as u16;
            }
            Kind::Nak
        } else if packet.seq > flow.expected
            && (now >= flow.nak_at || flow.nak_for != flow.expected)
        {
            flow.nak_at = now + NAK_INTERVAL;
            flow.nak_for = flow.expected;
            missing = 1;
            Kind::Nak
        } else if packet.seq < flow.expected && self.config.loss > 0.0 {
            // A duplicate: the acknowledgement for it may be what was lost.
            Kind::Ack
        } else {
            self.free(index);
            return;
        };
        flow.marked |= packet.marked;
        // A notification does not wait for a packet that asks.
        let notifies = packet.marked && now >= flow.notify_at;
        if answer == Kind::Ack && !packet.ask && !notifies {
            self.free(index);
            self.feed(packet.flow, before);
            return;
        }
        let marked = std::mem::take(&mut flow.marked);
        let notify = marked && now >= flow.notify_at;
        if notify {
            flow.notify_at = now + self.config.notify_interval;
            self.counters.notifications += 1;
        }
        // The answer takes the packet's place, and with it the telemetry.
        let flow = &self.flows[packet.flow as usize];
        self.packets[index as usize] = Packet {
            seq: flow.expected,
            dst: flow.message.src,
            hash: flow.hash.rotate_left(16),
            size: self.config.ack_size() as u16,
            payload: missing,
            kind: answer,
            marked,
            notify,
            ..packet
        };
        let port = self.hosts[host as usize].port;
        self.enqueue(port, usize::from(!self.config.ack_class), index);
        self.feed(packet.flow, before);
        self.transmit_host(host);
    }

    fn receive_answer(&mut self, index: u32, packet: &Packet) {
        let now = self.now();
        let flow = &mut self.flows[packet.flow as usize];
        let acked = packet.seq.saturating_sub(flow.acked);
        flow.acked += acked;
        flow.passed = flow.passed.saturating_sub(acked);
        let mut loss = false;
        if packet.kind == Kind::Nak {
            loss = self.missing(packet);
        }
        let rtt = if self.config.rtt {
            ((now - packet.sent) / 1000) as u32
        } else {
            0
        };
        let held = self.held(self.hosts[packet.dst as usize].port);
        let flow = &mut self.flows[packet.flow as usize];
        let stalled = held - std::mem::replace(&mut flow.held, held);
        let mut event = Event {
            now_ns: now / 1000,
            acked: acked as u32,
            marked: if packet.marked { acked as u32 } else { 0 },
            notifications: u32::from(packet.notify),
            acked_to: flow.acked as u32,
            sent_to: flow.next as u32,
            rtt_min_ns: rtt,
            rtt_last_ns: rtt,
            stalled_ns: (stalled / 1000) as u32,
            losses: u32::from(loss),
            ..Event::default()
        };
        if self.config.telemetry {
            let fresh = &self.hops[index as usize][..usize::from(packet.hops)];
            let (count, last) = &mut self.flow_hops[packet.flow as usize];
            let base = self.params.port.base_rtt_ns;
            event.telemetry = most_loaded(&last[..usize::from(*count)], fresh, base);
            last[..fresh.len()].copy_from_slice(fresh);
            *count = packet.hops;
        }
        self.free(index);
        if self.flows[packet.flow as usize].is_done() {
            self.finish(packet.flow);
        } else {
            self.report(packet.flow, &event);
            self.update_slot(packet.flow);
        }
        self.transmit_host(packet.dst);
    }

    /// Takes in a NAK; whether it tells of a loss that was not known.
    fn missing(&mut self, packet: &Packet) -> bool {
        let now = self.now();
        let mtu = u64::from(self.config.mtu);
        let patience = 2_000 * u64::from(self.params.port.base_rtt_ns);
        let flow = &mut self.flows[packet.flow as usize];
        if !self.config.selective {
            self.counters.resent += (flow.next - flow.acked).div_ceil(mtu);
            flow.next = flow.acked;
            flow.asked = flow.acked;
            return true;
        }
        flow.passed = (flow.passed + mtu).min(flow.next - flow.acked);
        let known = flow.repeat_for == packet.seq && now < flow.repeat_until;
        if packet.payload == 0 || known {
            return false;
        }
        flow.repeat_for = packet.seq;
        flow.repeat_until = now + patience;
        flow.repeat = (packet.seq, packet.seq + u64::from(packet.payload) * mtu);
        true
    }

    /// Arms the retransmission timer of a flow that has sent, where packets can be lost.
    pub fn arm_timeout(&mut self, index: u32) {
        let now = self.now();
        let flow = &mut self.flows[index as usize];
        if self.config.loss > 0.0 && flow.timeout_at == NEVER {
            flow.timeout_at = now + TIMEOUT;
            flow.timeout_for = flow.acked;
            self.events.push(TIMEOUT, kind::TIMEOUT, index, 0);
        }
    }

    /// The retransmission timer of a flow ends.
    pub fn time_out(&mut self, index: u32) {
        let now = self.now();
        let mtu = u64::from(self.config.mtu);
        let flow = &mut self.flows[index as usize];
        if flow.timeout_at != now {
            return;
        }
        flow.timeout_at = NEVER;
        let src = flow.message.src;
        if flow.acked == flow.timeout_for && flow.next > flow.acked {
            self.counters.timeouts += 1;
            self.counters.resent += (flow.next - flow.acked).div_ceil(mtu);
            // Also with selective repeat: the receiver drops what it has already.
            flow.next = flow.acked;
            flow.asked = flow.acked;
            flow.passed = 0;
            flow.repeat = (0, 0);
            let event = Event {
                now_ns: now / 1000,
                acked_to: flow.acked as u32,
                sent_to: flow.next as u32,
                losses: 1,
                ..Event::default()
            };
            self.report(index, &event);
            self.update_slot(index);
        }
        self.arm_timeout(index);
        self.transmit_host(src);
    }

    /// Payload bytes of a message that its receiver has in order.
    pub fn received(&self, index: u32) -> u64 {
        self.flows[index as usize].expected
    }
}

impl Flow {
    /// Takes what came ahead of its turn and now is in order.
    fn take_ahead(&mut self, mtu: u32) {
        while self.ahead.remove(&self.expected) {
            self.expected = (self.expected + u64::from(mtu)).min(self.message.bytes);
        }
        // A repeat of all may have made some of it old.
        if self.ahead.first().is_some_and(|&seq| seq < self.expected) {
            self.ahead = self.ahead.split_off(&self.expected);
        }
    }
}
