// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Ethernet switch: shared buffer, priority pause, marking, telemetry.

use qiao_cc::{Hop, MAX_HOPS};

use crate::workload::uniform;
use crate::world::{Config, Kind, Packet, Port, World};

/// Bytes of each ingress that do not count against the shared buffer.
const RESERVE: u64 = 4 * 1024;
/// How far below the pause threshold an ingress must fall to resume.
const RESUME_OFFSET: u64 = 3 * 1024;
/// Wire bytes of a pause frame in the reference simulator.
pub const PAUSE_BYTES: u16 = 43;

/// Buffer of a switch.
#[derive(Clone, Debug)]
pub struct Switch {
    /// Shared part of the buffer.
    shared: u64,
    used: u64,
    seed: u32,
}

impl Switch {
    /// The switch at `node` with its ports.
    pub fn new(node: u32, own: &[(u32, u32)], ports: &[Port], config: &Config) -> Self {
        let set_aside: u64 = own
            .iter()
            .map(|&(port, _)| ports[port as usize].headroom + RESERVE)
            .sum();
        Self {
            shared: config.buffer.saturating_sub(set_aside),
            used: 0,
            seed: node.wrapping_mul(0x9e37_79b9),
        }
    }

    fn threshold(&self, port: &Port) -> u64 {
        self.shared.saturating_sub(self.used) >> port.shift
    }
}

fn shared_part(port: &Port) -> u64 {
    port.ingress.saturating_sub(RESERVE)
}

