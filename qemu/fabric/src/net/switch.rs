// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A switch (IBTA 18.2): forwards by LID, replicates multicast, and answers management.

use super::port::{life, Hold, LinkPort, Queued};
use crate::agent::{self, Outcome, VL15};
use crate::counters::Counters;
use crate::mad::{
    attribute, head, method, Address, LinkState, Mad, Notice, PortInfo, Smp, MULTICAST_BASE,
    PERMISSIVE_LID,
};
use crate::node::{pkeys_match, Change, Node, Port};
use crate::sma::Arrival;
use crate::wire::{Frame, Lrh};
use std::collections::HashMap;

/// A trap is sent again after this time until it is repressed, in nanoseconds: the default subnet timeout.
const TRAP_INTERVAL: u64 = 4096 << 18;

/// How often it is sent at most.
const TRAP_TRIES: u32 = 8;

/// A trap on its way to the subnet manager.
#[derive(Debug)]
struct Trap {
    next: u64,
    tries: u32,
}

/// A switch.
#[derive(Debug)]
pub struct Switch {
    /// Name of the configuration.
    pub name: String,
    pub(super) node: Node,
    /// What the node is after power-on.
    pristine: Node,
    /// Ports from 1 on, at their index minus 1.
    pub(super) ports: Vec<LinkPort>,
    pub(super) alive: bool,
    /// Copies in output queues of each multicast packet in a receive buffer.
    copies: HashMap<u64, u32>,
    next_group: u64,
    trap: Option<Trap>,
    transaction: u64,
    /// What management wants of the links.
    pub(super) orders: Vec<(u8, Change)>,
}

impl Switch {
    /// Makes a switch that nobody has configured.
    pub fn new(name: String, node: Node) -> Self {
        let ports = (0..node.info.num_ports).map(|_| LinkPort::new()).collect();
        Self {
            name,
            pristine: node.clone(),
            node,
            ports,
            alive: true,
            copies: HashMap::new(),
            next_group: 0,
            trap: None,
            transaction: 0,
            orders: Vec::new(),
        }
    }

    /// Returns what subnet management knows of it.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns whether it has power.
    pub fn is_alive(&self) -> bool {
        self.alive
    }

    /// Switches power on or off. Off, it forgets what it was told.
    pub(super) fn set_alive(&mut self, alive: bool) {
        self.alive = alive;
        if !alive {
            self.node = self.pristine.clone();
            (self.trap, self.transaction) = (None, 0);
            for index in 0..self.ports.len() {
                self.ports[index].enabled = true;
                for hold in self.ports[index].flush() {
                    self.release(&hold);
                }
            }
            self.configure();
        }
    }

    pub(super) fn port(&mut self, number: u8) -> Option<&mut LinkPort> {
        self.ports.get_mut(usize::from(number).checked_sub(1)?)
    }

    /// How long a packet may stay, in nanoseconds.
    pub(super) fn life(&self) -> Option<u64> {
        let info = &self.node.switch.as_ref()?.info;
        life(info.life_time_value())
    }

    /// Notes that the link of a port has come up or gone down.
    pub(super) fn set_link(&mut self, number: u8, up: bool, now: u64) {
        self.node.set_link(number, up);
        if let Some(port) = self.port(number) {
            let dropped = if up {
                port.link_up();
                Vec::new()
            } else {
                port.flush()
            };
            for hold in dropped {
                self.release(&hold);
            }
        }
        self.trap = Some(Trap {
            next: now,
            tries: TRAP_TRIES,
        });
        self.changed();
    }

    fn changed(&mut self) {
        for (number, change) in self.node.take_changes() {
            if matches!(change, Change::Retrain | Change::Enabled(_)) {
                self.orders.push((number, change));
            }
        }
        self.configure();
    }

    fn configure(&mut self) {
        for (number, port) in (1..=u8::MAX).zip(&mut self.ports) {
            if let Some(settings) = self.node.port(number) {
                port.configure(settings);
            }
        }
    }

    /// Frees the place that a packet took which has left or was dropped.
    pub(super) fn release(&mut self, hold: &Hold) {
        if let Some(group) = hold.group {
            let Some(left) = self.copies.get_mut(&group) else {
                return;
            };
            *left -= 1;
            if *left > 0 {
                return;
            }
            self.copies.remove(&group);
        }
        if let Some(port) = self.port(hold.input) {
            port.free(hold.vl, hold.blocks);
        }
    }

