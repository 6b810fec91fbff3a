// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a sweep makes of what it has found: LIDs, tables, states.

use super::route::Routes;
use super::{Ask, Manager, Partition, Phase};
use crate::mad::{
    attribute, method, Arbitration, LinearBlock, LinkState, MulticastBlock, PkeyBlock, PortInfo,
    SlToVl, Smp, SwitchInfo, MULTICAST_BASE,
};
use crate::node::{DEFAULT_PKEY, DEFAULT_PREFIX, MASK_PORTS, NO_PORT};
use std::collections::{BTreeMap, BTreeSet};
use zerocopy::{FromZeros, IntoBytes};

/// A packet may wait for ever, at the head of a queue and in a switch: the routes have no deadlock, and so nothing is lost.
const FOR_EVER: u8 = 20;

/// VLStallCount, without effect where a packet may wait for ever.
const STALL: u8 = 7 << 5;

/// Subnet timeout: 1.07 s.
const SUBNET_TIMEOUT: u8 = 18;

/// Weight of each VL: all alike, in turns of 2 KiB.
const WEIGHT: u8 = 32;

/// Tables of low and of high priority, their first halves (IBTA 14.2.5.9).
const LOW: u32 = 1 << 16;
const HIGH: u32 = 3 << 16;

impl Manager {
    pub(super) fn configure(&mut self) -> Phase {
        self.finding.close_links();
        self.assign_lids();
        let ports: Vec<(u64, u8)> = self.finding.all_ports();
        for at in ports {
            let Some(info) = self.settings_of(at) else {
                continue;
            };
            self.set_port(at, &info);
            if at.1 == 0 && self.is_switch(at.0) {
                continue;
            }
            self.set_lanes(at, &info);
        }
        for end in self.finding.ends() {
            if !self.is_switch(end.0) {
                self.set_pkeys(end);
            }
        }
        let routes = self.finding.graph().routes();
        self.set_forwarding(&routes);
        self.set_multicast(&routes);
        Phase::Configure
    }

    pub(super) fn arm(&mut self) -> Phase {
        self.set_states(LinkState::Armed, |state| state == LinkState::Initialize);
        Phase::Arm
    }

    pub(super) fn activate(&mut self) -> Phase {
        let waits = |state| matches!(state, LinkState::Initialize | LinkState::Armed);
        self.set_states(LinkState::Active, waits);
        Phase::Activate
    }

    /// Moves ports to a state; those whose neighbour is not known stay where they are.
    fn set_states(&mut self, to: LinkState, applies: impl Fn(LinkState) -> bool) {
        for at in self.finding.all_ports() {
            let port = self.finding.port(at);
            let applies = port.is_some_and(|port| port.peer.is_some() && applies(port.state()));
            if !applies {
                continue;
            }
            if let Some(mut info) = self.settings_of(at) {
                info.reregister_timeout &= !PortInfo::REREGISTER;
                info.set_state(to);
                self.set_port(at, &info);
            }
        }
    }

    fn is_switch(&self, guid: u64) -> bool {
        let node = self.finding.nodes.get(&guid);
        node.is_some_and(|node| node.switch.is_some())
    }

    /// Gives a LID to every port that needs one: the one that it is to have, the one that it has, or the next free one.
    fn assign_lids(&mut self) {
        let ends: Vec<(u64, u16)> = self
            .finding
            .ends()
            .into_iter()
            .filter_map(|(node, number)| {
                let found = self.finding.port((node, number))?;
                let guid = self.finding.nodes[&node].port_guid(number);
                Some((guid, found.info.lid.get()))
            })
            .collect();
        let mut used: BTreeSet<u16> = self.lids.values().copied().collect();
        for &(guid, lid) in &ends {
            let is_free = (1..MULTICAST_BASE).contains(&lid) && !used.contains(&lid);
            if !self.lids.contains_key(&guid) && is_free {
                self.lids.insert(guid, lid);
                used.insert(lid);
            }
        }
        for (guid, _) in ends {
            if self.lids.contains_key(&guid) {
                continue;
            }
            let Some(lid) = (1..MULTICAST_BASE).find(|lid| !used.contains(lid)) else {
                log::warn!("subnet manager: no LID is left for {guid:016x}");
                continue;
            };
            self.lids.insert(guid, lid);
            used.insert(lid);
        }
    }

    /// Returns the LID of a port; of a port of a switch that of the switch.
    pub(super) fn lid_of(&self, (node, number): (u64, u8)) -> Option<u16> {
        let guid = self.finding.nodes.get(&node)?.port_guid(number);
        self.lids.get(&guid).copied()
    }