/// Finaliser of a multiplicative hash.
fn mix(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

impl World {
    /// Takes a packet in at port `index` and queues it at its egress.
    pub fn forward(&mut self, index: u32, packet: u32) {
        let node = self.ports[index as usize].node;
        let (dst, hash, kind, size) = {
            let packet = &mut self.packets[packet as usize];
            packet.in_port = index;
            (packet.dst, packet.hash, packet.kind, u64::from(packet.size))
        };
        let switch = node as usize - self.hosts.len();
        let next = self.routes.next(node, dst);
        let out = match next.len() {
            0 => self.ports[self.hosts[dst as usize].port as usize].peer,
            1 => next[0],
            _ if self.config.adaptive => self.shortest_queue(switch, dst),
            n => next[mix(hash ^ self.switches[switch].seed) as usize % n],
        };
        let class = usize::from(kind == Kind::Data || !self.config.ack_class);
        if class == 1 && self.config.credits.is_none() && !self.admit(switch, index, size) {
            self.counters.drops += 1;
            self.free(packet);
            return;
        }
        self.enqueue(out, class, packet);
        self.transmit_switch(out);
    }

    /// The port with the fewest bytes waiting; the first of equals.
    fn shortest_queue(&self, switch: usize, dst: u32) -> u32 {
        let node = (switch + self.hosts.len()) as u32;
        let next = self.routes.next(node, dst).iter().copied();
        next.min_by_key(|&port| self.ports[port as usize].all_bytes)
            .unwrap_or_default()
    }

    /// Accounts for a packet at its ingress; false if there is no room.
    fn admit(&mut self, switch: usize, index: u32, size: u64) -> bool {
        let buffer = &mut self.switches[switch];
        let port = &mut self.ports[index as usize];
        let threshold = buffer.threshold(port);
        if size + port.headroom_used > port.headroom && size + shared_part(port) > threshold {
            return false;
        }
        let filled = port.ingress + size;
        if filled <= RESERVE {
            port.ingress = filled;
        } else if filled - RESERVE > threshold {
            port.headroom_used += size;
        } else {
            port.ingress = filled;
            buffer.used += size.min(filled - RESERVE);
        }
        let full = port.headroom_used > 0 || shared_part(port) >= buffer.threshold(port);
        if !port.pausing && full {
            port.pausing = true;
            self.counters.pauses += 1;
            self.send_pause(index, Kind::Pause);
        }
        true
    }

    /// Undoes [`Self::admit`] when a packet leaves.
    fn release(&mut self, switch: usize, index: u32, size: u64) {
        let buffer = &mut self.switches[switch];
        let port = &mut self.ports[index as usize];
        let from_headroom = port.headroom_used.min(size);
        let from_shared = (size - from_headroom).min(shared_part(port));
        port.headroom_used -= from_headroom;
        port.ingress -= size - from_headroom;
        buffer.used -= from_shared;
        let shared = shared_part(port);
        let low = shared == 0 || shared + RESUME_OFFSET <= buffer.threshold(port);
        if port.pausing && port.headroom_used == 0 && low {
            port.pausing = false;
            self.send_pause(index, Kind::Resume);
        }
    }

    fn send_pause(&mut self, index: u32, kind: Kind) {
        let packet = self.alloc(Packet {
            size: PAUSE_BYTES,
            kind,
            ..Packet::default()
        });
        self.enqueue(index, 0, packet);
        self.transmit_switch(index);
    }

    /// Starts the next packet of a switch port, if the port is free and may send.
    pub fn transmit_switch(&mut self, index: u32) {
        let now = self.now();
        let data = self.data_ready(index);
        let port = &self.ports[index as usize];
        if port.queues[0].is_empty() && !data {
            return;
        }
        if port.busy > now {
            let busy = port.busy;
            self.transmit_at(index, busy);
            return;
        }
        let class = usize::from(port.queues[0].is_empty());
        let node = port.node as usize;
        let packet = self.dequeue(index, class);
        if class == 1 {
            let (in_port, size) = {
                let packet = &self.packets[packet as usize];
                (packet.in_port, u64::from(packet.size))
            };
            if self.config.credits.is_some() {
                self.take_credits(index, size);
                self.return_credits(in_port, size);
            } else {
                self.release(node - self.hosts.len(), in_port, size);
            }
            let victim = std::mem::take(&mut self.ports[index as usize].victim);
            if !(victim && self.is_inner(index)) && self.marks(index) {
                self.packets[packet as usize].marked = true;
                self.counters.marks += 1;
            }
        }
        if self.config.telemetry {
            self.write_telemetry(index, packet);
        }
        self.put_on_wire(index, packet);
        let data = self.data_ready(index);
        let port = &self.ports[index as usize];
        if !port.queues[0].is_empty() || data {
            let busy = port.busy;
            self.transmit_at(index, busy);
        }
    }

    /// Whether the data class has a packet that may be sent.
    fn data_ready(&mut self, index: u32) -> bool {
        match self.first_size(index) {
            Some(size) => self.may_send(index, size),
            None => false,
        }
    }

    /// Whether a switch is at the other end. A port to a host marks also as a victim, which is what
    /// Victim_Mask is for (IBTA volume 1, A10.2.1): the host may be the slow one.
    fn is_inner(&self, index: u32) -> bool {
        let peer = self.ports[index as usize].peer;
        self.ports[peer as usize].node as usize >= self.hosts.len()
    }

    /// Whether the packet that leaves is marked, from the queue behind it.
    fn marks(&mut self, index: u32) -> bool {
        let port = &self.ports[index as usize];
        let Some(red) = port.red else {
            return false;
        };
        if port.data_bytes <= red.min {
            return false;
        }
        if port.data_bytes > red.max {
            return true;
        }
        let span = (red.max - red.min).max(1) as f64;
        let p = red.p_max * (port.data_bytes - red.min) as f64 / span;
        uniform(&mut self.rng) < p
    }

    fn write_telemetry(&mut self, index: u32, packet: u32) {
        let time_ns = (self.now() / 1000) as u32;
        let header = &mut self.packets[packet as usize];
        if header.kind != Kind::Data || usize::from(header.hops) >= MAX_HOPS {
            return;
        }
        let port = &self.ports[index as usize];
        // The header counts in units that scale with the port rate, 512 and 320 bytes at 100 Gb/s.
        let scale = self.params.port.link_mbps / 25_000;
        let (bytes, queue) = (128 * scale.max(1), 80 * scale.max(1));
        self.hops[packet as usize][usize::from(header.hops)] = Hop {
            tx_bytes: (port.sent as u32) / bytes * bytes,
            time_ns,
            queue: (port.all_bytes as u32) / queue * queue,
            link_mbps: (8_000_000 / port.byte_ps) as u32,
        };
        header.hops += 1;
    }
}
