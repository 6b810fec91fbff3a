// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Hosts: queue pairs with pacing and window, the receiver, and the congestion control.

use qiao_cc::{most_loaded, on_event, Action, Event, FlowState, Rate};

use crate::queue::{Time, NEVER};
use crate::workload::{uniform, Message};
use crate::world::{kind, Done, Hops, Kind, Packet, World};

/// Shortest time between two NAKs for the same gap.
const NAK_INTERVAL: Time = 500_000_000;
/// After this time an adapter raises an event that the host has not answered once more.
const RAISE_AGAIN: Time = 100_000_000;

/// A message under way, both ends.
#[derive(Clone, Debug)]
pub struct Flow {
    cc: FlowState,
    rate: Rate,
    window: u32,
    next: u64,
    acked: u64,
    sent_at: Time,
    /// Pacing: when the next packet may leave.
    turn: Time,
    sent_size: u32,
    timer: Time,
    /// What the adapter has added up since the host read the last event.
    pending: Event,
    /// An event is on its way to the host.
    raised: bool,
    message: Message,
    generation: u32,
    hash: u32,
    /// Receiver: next byte in order.
    expected: u64,
    nak_at: Time,
    nak_for: u64,
}

/// A flow in the scheduler of its host.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// When it may send; [`NEVER`] while it has nothing to send or its window is full.
    ready: Time,
    flow: u32,
}

/// A host.
#[derive(Clone, Debug)]
pub struct Host {
    /// Its port.
    pub port: u32,
    slots: Vec<Slot>,
    last: usize,
}

impl Host {
    /// A host with its port.
    pub fn new(port: u32) -> Self {
        Self {
            port,
            slots: Vec::new(),
            last: 0,
        }
    }
}

impl World {
    /// Posts a message.
    pub fn start(&mut self, message: Message) {
        let now_ns = self.now() / 1000;
        let generation = self.events.popped() as u32;
        let flow = Flow {
            cc: FlowState::start(&self.params, now_ns),
            rate: Rate::LINE,
            window: Action::UNLIMITED,
            next: 0,
            acked: 0,
            sent_at: 0,
            turn: 0,
            sent_size: 0,
            timer: NEVER,
            pending: Event::default(),
            raised: false,
            message,
            generation,
            hash: generation.wrapping_mul(0x85eb_ca6b)
                ^ message.src.wrapping_mul(0xcc9e_2d51)
                ^ message.dst,
            expected: 0,
            nak_at: 0,
            nak_for: u64::MAX,
        };
        let index = match self.free_flows.pop() {
            Some(index) => {
                self.flows[index as usize] = flow;
                self.flow_hops[index as usize].0 = 0;
                index
            }
            None => {
                self.flows.push(flow);
                self.flow_hops.push((0, Hops::default()));
                self.flows.len() as u32 - 1
            }
        };
        // The initial rate and window are the algorithm's answer to an event in which nothing was.
        self.give_event(
            index,
            &Event {
                now_ns,
                ..Event::default()
            },
        );
        let host = &mut self.hosts[message.src as usize];
        host.slots.push(Slot {
            ready: self.events.now(),
            flow: index,
        });
        self.transmit_host(message.src);
    }

    /// Sends the next packet of a host, if there is one and the port is free.
    pub fn transmit_host(&mut self, host: u32) {
        let now = self.now();
        let index = self.hosts[host as usize].port;
        let port = &self.ports[index as usize];
        if port.busy > now {
            let busy = port.busy;
            self.transmit_at(index, busy);
            return;
        }
        let control = usize::from(!self.config.ack_class);
        let held = control == 1 && port.paused;
        if !port.queues[control].is_empty() && !held {
            let packet = self.dequeue(index, control);
            self.put_on_wire(index, packet);
        } else if !port.paused {
            let full = u64::from(self.config.data_size(self.config.mtu));
            if !self.may_send(index, full) {
                return;
            }
            if let Some(slot) = self.pick(host, now) {
                let packet = self.next_packet(host, slot);
                self.take_credits(index, u64::from(self.packets[packet as usize].size));
                self.put_on_wire(index, packet);
            }
        }
        self.plan(host);
    }

    /// Round robin over the flows that may send.
    fn pick(&mut self, host: u32, now: Time) -> Option<usize> {
        let host = &mut self.hosts[host as usize];
        let count = host.slots.len();
        for i in 1..=count {
            let slot = (host.last + i) % count;
            if host.slots[slot].ready <= now {
                host.last = slot;
                return Some(slot);
            }
        }
        None
    }