    /// Returns PortInfo as a port is to have it, without a change of state; [`None`] if there is nothing to set.
    fn settings_of(&self, at: (u64, u8)) -> Option<PortInfo> {
        let port = self.finding.port(at)?;
        let is_base = at.1 == 0 && self.is_switch(at.0);
        if !is_base && port.state() == LinkState::Down {
            return None;
        }
        let manager = self.finding.order.first()?;
        let mut info = port.info;
        info.speed_state &= 0xf0;
        (info.phys_down, info.width_enabled) = (0, 0);
        let peer = port.peer.and_then(|peer| self.finding.port(peer));
        let peer = peer.map_or(&port.info, |peer| &peer.info);
        let mtu = info.max_mtu().min(peer.max_mtu());
        let vls = (info.vl_cap >> 4).min(peer.vl_cap >> 4);
        info.mtu_sm_sl = mtu << 4;
        info.vls_enforcement = vls << 4;
        info.stall_hoq = STALL | FOR_EVER;
        info.vl_high_limit = 0;
        if !self.is_switch(at.0) || is_base {
            info.lid.set(self.lid_of(at)?);
            info.sm_lid
                .set(self.lid_of((*manager, self.settings.port))?);
            info.gid_prefix.set(DEFAULT_PREFIX);
            info.protect_lmc &= 0xc0;
            info.reregister_timeout = SUBNET_TIMEOUT;
            if port.state() == LinkState::Initialize {
                info.reregister_timeout |= PortInfo::REREGISTER;
            }
        }
        Some(info)
    }

    fn set(&mut self, at: (u64, u8), attribute: u16, modifier: u32, value: &[u8]) {
        let Some(port) = self.finding.port(at) else {
            return;
        };
        let path = port.path.clone();
        let mut smp = Smp::directed(&path, method::SET, attribute, modifier);
        smp.data[..value.len()].copy_from_slice(value);
        self.request(Ask::Set, &path, smp);
    }

    fn set_port(&mut self, at: (u64, u8), info: &PortInfo) {
        self.set(at, attribute::PORT_INFO, at.1.into(), info.as_bytes());
    }

    /// Sets the mapping of service levels and the arbitration of a port: all VLs in use alike.
    fn set_lanes(&mut self, at: (u64, u8), info: &PortInfo) {
        let vls = info.operational_vls();
        let mapping = SlToVl::new(|sl| if sl == 15 { 15 } else { sl % vls });
        if self.is_switch(at.0) {
            let inputs: Vec<u8> = self.finding.nodes[&at.0]
                .ports
                .iter()
                .filter(|(&input, port)| input == 0 || port.state() != LinkState::Down)
                .map(|(&input, _)| input)
                .collect();
            for input in inputs {
                let modifier = (u32::from(input) << 8) | u32::from(at.1);
                self.set(at, attribute::SL_TO_VL, modifier, mapping.as_bytes());
            }
        } else {
            self.set(at, attribute::SL_TO_VL, 0, mapping.as_bytes());
        }
        let mut low = Arbitration::new_zeroed();
        for (vl, entry) in (0..vls).zip(&mut low.entries) {
            (entry.vl, entry.weight) = (vl, WEIGHT);
        }
        let high = Arbitration::new_zeroed();
        for (half, table) in [(LOW, low), (HIGH, high)] {
            let modifier = half | u32::from(at.1);
            self.set(at, attribute::VL_ARBITRATION, modifier, table.as_bytes());
        }
    }

    fn set_pkeys(&mut self, end: (u64, u8)) {
        let guid = self.finding.nodes[&end.0].port_guid(end.1);
        let mut block = PkeyBlock::new_zeroed();
        let own = self
            .settings
            .partitions
            .iter()
            .filter_map(|p| membership(p, guid));
        let keys = std::iter::once(DEFAULT_PKEY).chain(own);
        for (out, key) in block.pkeys.iter_mut().zip(keys) {
            out.set(key);
        }
        self.set(end, attribute::PKEY_TABLE, 0, block.as_bytes());
    }

    fn set_forwarding(&mut self, routes: &Routes) {
        let switches = self.finding.switches();
        // LID, switch and the port of that switch.
        let mut places: Vec<(u16, usize, u8)> = Vec::new();
        for end in self.finding.ends() {
            let Some(lid) = self.lid_of(end) else {
                continue;
            };
            let place = if self.is_switch(end.0) {
                Some((end.0, 0))
            } else {
                self.finding.port(end).and_then(|port| port.peer)
            };
            let Some((guid, port)) = place else { continue };
            if let Some(switch) = switches.iter().position(|&other| other == guid) {
                places.push((lid, switch, port));
            }
        }
        let top = places.iter().map(|(lid, ..)| *lid).max().unwrap_or(0);
        for (own, &guid) in switches.iter().enumerate() {
            let mut table = vec![NO_PORT; usize::from(top) + 1];
            for &(lid, switch, port) in &places {
                let choices = routes.ports.get(own).and_then(|by| by.get(switch));
                table[usize::from(lid)] = match choices {
                    _ if switch == own => port,
                    // LIDs take turns, so that all ways are used.
                    Some(choices) if !choices.is_empty() => {
                        choices[usize::from(lid) % choices.len()]
                    }
                    _ => NO_PORT,
                };
            }
            self.set_linear(guid, top, &table);
        }
    }

