// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The sending side of hosts: queue pairs with pacing and window.

use std::collections::{BTreeSet, VecDeque};

use qiao_cc::{asks, Action, Event, FlowState, Rate};

use crate::queue::{Time, NEVER};
use crate::workload::Message;
use crate::world::{kind, Done, Hops, Packet, World, RIVAL};

/// A message under way, both ends.
#[derive(Clone, Debug)]
pub struct Flow {
    /// What is sent.
    pub message: Message,
    /// Incarnation of the index.
    pub generation: u32,
    /// Path selector.
    pub hash: u32,
    /// Congestion control.
    pub cc: FlowState,
    /// Pacing.
    pub rate: Rate,
    /// Limit of unacknowledged payload bytes.
    pub window: u32,
    /// Next new payload byte.
    pub next: u64,
    /// Bytes that are acknowledged in order.
    pub acked: u64,
    /// Bytes beyond those that the receiver has (selective repeat).
    pub passed: u64,
    /// Bytes that may be sent.
    posted: u64,
    /// Packets and payload bytes since the last one that asked for an acknowledgement.
    unasked: (u32, u32),
    /// End of the last packet that asked.
    pub asked: u64,
    sent_at: Time,
    /// Pacing: when the next packet may leave.
    turn: Time,
    sent_size: u32,
    /// When the congestion control wants an event.
    pub timer: Time,
    /// What the adapter has added up since the host read the last event.
    pub pending: Event,
    /// Since when an event is on its way to the host, or [`NEVER`].
    pub raised_at: Time,
    /// Time for which the port was held, up to the last answer.
    pub held: Time,
    /// Bytes to send again, from and up to.
    pub repeat: (u64, u64),
    /// Gap for which that was.
    pub repeat_for: u64,
    /// How long a NAK for the same gap is no news.
    pub repeat_until: Time,
    /// End of the retransmission timer, or [`NEVER`].
    pub timeout_at: Time,
    /// What was acknowledged when it began.
    pub timeout_for: u64,
    /// Receiver: next byte in order.
    pub expected: u64,
    /// Receiver: packets that came ahead of their turn.
    pub ahead: BTreeSet<u64>,
    /// Receiver: a mark that no acknowledgement has told of.
    pub marked: bool,
    /// Receiver: when the next NAK may leave.
    pub nak_at: Time,
    /// Receiver: gap of the last NAK.
    pub nak_for: u64,
    /// Receiver: when the next notification may leave.
    pub notify_at: Time,
}

impl Flow {
    /// Whether all is acknowledged.
    pub fn is_done(&self) -> bool {
        self.acked >= self.message.bytes
    }
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
    /// The adapter does without its driver.
    pub alone: bool,
    /// Packets that a slow host has not taken yet.
    pub waiting: VecDeque<u32>,
    /// Their bytes.
    pub waiting_bytes: u64,
    /// It has paused its link.
    pub pausing: bool,
    slots: Vec<Slot>,
    last: usize,
}