    /// Asks for an event when the host can send next.
    fn plan(&mut self, host: u32) {
        let index = self.hosts[host as usize].port;
        let port = &self.ports[index as usize];
        let control = usize::from(!self.config.ack_class);
        let free = port.busy;
        let held = control == 1 && port.paused;
        if !port.queues[control].is_empty() && !held {
            self.transmit_at(index, free);
            return;
        }
        if port.paused {
            return;
        }
        let slots = &self.hosts[host as usize].slots;
        let ready = slots.iter().map(|slot| slot.ready).min().unwrap_or(NEVER);
        if ready != NEVER {
            let at = ready.max(free).max(self.now());
            self.transmit_at(index, at);
        }
    }

    fn next_packet(&mut self, host: u32, slot: usize) -> u32 {
        let now = self.now();
        let index = self.hosts[host as usize].slots[slot].flow;
        let flow = &mut self.flows[index as usize];
        let payload = (flow.message.bytes - flow.next).min(u64::from(self.config.mtu)) as u32;
        let size = self.config.data_size(payload);
        let packet = Packet {
            sent: now,
            seq: flow.next,
            flow: index,
            generation: flow.generation,
            dst: flow.message.dst,
            hash: flow.hash,
            size: size as u16,
            payload: payload as u16,
            ..Packet::default()
        };
        flow.next += u64::from(payload);
        flow.sent_at = now;
        flow.sent_size = size;
        self.counters.data += 1;
        self.pace(index);
        let ready = self.ready(index);
        self.hosts[host as usize].slots[slot].ready = ready;
        self.alloc(packet)
    }

    /// When a flow may send.
    fn ready(&self, index: u32) -> Time {
        let flow = &self.flows[index as usize];
        let flying = flow.next - flow.acked;
        if flow.next >= flow.message.bytes || flying >= u64::from(flow.window) {
            return NEVER;
        }
        flow.turn
    }

    /// Sets the turn of the next packet from the last one and the rate.
    fn pace(&mut self, index: u32) {
        let flow = &self.flows[index as usize];
        let host = &self.hosts[flow.message.src as usize];
        let byte_ps = self.ports[host.port as usize].byte_ps;
        let gap = ((u64::from(flow.sent_size) * byte_ps) << 24) / u64::from(flow.rate.raw());
        let turn = flow.sent_at + self.config.round(gap);
        self.flows[index as usize].turn = turn;
    }

    /// Takes a packet that is for `host`.
    pub fn receive(&mut self, host: u32, index: u32) {
        let packet = self.packets[index as usize];
        let flow = &self.flows[packet.flow as usize];
        if flow.generation != packet.generation {
            self.free(index);
            return;
        }
        match packet.kind {
            Kind::Data => self.receive_data(host, index, &packet),
            _ => self.receive_ack(index, &packet),
        }
    }

    fn receive_data(&mut self, host: u32, index: u32, packet: &Packet) {
        let now = self.now();
        self.return_credits(self.hosts[host as usize].port, u64::from(packet.size));
        let flow = &mut self.flows[packet.flow as usize];
        let answer = if packet.seq == flow.expected {
            flow.expected += u64::from(packet.payload);
            Kind::Ack
        } else if packet.seq > flow.expected
            && (now >= flow.nak_at || flow.nak_for != flow.expected)
        {
            flow.nak_at = now + NAK_INTERVAL;
            flow.nak_for = flow.expected;
            Kind::Nak
        } else {
            self.free(index);
            return;
        };
        // The answer takes the packet's place, and with it the telemetry.
        self.packets[index as usize] = Packet {
            seq: flow.expected,
            dst: flow.message.src,
            hash: flow.hash.rotate_left(16),
            size: self.config.ack_size() as u16,
            payload: 0,
            kind: answer,
            ..*packet
        };
        let port = self.hosts[host as usize].port;
        self.enqueue(port, usize::from(!self.config.ack_class), index);
        self.transmit_host(host);
    }