    /// Takes a packet that has come in on a port and whose VCRC is right.
    pub(super) fn packet_in(&mut self, number: u8, packet: Frame, now: u64) {
        let Some(lrh) = packet.lrh() else { return };
        if lrh.vl() == VL15 {
            self.management_in(number, &lrh, packet, now);
            return;
        }
        let Some(port) = self.port(number) else {
            return;
        };
        let Some(blocks) = port.receive(lrh.vl(), &packet) else {
            return;
        };
        let hold = Hold {
            input: number,
            vl: lrh.vl(),
            blocks,
            group: None,
        };
        self.data_in(hold, &lrh, packet, now);
    }

    fn data_in(&mut self, hold: Hold, lrh: &Lrh, packet: Frame, now: u64) {
        let state = self.node.port(hold.input).map(Port::state);
        match state {
            Some(LinkState::Active) => {}
            // The neighbour is active already (IBTA 7.2.7).
            Some(LinkState::Armed) => {
                self.node.set_state(hold.input, LinkState::Active);
                self.changed();
            }
            _ => return self.release(&hold),
        }
        let dlid = lrh.dlid.get();
        if dlid == PERMISSIVE_LID || !self.allows(hold.input, &packet, true) {
            return self.release(&hold);
        }
        if dlid >= MULTICAST_BASE {
            return self.replicate(hold, lrh, packet, now);
        }
        match self.route(dlid) {
            Some(0) => self.for_itself(hold, &packet, now),
            Some(out) if out != hold.input => self.forward(out, Some(hold), lrh, packet, now),
            // Unknown, or back to where it came from.
            _ => {
                self.count_relay_error(hold.input);
                self.release(&hold);
            }
        }
    }

    fn route(&self, lid: u16) -> Option<u8> {
        if self.node.port(0)?.info.has_lid(lid) {
            return Some(0);
        }
        let out = self.node.switch.as_ref()?.port(lid)?;
        (usize::from(out) <= self.ports.len()).then_some(out)
    }

    fn count_relay_error(&mut self, number: u8) {
        if let Some(port) = self.port(number) {
            port.counters.rcv_switch_relay_errors += 1;
        }
    }

    /// Checks the P_Key where the port enforces partitions (IBTA 18.2.4.2.1).
    fn allows(&mut self, number: u8, packet: &Frame, inbound: bool) -> bool {
        let Some(port) = self.node.port_mut(number) else {
            return false;
        };
        let bit = if inbound {
            PortInfo::ENFORCE_INBOUND
        } else {
            PortInfo::ENFORCE_OUTBOUND
        };
        if port.info.vls_enforcement & bit == 0 {
            return true;
        }
        let Some(pkey) = packet.bth().map(|bth| bth.pkey.get()) else {
            return false;
        };
        if port.pkeys.iter().any(|&own| pkeys_match(own, pkey)) {
            return true;
        }
        port.count_pkey_violation();
        if let Some(port) = self.port(number) {
            if inbound {
                port.counters.rcv_constraint_errors += 1;
            } else {
                port.counters.xmit_constraint_errors += 1;
            }
        }
        false
    }

    /// Puts a packet into the queue of an output port, or drops it.
    fn forward(&mut self, out: u8, hold: Option<Hold>, lrh: &Lrh, packet: Frame, now: u64) {
        let input = hold.map_or(0, |hold| hold.input);
        let mapping = self
            .node
            .port(out)
            .and_then(|port| port.sl_to_vl.get(usize::from(input)));
        let vl = mapping.map_or(VL15, |table| table.vl(lrh.sl()));
        let allowed = self.allows(out, &packet, false);
        let Some(port) = self.port(out) else {
            if let Some(hold) = hold {
                self.release(&hold);
            }
            return;
        };
        if !allowed || !port.carries(vl) {
            if allowed {
                port.counters.xmit_discards += 1;
            }
            if let Some(hold) = hold {
                self.release(&hold);
            }
            return;
        }
        let queued = Queued {
            packet,
            hold,
            arrived: now,
        };
        port.enqueue_data(vl, queued, now);
    }

    /// Sends a multicast packet to each port of its group but the one that it came from (IBTA 18.2.4.3.3).
    fn replicate(&mut self, hold: Hold, lrh: &Lrh, packet: Frame, now: u64) {
        let switch = self.node.switch.as_ref();
        let ports: Vec<u8> = switch
            .map(|switch| switch.ports(lrh.dlid.get()).collect())
            .unwrap_or_default();
        let outputs: Vec<u8> = ports
            .into_iter()
            .filter(|&out| out != hold.input && out != 0 && usize::from(out) <= self.ports.len())
            .collect();
        if outputs.is_empty() {
            self.count_relay_error(hold.input);
            return self.release(&hold);
        }
        let group = self.next_group;
        self.next_group = group.wrapping_add(1);
        // CAST: A switch has at most 254 ports.
        self.copies.insert(group, outputs.len() as u32);
        let hold = Hold {
            group: Some(group),
            ..hold
        };
        for out in outputs {
            self.forward(out, Some(hold), lrh, packet.clone(), now);
        }
    }