impl Host {
    /// A host with its port.
    pub fn new(port: u32) -> Self {
        Self {
            port,
            alone: false,
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            pausing: false,
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
        let params = if message.tag == RIVAL {
            &self.rival
        } else {
            &self.params
        };
        let held = self.held(self.hosts[message.src as usize].port);
        let flow = Flow {
            cc: FlowState::start(params, now_ns),
            rate: Rate::LINE,
            window: Action::UNLIMITED,
            next: 0,
            acked: 0,
            passed: 0,
            posted: message.bytes,
            unasked: (0, 0),
            asked: 0,
            sent_at: 0,
            turn: 0,
            sent_size: 0,
            timer: NEVER,
            pending: Event::default(),
            raised_at: NEVER,
            held,
            repeat: (0, 0),
            repeat_for: u64::MAX,
            repeat_until: 0,
            timeout_at: NEVER,
            timeout_for: 0,
            message,
            generation,
            hash: generation.wrapping_mul(0x85eb_ca6b)
                ^ message.src.wrapping_mul(0xcc9e_2d51)
                ^ message.dst,
            expected: 0,
            ahead: BTreeSet::new(),
            marked: false,
            nak_at: 0,
            nak_for: u64::MAX,
            notify_at: 0,
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
        if self.collective.is_some() {
            // Others that start now may come before the messages that this one waits for.
            self.flows[index as usize].posted = 0;
            self.update_slot(index);
            self.events.push(0, kind::POST, index, 0);
        }
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
        let mtu = u64::from(self.config.mtu);
        let flow = &mut self.flows[index as usize];
        let again = flow.repeat.0 < flow.repeat.1;
        let seq = if again { flow.repeat.0 } else { flow.next };
        let end = if again { flow.next } else { flow.posted };
        let payload = end.saturating_sub(seq).min(mtu) as u32;
        let size = self.config.data_size(payload);
        let packet = Packet {
            sent: now,
            seq,
            flow: index,
            generation: flow.generation,
            dst: flow.message.dst,
            hash: flow.hash,
            size: size as u16,
            payload: payload as u16,
            ..Packet::default()
        };
        if again {
            flow.repeat.0 += u64::from(payload);
            self.counters.resent += 1;
        } else {
            flow.next += u64::from(payload);
        }
        flow.sent_at = now;
        flow.sent_size = size;
        self.counters.data += 1;
        self.pace(index);
        self.arm_timeout(index);
        let ask = self.asks(index, seq + u64::from(payload), payload);
        let ready = self.ready(index);
        self.hosts[host as usize].slots[slot].ready = ready;
        self.alloc(Packet { ask, ..packet })
    }

    /// Whether the packet up to `end`, which leaves now, asks for an acknowledgement.
    fn asks(&mut self, index: u32, end: u64, payload: u32) -> bool {
        let flow = &mut self.flows[index as usize];
        flow.unasked = (flow.unasked.0 + 1, flow.unasked.1 + payload);
        let (packets, bytes) = flow.unasked;
        let ask = !self.config.device_acks
            || end == flow.posted
            || flow.asked <= flow.acked
            || asks(packets, bytes, flow.window);
        if ask {
            flow.unasked = (0, 0);
            flow.asked = flow.asked.max(end);
        }
        ask
    }

    /// When a flow may send.
    fn ready(&self, index: u32) -> Time {
        let flow = &self.flows[index as usize];
        if flow.repeat.0 < flow.repeat.1 {
            return flow.turn;
        }
        let flying = (flow.next - flow.acked).saturating_sub(flow.passed);
        let closed = flying >= u64::from(flow.window) && flow.asked > flow.acked;
        if flow.next >= flow.posted || closed {
            return NEVER;
        }
        flow.turn
    }

    /// Tells the scheduler when a flow may send.
    pub fn update_slot(&mut self, index: u32) {
        let ready = self.ready(index);
        let src = self.flows[index as usize].message.src;
        let slots = &mut self.hosts[src as usize].slots;
        if let Some(slot) = slots.iter_mut().find(|slot| slot.flow == index) {
            slot.ready = ready;
        }
    }

    /// Lets a message send what it may by now.
    pub fn repost(&mut self, index: u32) {
        self.flows[index as usize].posted = self.posted(index);
        self.update_slot(index);
        self.transmit_host(self.flows[index as usize].message.src);
    }

    /// Whether a message has started and is not complete.
    pub fn is_running(&self, index: u32) -> bool {
        let flow = self.flows.get(index as usize);
        flow.is_some_and(|flow| flow.generation != u32::MAX)
    }

    /// The messages that `host` is sending.
    pub fn running(&self, host: u32) -> Vec<u32> {
        let slots = self.hosts[host as usize].slots.iter();
        slots.map(|slot| slot.flow).collect()
    }

    /// Sets the turn of the next packet from the last one and the rate.
    pub fn pace(&mut self, index: u32) {
        let flow = &self.flows[index as usize];
        let host = &self.hosts[flow.message.src as usize];
        let byte_ps = self.ports[host.port as usize].byte_ps;
        let gap = ((u64::from(flow.sent_size) * byte_ps) << 24) / u64::from(flow.rate.raw());
        let turn = flow.sent_at + self.config.round(gap);
        self.flows[index as usize].turn = turn;
    }

    /// All of a message is acknowledged.
    pub fn finish(&mut self, index: u32) {
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
        let flow = &mut self.flows[index as usize];
        flow.generation = u32::MAX;
        flow.timer = NEVER;
        flow.raised_at = NEVER;
        flow.timeout_at = NEVER;
        self.free_flows.push(index);
    }
}
