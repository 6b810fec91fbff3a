// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A network of HCA ports, switches and links, driven from outside: time is passed in, and packets are handed in and out at
//! the HCA ports.

mod port;
mod switch;

#[cfg(test)]
mod tests;

pub use switch::Switch;

use crate::agent::VL15;
use crate::capture::Capture;
use crate::counters::Counters;
use crate::link::{Arrival, End, Faults, Link};
use crate::mad::SlToVl;
use crate::node::{self, Change};
use crate::wire::Frame;
use port::{LinkPort, Queued};
use std::collections::VecDeque;

/// Packets that one port sends, or one link delivers, before the next has its turn.
const BUDGET: usize = 64;

/// How often everything has its turn before the caller has its own.
const ROUNDS: usize = 4;

/// Blocks that wait at a port of an HCA before it is told to stop.
const HOST_QUEUE: usize = 4096;

/// What a link ends at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Attach {
    /// A port of an HCA.
    Host(usize),
    /// A port of a switch.
    Switch {
        /// The switch.
        switch: usize,
        /// The number of its port.
        port: u8,
    },
}

/// A link, what it ends at, and whether somebody has pulled the cable.
#[derive(Debug)]
struct Cable {
    link: Link,
    ends: [Attach; 2],
    plugged: bool,
}

/// A port of an HCA.
#[derive(Debug)]
struct Host {
    port: LinkPort,
    sl_to_vl: SlToVl,
}

/// A network.
#[derive(Debug, Default)]
pub struct Net {
    hosts: Vec<Host>,
    switches: Vec<Switch>,
    cables: Vec<Cable>,
    delivered: VecDeque<(usize, Frame)>,
    link_events: Vec<(usize, bool)>,
}

impl Net {
    /// Adds a port of an HCA; returns its index.
    pub fn add_host(&mut self) -> usize {
        self.hosts.push(Host {
            port: LinkPort::new(),
            sl_to_vl: SlToVl::new(|_| 0),
        });
        self.hosts.len() - 1
    }

    /// Adds a switch; returns its index.
    pub fn add_switch(&mut self, switch: Switch) -> usize {
        self.switches.push(switch);
        self.switches.len() - 1
    }

    /// Adds a link between two ports that have none; it comes up with [`Net::power_on`]. Returns its index.
    pub fn connect(&mut self, ends: [Attach; 2], link: Link) -> usize {
        let index = self.cables.len();
        for (end, attach) in [End::A, End::B].into_iter().zip(ends) {
            if let Some(port) = self.port(attach) {
                port.wire = Some((index, end));
            }
        }
        self.cables.push(Cable {
            link,
            ends,
            plugged: true,
        });
        index
    }

    /// Brings all links up.
    pub fn power_on(&mut self, now: u64) {
        for index in 0..self.cables.len() {
            self.cables[index].link.set_up(false);
            self.update_link(index, now);
        }
    }

    /// Returns the switches.
    pub fn switches(&self) -> &[Switch] {
        &self.switches
    }

    /// Returns the number of links.
    pub fn links(&self) -> usize {
        self.cables.len()
    }

    /// Returns what a link ends at, and whether it is up.
    pub fn link(&self, index: usize) -> ([Attach; 2], bool) {
        let cable = &self.cables[index];
        (cable.ends, cable.link.is_up())
    }

    fn port(&mut self, at: Attach) -> Option<&mut LinkPort> {
        match at {
            Attach::Host(host) => self.hosts.get_mut(host).map(|host| &mut host.port),
            Attach::Switch { switch, port } => self.switches.get_mut(switch)?.port(port),
        }
    }

    /// Captures what passes a port.
    pub fn capture(&mut self, at: Attach, capture: Capture) {
        if let Some(port) = self.port(at) {
            port.capture = Some(capture);
        }
    }

    /// Records a packet that a port of an HCA sends to itself.
    pub fn record(&mut self, host: usize, now: u64, packet: &mut Frame) {
        self.hosts[host].port.record(now, packet);
    }

    /// Returns the counters of a port.
    pub fn counters(&self, at: Attach) -> Counters {
        let port = match at {
            Attach::Host(host) => self.hosts.get(host).map(|host| &host.port),
            Attach::Switch { switch, port } => {
                let index = usize::from(port).checked_sub(1);
                self.switches
                    .get(switch)
                    .zip(index)
                    .and_then(|(switch, index)| switch.ports.get(index))
            }
        };
        let Some(port) = port else {
            return Counters::default();
        };
        let link = port
            .wire
            .map(|(link, end)| self.cables[link].link.counters(end));
        port.counters
            .zip(link.unwrap_or_default(), u64::wrapping_add)
    }

