// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a node does with the management datagrams that reach it: an HCA and a switch alike.

use crate::mad::{
    head, receive, reply, Address, LinkState, Mad, PerfMad, Smp, Step, GSI_QKEY, PERMISSIVE_LID,
};
use crate::node::Node;
use crate::sma::{self, Arrival};
use crate::{pma, wire::Packet, wire::Transport};

/// VL of subnet management.
pub const VL15: u8 = 15;

/// QP number of general services.
const GSI: u32 = 1;

/// What becomes of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It, or its answer, goes out of a port on a directed route.
    Out(u8, Box<Mad>),
    /// Its answer goes to a LID.
    Route(Address, Box<Mad>),
    /// It is for whoever manages from this node.
    Host,
    /// Nothing.
    Drop,
}

/// Reads a packet for QP 0 or QP 1: its address and datagram; [`None`] if it is not a well-formed one. QP 0 is on VL 15, and
/// nothing else is (IBTA 3.9.1).
pub fn parse(packet: &Packet<'_>) -> Option<(Address, Mad)> {
    let in_place = packet.transport == Transport::Ud
        && packet.bth.qpn() <= GSI
        && (packet.bth.qpn() == 0) == (packet.lrh.vl() == VL15);
    Address::parse(packet).filter(|_| in_place)
}

/// Takes a datagram of QP 0.
pub fn subnet_management(node: &mut Node, at: &Arrival, from: &Address, mad: &Mad) -> Outcome {
    let mut smp = Smp::from_mad(mad);
    if smp.is_directed() {
        match receive(&mut smp, at.port, node.is_switch()) {
            Step::Agent if sma::serves(&smp.head) => {}
            Step::Agent | Step::Manager => return Outcome::Host,
            Step::Out(port) => return Outcome::Out(port, Box::new(smp.to_mad())),
            Step::Lid(dlid) => {
                let to = Address {
                    dlid,
                    slid: own_lid(node, at),
                    ..Address::DIRECTED
                };
                return Outcome::Route(to, Box::new(smp.to_mad()));
            }
            Step::Discard => return Outcome::Drop,
        }
    } else if !is_own(node, at, from.dlid) {
        return Outcome::Drop;
    } else if !sma::serves(&smp.head) {
        return Outcome::Host;
    }
    if !sma::process(node, at, &mut smp) {
        return Outcome::Drop;
    }
    if !smp.is_directed() {
        return Outcome::Route(from.answer(), Box::new(smp.to_mad()));
    }
    match reply(&mut smp, from.slid) {
        Step::Out(port) => Outcome::Out(port, Box::new(smp.to_mad())),
        Step::Lid(_) => Outcome::Route(from.answer(), Box::new(smp.to_mad())),
        // A return path that does not lead back.
        Step::Agent | Step::Manager | Step::Discard => Outcome::Drop,
    }
}

/// Takes a datagram of QP 1.
pub fn general_services(node: &mut Node, at: &Arrival, from: &Address, mad: &Mad) -> Outcome {
    let number = node.management_port(at.port);
    let Some(port) = node.port_mut(number) else {
        return Outcome::Drop;
    };
    if port.state() < LinkState::Armed || !port.info.has_lid(from.dlid) {
        return Outcome::Drop;
    }
    if port.pkey_index(from.pkey).is_none() {
        port.count_pkey_violation();
        return Outcome::Drop;
    }
    // The host has a Q_Key of its own and checks it.
    if from.qkey != GSI_QKEY || !pma::serves(head(mad)) {
        return Outcome::Host;
    }
    let mut perf = PerfMad::from_mad(mad);
    pma::process(node, &mut perf);
    Outcome::Route(from.answer(), Box::new(perf.to_mad()))
}

/// Has the agent of its class answer a datagram of the node itself; [`None`] if there is no answer.
pub fn execute(node: &mut Node, at: &Arrival, mad: &Mad) -> Option<Mad> {
    if sma::serves(head(mad)) {
        let mut smp = Smp::from_mad(mad);
        return sma::process(node, at, &mut smp).then(|| smp.to_mad());
    }
    if pma::serves(head(mad)) {
        let mut perf = PerfMad::from_mad(mad);
        pma::process(node, &mut perf);
        return Some(perf.to_mad());
    }
    None
}

fn is_own(node: &Node, at: &Arrival, lid: u16) -> bool {
    let port = node.port(node.management_port(at.port));
    lid == PERMISSIVE_LID || port.is_some_and(|port| port.info.has_lid(lid))
}

fn own_lid(node: &Node, at: &Arrival) -> u16 {
    let port = node.port(node.management_port(at.port));
    port.map_or(PERMISSIVE_LID, |port| port.info.lid.get())
}
