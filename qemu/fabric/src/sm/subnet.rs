// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a sweep finds.

use super::route::Graph;
use crate::mad::{LinkState, NodeDescription, NodeInfo, PortInfo, SwitchInfo};
use std::collections::BTreeMap;
use zerocopy::FromZeros;

/// A port.
#[derive(Clone, Debug)]
pub struct FoundPort {
    /// What it says of itself.
    pub info: PortInfo,
    /// Directed route to it.
    pub path: Vec<u8>,
    /// Node and port at the other end of its link.
    pub peer: Option<(u64, u8)>,
}

impl FoundPort {
    /// Returns the state that it was found in.
    pub fn state(&self) -> LinkState {
        self.info.state().unwrap_or(LinkState::Down)
    }
}

/// A node.
#[derive(Clone, Debug)]
pub struct FoundNode {
    /// What it says of itself.
    pub info: NodeInfo,
    /// Its name.
    pub description: NodeDescription,
    /// What it says of itself as a switch.
    pub switch: Option<SwitchInfo>,
    /// Directed route to it.
    pub path: Vec<u8>,
    /// Its ports, by number; port 0 of a switch too.
    pub ports: BTreeMap<u8, FoundPort>,
    /// GUIDs of the ports of an HCA by which it was reached.
    pub(super) guids: BTreeMap<u8, u64>,
}

impl FoundNode {
    pub(super) fn new(info: &NodeInfo, path: Vec<u8>) -> Self {
        Self {
            info: *info,
            description: NodeDescription::new_zeroed(),
            switch: None,
            path,
            ports: BTreeMap::new(),
            guids: BTreeMap::new(),
        }
    }

    /// Returns the GUID of a port that has a LID of its own.
    pub fn port_guid(&self, number: u8) -> u64 {
        let of_port = self.guids.get(&number).copied();
        of_port.unwrap_or_else(|| self.info.port_guid.get())
    }

    pub(super) fn add_port(&mut self, number: u8, path: &[u8], info: &PortInfo) {
        let peer = self.ports.get(&number).and_then(|port| port.peer);
        let found = FoundPort {
            info: *info,
            path: path.to_vec(),
            peer,
        };
        self.ports.insert(number, found);
    }
}

/// All nodes.
#[derive(Clone, Debug, Default)]
pub struct Subnet {
    /// By GUID.
    pub nodes: BTreeMap<u64, FoundNode>,
    /// GUIDs in the order in which they were found; the first is the manager's own node.
    pub order: Vec<u64>,
    /// Links whose other port has not been looked at yet.
    links: Vec<[(u64, u8); 2]>,
}

impl Subnet {
    /// Notes a link between two ports.
    pub(super) fn join(&mut self, a: (u64, u8), b: (u64, u8)) {
        self.links.push([a, b]);
    }

    /// Enters the links at their ports, when all are known.
    pub(super) fn close_links(&mut self) {
        for [a, b] in std::mem::take(&mut self.links) {
            for (own, peer) in [(a, b), (b, a)] {
                let node = self.nodes.get_mut(&own.0);
                if let Some(port) = node.and_then(|node| node.ports.get_mut(&own.1)) {
                    port.peer = Some(peer);
                }
            }
        }
    }

    /// Returns a port.
    pub fn port(&self, (node, number): (u64, u8)) -> Option<&FoundPort> {
        self.nodes.get(&node)?.ports.get(&number)
    }

    /// Returns the GUIDs of the switches.
    pub fn switches(&self) -> Vec<u64> {
        let is_switch = |guid: &&u64| self.nodes[guid].switch.is_some();
        self.order.iter().filter(is_switch).copied().collect()
    }

    /// Returns every port that was looked at, with its node.
    pub(super) fn all_ports(&self) -> Vec<(u64, u8)> {
        let of = |guid: &u64| {
            let guid = *guid;
            self.nodes[&guid]
                .ports
                .keys()
                .map(move |&number| (guid, number))
        };
        self.order.iter().flat_map(of).collect()
    }

    /// Returns every port that has a LID of its own, with its node, in the order in which they were found.
    pub fn ends(&self) -> Vec<(u64, u8)> {
        let mut ends = Vec::new();
        for guid in &self.order {
            let node = &self.nodes[guid];
            let numbers = node.ports.keys().copied();
            let is_end = |number: &u8| node.switch.is_none() || *number == 0;
            ends.extend(numbers.filter(is_end).map(|number| (*guid, number)));
        }
        ends
    }

    /// Returns the switches of [`Subnet::switches`] as a graph.
    pub(super) fn graph(&self) -> Graph {
        let switches = self.switches();
        let index = |guid: u64| switches.iter().position(|&other| other == guid);
        let mut graph = Graph::default();
        for (n, guid) in switches.iter().enumerate() {
            let mut neighbours = Vec::new();
            for (&number, port) in &self.nodes[guid].ports {
                let Some((peer, _)) = port.peer else { continue };
                match index(peer) {
                    Some(other) if other != n => neighbours.push((number, other)),
                    Some(_) => {}
                    None if graph.leaves.last() != Some(&n) => graph.leaves.push(n),
                    None => {}
                }
            }
            graph.neighbours.push(neighbours);
        }
        graph
    }
}