    /// Takes over what subnet management has set on a port of an HCA.
    pub fn configure(&mut self, host: usize, port: &node::Port) {
        self.hosts[host].port.configure(port);
        if let Some(table) = port.sl_to_vl.first() {
            self.hosts[host].sl_to_vl = *table;
        }
    }

    /// Plugs or pulls the cable of a link.
    pub fn set_plugged(&mut self, link: usize, plugged: bool, now: u64) {
        self.cables[link].plugged = plugged;
        self.update_link(link, now);
    }

    /// Replaces the faults of a link.
    pub fn set_faults(&mut self, link: usize, faults: Faults) {
        self.cables[link].link.set_faults(faults);
    }

    /// Switches a switch on or off.
    pub fn set_alive(&mut self, switch: usize, alive: bool, now: u64) {
        self.switches[switch].set_alive(alive);
        for link in 0..self.cables.len() {
            let on_it =
                |end: &Attach| matches!(end, Attach::Switch { switch: n, .. } if *n == switch);
            if self.cables[link].ends.iter().any(on_it) {
                self.update_link(link, now);
            }
        }
    }

    /// Does what management wants of the link of a port.
    pub fn order(&mut self, at: Attach, change: Change, now: u64) {
        let Some(port) = self.port(at) else { return };
        if let Change::Enabled(enabled) = change {
            port.enabled = enabled;
        }
        let Some((link, _)) = port.wire else { return };
        if change == Change::Retrain && self.cables[link].link.is_up() {
            self.set_link(link, false, now);
        }
        self.update_link(link, now);
    }

    /// Brings a link into the state that its ends and its cable allow.
    fn update_link(&mut self, link: usize, now: u64) {
        let ends = self.cables[link].ends;
        let works = ends.into_iter().all(|end| {
            let alive = match end {
                Attach::Host(_) => true,
                Attach::Switch { switch, .. } => self.switches[switch].alive,
            };
            alive && self.port(end).is_some_and(|port| port.enabled)
        });
        let Cable {
            link: wire,
            plugged,
            ..
        } = &self.cables[link];
        let up = works && *plugged && !wire.is_flapped();
        if up != self.cables[link].link.is_up() {
            self.set_link(link, up, now);
        }
    }

    fn set_link(&mut self, link: usize, up: bool, now: u64) {
        self.cables[link].link.set_up(up);
        for end in self.cables[link].ends {
            match end {
                Attach::Host(host) => {
                    let port = &mut self.hosts[host].port;
                    if up {
                        port.link_up();
                    } else {
                        port.flush();
                    }
                    self.link_events.push((host, up));
                }
                Attach::Switch { switch, port } => {
                    self.switches[switch].set_link(port, up, now);
                }
            }
        }
    }

    /// Takes the ports of HCAs whose links have come up or gone down.
    pub fn take_link_events(&mut self) -> Vec<(usize, bool)> {
        std::mem::take(&mut self.link_events)
    }

    /// Returns whether a port of an HCA has room for more to send.
    pub fn has_room(&self, host: usize) -> bool {
        self.hosts[host].port.waiting() < HOST_QUEUE
    }

    /// Sends a packet, from LRH to VCRC, from a port of an HCA. Before the port is active only subnet management leaves it
    /// (IBTA 7.2.7).
    pub fn send(&mut self, host: usize, now: u64, packet: Frame) {
        let Host { port, sl_to_vl } = &mut self.hosts[host];
        let Some(lrh) = packet.lrh() else { return };
        if lrh.vl() == VL15 {
            port.enqueue_management(packet, now);
            return;
        }
        let vl = sl_to_vl.vl(lrh.sl());
        if !port.carries(vl) {
            port.counters.xmit_discards += 1;
            return;
        }
        let queued = Queued {
            packet,
            hold: None,
            arrived: now,
        };
        port.enqueue_data(vl, queued, now);
    }

    /// Takes the next packet that has arrived at a port of an HCA.
    pub fn receive(&mut self) -> Option<(usize, Frame)> {
        self.delivered.pop_front()
    }

    /// Moves packets as far as they get at `now`. Returns whether there may be more to do at once.
    pub fn run(&mut self, now: u64) -> bool {
        for _ in 0..ROUNDS {
            if !self.round(now) {
                return false;
            }
        }
        true
    }