    fn receive_ack(&mut self, index: u32, packet: &Packet) {
        let now = self.now();
        let flow = &mut self.flows[packet.flow as usize];
        let acked = packet.seq.saturating_sub(flow.acked);
        flow.acked += acked;
        if packet.kind == Kind::Nak {
            self.counters.resent += (flow.next - flow.acked).div_ceil(u64::from(self.config.mtu));
            flow.next = flow.acked;
        }
        let src = flow.message.src;
        let rtt = if self.config.rtt {
            ((now - packet.sent) / 1000) as u32
        } else {
            0
        };
        let mut event = Event {
            now_ns: now / 1000,
            acked: acked as u32,
            marked: if packet.marked { acked as u32 } else { 0 },
            notifications: u32::from(packet.marked),
            acked_to: flow.acked as u32,
            sent_to: flow.next as u32,
            rtt_min_ns: rtt,
            rtt_last_ns: rtt,
            losses: u32::from(packet.kind == Kind::Nak),
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
        if flow_is_done(&self.flows[packet.flow as usize]) {
            self.finish(packet.flow);
        } else {
            self.report(packet.flow, &event);
            let ready = self.ready(packet.flow);
            let slots = &mut self.hosts[src as usize].slots;
            if let Some(slot) = slots.iter_mut().find(|slot| slot.flow == packet.flow) {
                slot.ready = ready;
            }
        }
        self.transmit_host(src);
    }

    fn finish(&mut self, index: u32) {
        let flow = &self.flows[index as usize];
        let message = flow.message;
        let fct = self.now() - message.start;
        let ideal = self.ideal(&message);
        self.done.push(Done {
            message,
            fct,
            ideal,
        });
        let host = &mut self.hosts[message.src as usize];
        host.slots.retain(|slot| slot.flow != index);
        host.last = host.last.min(host.slots.len().saturating_sub(1));
        self.flows[index as usize].generation = u32::MAX;
        self.flows[index as usize].timer = NEVER;
        self.flows[index as usize].raised = false;
        self.free_flows.push(index);
    }

    /// The timer of a flow's congestion control.
    pub fn wake(&mut self, index: u32) {
        let now = self.now();
        if self.flows[index as usize].timer != now {
            return;
        }
        self.flows[index as usize].timer = NEVER;
        let flow = &self.flows[index as usize];
        let event = Event {
            now_ns: now / 1000,
            acked_to: flow.acked as u32,
            sent_to: flow.next as u32,
            ..Event::default()
        };
        let src = flow.message.src;
        let before = (flow.rate, flow.window);
        self.give_event(index, &event);
        let flow = &self.flows[index as usize];
        if (flow.rate, flow.window) != before {
            let ready = self.ready(index);
            let slots = &mut self.hosts[src as usize].slots;
            if let Some(slot) = slots.iter_mut().find(|slot| slot.flow == index) {
                slot.ready = ready;
            }
            self.transmit_host(src);
        }
    }

    /// Hands an event to the congestion control: at once, or through the host.
    fn report(&mut self, index: u32, event: &Event) {
        if self.config.host == 0 {
            self.give_event(index, event);
            return;
        }
        let flow = &mut self.flows[index as usize];
        flow.pending.absorb(event);
        if !flow.raised {
            flow.raised = true;
            let delay = self.host_delay();
            self.events.push(delay, kind::READ, index, 0);
        }
    }

    /// Time until the host reacts: its latency, the rest of a stall, or, when the event is lost,
    /// the time after which the adapter raises it again.
    fn host_delay(&mut self) -> Time {
        let now = self.now();
        let stalled = match self.config.stall {
            Some((from, length)) if (from..from + length).contains(&now) => from + length - now,
            _ => 0,
        };
        let mut delay = self.config.host + stalled;
        while self.config.event_loss > 0.0 && uniform(&mut self.rng) < self.config.event_loss {
            delay += RAISE_AGAIN;
        }
        delay
    }

    /// The host reads what the adapter has added up for a flow.
    pub fn read_event(&mut self, index: u32) {
        let flow = &mut self.flows[index as usize];
        if !std::mem::take(&mut flow.raised) {
            return;
        }
        let event = std::mem::take(&mut flow.pending);
        let src = flow.message.src;
        self.give_event(index, &event);
        let ready = self.ready(index);
        let slots = &mut self.hosts[src as usize].slots;
        if let Some(slot) = slots.iter_mut().find(|slot| slot.flow == index) {
            slot.ready = ready;
        }
        self.transmit_host(src);
    }

    /// Bytes of a flow that are acknowledged.
    pub fn acked(&self, index: u32) -> u64 {
        self.flows[index as usize].acked
    }

    fn give_event(&mut self, index: u32, event: &Event) {
        self.counters.cc_events += 1;
        let now = self.now();
        let flow = &mut self.flows[index as usize];
        let action = on_event(&self.params, &mut flow.cc, event);
        let pace_again = self.config.pace_again && flow.rate != action.rate;
        flow.rate = action.rate;
        flow.window = action.window;
        if action.wake_ns != 0 {
            // The algorithm counts whole nanoseconds from the one in which the event was.
            let at = (now / 1000 + u64::from(action.wake_ns)) * 1000;
            if at < flow.timer {
                flow.timer = at;
                self.events.push(at - now, kind::WAKE, index, 0);
            }
        }
        if pace_again {
            self.pace(index);
        }
    }
}

fn flow_is_done(flow: &Flow) -> bool {
    flow.acked >= flow.message.bytes
}