    /// Takes a packet for the switch itself. Its answer keeps the place of the request, so that a flood of requests is held
    /// back as any other.
    fn for_itself(&mut self, hold: Hold, packet: &Frame, now: u64) {
        let parsed = packet.parse().ok();
        let Some((from, mad)) = parsed.as_ref().and_then(agent::parse) else {
            return self.release(&hold);
        };
        let at = arrival(hold.input, now);
        match agent::general_services(&mut self.node, &at, &from, &mad) {
            Outcome::Route(to, mad) => {
                let packet = to.build(Frame::default(), &mad);
                match (self.route(to.dlid), packet.lrh()) {
                    (Some(out), Some(lrh)) if out != 0 => {
                        self.forward(out, Some(hold), &lrh, packet, now);
                    }
                    _ => self.release(&hold),
                }
            }
            Outcome::Out(..) | Outcome::Host | Outcome::Drop => self.release(&hold),
        }
    }

    /// Tells the performance agent what a port and its link have counted.
    pub(super) fn set_counters(&mut self, number: u8, counters: Counters) {
        if let Some(own) = self.node.port_mut(number) {
            let link_downed = own.counters.link_downed;
            own.counters = Counters {
                link_downed,
                ..counters
            };
        }
    }

    fn management_in(&mut self, number: u8, lrh: &Lrh, packet: Frame, now: u64) {
        let dlid = lrh.dlid.get();
        if dlid != PERMISSIVE_LID {
            match self.route(dlid) {
                Some(0) => {}
                Some(out) => {
                    if let Some(port) = self.port(out) {
                        port.enqueue_management(packet, now);
                    }
                    return;
                }
                None => return self.count_relay_error(number),
            }
        }
        let parsed = packet.parse().ok().as_ref().and_then(agent::parse);
        let Some((from, mad)) = parsed else {
            if let Some(port) = self.port(number) {
                port.counters.rcv_errors += 1;
            }
            return;
        };
        let is_set = head(&mad).method == method::SET;
        if head(&mad).method == method::TRAP_REPRESS {
            self.trap = None;
            return;
        }
        let at = arrival(number, now);
        match agent::subnet_management(&mut self.node, &at, &from, &mad) {
            Outcome::Out(out, mad) => {
                let packet = Address::DIRECTED.build(packet, &mad);
                if let Some(port) = self.port(out) {
                    port.enqueue_management(packet, now);
                }
            }
            Outcome::Route(to, mad) => self.send_management(&to, &mad, now),
            Outcome::Host | Outcome::Drop => {}
        }
        if is_set {
            self.changed();
        }
    }

    /// Sends a datagram of subnet management to a LID.
    fn send_management(&mut self, to: &Address, mad: &Mad, now: u64) {
        let packet = to.build(Frame::default(), mad);
        if let Some(port) = self.route(to.dlid).and_then(|out| self.port(out)) {
            port.enqueue_management(packet, now);
        }
    }

    /// Tells the subnet manager that a link has changed its state, until it says that it knows (IBTA 14.3.9).
    pub(super) fn send_trap(&mut self, now: u64) {
        let Some(trap) = self.trap.as_mut().filter(|trap| trap.next <= now) else {
            return;
        };
        trap.next = now.saturating_add(TRAP_INTERVAL);
        trap.tries -= 1;
        if trap.tries == 0 {
            self.trap = None;
        }
        let Some(own) = self.node.port(0).map(|port| port.info) else {
            return;
        };
        let (lid, manager) = (own.lid.get(), own.sm_lid.get());
        if lid == 0 || manager == 0 {
            return;
        }
        self.transaction += 1;
        let mut smp = Smp::by_lid(method::TRAP, attribute::NOTICE, 0);
        smp.head.transaction.set(self.transaction);
        smp.set_attribute(&Notice::link_state_change(lid));
        let to = Address {
            slid: lid,
            dlid: manager,
            sl: own.sm_sl(),
            ..Address::DIRECTED
        };
        self.send_management(&to, &smp.to_mad(), now);
    }

    /// Returns when the next trap is due.
    pub(super) fn trap_due(&self) -> Option<u64> {
        self.trap.as_ref().map(|trap| trap.next)
    }
}

fn arrival(port: u8, now: u64) -> Arrival {
    Arrival {
        port,
        trusted: false,
        now,
    }
}