    fn round(&mut self, now: u64) -> bool {
        let mut progress = false;
        for link in 0..self.cables.len() {
            if self.cables[link].link.flap(now) {
                self.update_link(link, now);
                progress = true;
            }
        }
        for host in 0..self.hosts.len() {
            progress |= self.transmit(Attach::Host(host), now);
        }
        for switch in 0..self.switches.len() {
            self.switches[switch].send_trap(now);
            self.expire(switch, now);
            for port in 1..=self.switches[switch].node.info.num_ports {
                progress |= self.transmit(Attach::Switch { switch, port }, now);
            }
        }
        for link in 0..self.cables.len() {
            progress |= self.deliver(link, now);
        }
        for switch in 0..self.switches.len() {
            for (port, change) in std::mem::take(&mut self.switches[switch].orders) {
                self.order(Attach::Switch { switch, port }, change, now);
                progress = true;
            }
        }
        progress
    }

    /// Sends what a port may send, and its flow control messages.
    fn transmit(&mut self, at: Attach, now: u64) -> bool {
        let mut progress = false;
        let Some((link, end)) = self.port(at).and_then(|port| port.wire) else {
            return false;
        };
        for _ in 0..BUDGET {
            let Some(port) = self.port(at) else { break };
            let Some(Queued {
                mut packet, hold, ..
            }) = port.next(now)
            else {
                break;
            };
            port.record(now, &mut packet);
            port.count_multicast(&packet, true);
            self.cables[link].link.send(end, now, packet);
            if let (Some(hold), Attach::Switch { switch, .. }) = (hold, at) {
                self.switches[switch].release(&hold);
            }
            progress = true;
        }
        if !self.cables[link].link.is_up() {
            return progress;
        }
        while let Some(message) = self.port(at).and_then(|port| port.message_out(now)) {
            self.cables[link].link.send_message(end, now, message);
            progress = true;
        }
        progress
    }

    fn deliver(&mut self, link: usize, now: u64) -> bool {
        let mut progress = false;
        for _ in 0..BUDGET {
            let Some((end, arrival)) = self.cables[link].link.receive(now) else {
                break;
            };
            progress = true;
            let [a, b] = self.cables[link].ends;
            let at = if end == End::A { a } else { b };
            match arrival {
                Arrival::FlowControl(message) => {
                    if let Some(port) = self.port(at) {
                        port.message_in(&message);
                    }
                }
                Arrival::Packet(packet) => self.packet_in(at, packet, now),
            }
        }
        progress
    }

    fn packet_in(&mut self, at: Attach, mut packet: Frame, now: u64) {
        if let Some(port) = self.port(at) {
            port.record(now, &mut packet);
            port.count_multicast(&packet, false);
        }
        match at {
            Attach::Host(host) => {
                let port = &mut self.hosts[host].port;
                let vl = packet.lrh().map_or(VL15, |lrh| lrh.vl());
                if vl != VL15 {
                    let Some(blocks) = port.receive(vl, &packet) else {
                        return;
                    };
                    // An HCA takes everything at once.
                    port.free(vl, blocks);
                }
                self.delivered.push_back((host, packet));
            }
            Attach::Switch { switch, port } => {
                self.update_counters(switch, &packet);
                self.switches[switch].packet_in(port, packet, now);
            }
        }
    }

    /// Gives a switch what its links have counted, when a datagram for its performance agent may come.
    fn update_counters(&mut self, switch: usize, packet: &Frame) {
        let Some(lrh) = packet.lrh() else { return };
        let port = self.switches[switch].node.port(0);
        if lrh.vl() == VL15 || !port.is_some_and(|port| port.info.has_lid(lrh.dlid.get())) {
            return;
        }
        for port in 1..=self.switches[switch].node.info.num_ports {
            let counters = self.counters(Attach::Switch { switch, port });
            self.switches[switch].set_counters(port, counters);
        }
    }

    fn expire(&mut self, switch: usize, now: u64) {
        let switch = &mut self.switches[switch];
        let life = switch.life();
        for index in 0..switch.ports.len() {
            while let Some(Queued { hold, .. }) = switch.ports[index].expired(now, life) {
                if let Some(hold) = hold {
                    switch.release(&hold);
                }
            }
        }
    }

    /// Returns when there is something to do though nothing is sent, in nanoseconds.
    pub fn next_due(&self) -> Option<u64> {
        let links = self.cables.iter().filter_map(|cable| cable.link.next_due());
        let hosts = self
            .hosts
            .iter()
            .filter_map(|host| host.port.deadline(None));
        let switches = self.switches.iter().flat_map(|switch| {
            let life = switch.life();
            let ports = switch
                .ports
                .iter()
                .filter_map(move |port| port.deadline(life));
            ports.chain(switch.trap_due())
        });
        links.chain(hosts).chain(switches).min()
    }
}