    fn set_linear(&mut self, guid: u64, top: u16, table: &[u8]) {
        let Some(mut info) = self.finding.nodes.get(&guid).and_then(|node| node.switch) else {
            return;
        };
        info.linear_top.set(top);
        info.life_time = FOR_EVER << 3;
        debug_assert_eq!(info.life_time & SwitchInfo::STATE_CHANGE, 0);
        for (modifier, part) in (0..).zip(table.chunks(64)) {
            let mut block = LinearBlock {
                ports: [NO_PORT; 64],
            };
            block.ports[..part.len()].copy_from_slice(part);
            let attribute = attribute::LINEAR_FORWARDING;
            self.set((guid, 0), attribute, modifier, block.as_bytes());
        }
        self.set((guid, 0), attribute::SWITCH_INFO, 0, info.as_bytes());
    }

    /// Sets the multicast tables of all switches: for each group the tree, cut down to what leads to a member.
    pub(super) fn set_multicast(&mut self, routes: &Routes) {
        let switches = self.finding.switches();
        let lids: Vec<u16> = self.groups.lids();
        let (Some(first), Some(last)) = (lids.iter().min(), lids.iter().max()) else {
            return;
        };
        let mut masks: BTreeMap<(usize, u16), BTreeSet<u8>> = BTreeMap::new();
        for &lid in &lids {
            for member in self.groups.members(lid) {
                self.add_member(lid, member, &switches, routes, &mut masks);
            }
        }
        let blocks = (first - MULTICAST_BASE) / 32..=(last - MULTICAST_BASE) / 32;
        for (own, &guid) in switches.iter().enumerate() {
            let ports = self.finding.nodes[&guid].info.num_ports;
            let positions = (usize::from(ports) + 1).div_ceil(MASK_PORTS);
            for block in blocks.clone() {
                for position in 0..positions {
                    let mut value = MulticastBlock::new_zeroed();
                    for (n, out) in (0..).zip(&mut value.masks) {
                        let lid = MULTICAST_BASE + block * 32 + n;
                        out.set(mask(masks.get(&(own, lid)), position));
                    }
                    // CAST: At most 16 positions.
                    let modifier = ((position as u32) << 28) | u32::from(block);
                    let attribute = attribute::MULTICAST_FORWARDING;
                    self.set((guid, 0), attribute, modifier, value.as_bytes());
                }
            }
        }
    }

    /// Enters the way from the root of the tree to a member, in both directions.
    fn add_member(
        &self,
        lid: u16,
        guid: u64,
        switches: &[u64],
        routes: &Routes,
        masks: &mut BTreeMap<(usize, u16), BTreeSet<u8>>,
    ) {
        let subnet = &self.finding;
        let end = subnet.ends().into_iter().find(|&(node, number)| {
            !self.is_switch(node) && subnet.nodes[&node].port_guid(number) == guid
        });
        let peer = end.and_then(|end| subnet.port(end)?.peer);
        let Some((switch, port)) = peer else { return };
        let Some(mut at) = switches.iter().position(|&other| other == switch) else {
            return;
        };
        masks.entry((at, lid)).or_default().insert(port);
        while let Some(&Some((up, parent))) = routes.parents.get(at) {
            masks.entry((at, lid)).or_default().insert(up);
            let here = (switches[at], up);
            let down = subnet.port(here).and_then(|port| port.peer);
            let Some((_, down)) = down else { return };
            masks.entry((parent, lid)).or_default().insert(down);
            at = parent;
        }
    }
}

fn membership(partition: &Partition, guid: u64) -> Option<u16> {
    const FULL: u16 = 0x8000;
    let key = partition.pkey & !FULL;
    if partition.full.contains(&guid) {
        return Some(key | FULL);
    }
    partition.limited.contains(&guid).then_some(key)
}

/// Returns the bits of a position of the multicast masks.
fn mask(ports: Option<&BTreeSet<u8>>, position: usize) -> u16 {
    let ports = ports.into_iter().flatten();
    let here = ports.filter(|&&port| usize::from(port) / MASK_PORTS == position);
    here.fold(0, |mask, &port| {
        mask | (1 << (usize::from(port) % MASK_PORTS))
    })
}
