// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a node keeps for subnet management: an HCA and a switch alike.

use crate::counters::Counters;
use crate::mad::{
    capability, Arbitration, LinkState, NodeDescription, NodeInfo, NodeKind, PhysicalState,
    PortInfo, SlToVl, Smp, SwitchInfo, BASE_VERSION, MULTICAST_BASE,
};
use zerocopy::FromZeros;

/// Prefix of a subnet that no subnet manager has named (IBTA 4.1.1).
pub const DEFAULT_PREFIX: u64 = 0xfe80 << 48;

/// Full member of the default partition (IBTA 10.9.1.2).
pub const DEFAULT_PKEY: u16 = 0xffff;

/// Entries of the P_Key table of a port.
pub const PKEYS: u16 = 32;

/// Entries of the GUID table of a port.
pub const GUIDS: u8 = 8;

/// Unicast LIDs that a switch can forward to.
pub const LINEAR_ENTRIES: u16 = MULTICAST_BASE;

/// Multicast LIDs that a switch can forward to, from [`MULTICAST_BASE`] on.
pub const MULTICAST_ENTRIES: u16 = 1024;

/// Output port of a LID that a switch does not know.
pub const NO_PORT: u8 = 0xff;

/// Ports in a mask of the multicast forwarding table.
pub const MASK_PORTS: usize = 16;

/// Most ports of a switch: those that 16 positions of multicast masks can name.
pub const MAX_SWITCH_PORTS: u8 = 254;

/// Code of an MTU of 4096 bytes.
const MTU_4096: u8 = 5;

/// Code of eight data VLs.
const EIGHT_VLS: u8 = 4;

/// Entries of an arbitration table.
const ARBITRATION_ENTRIES: u8 = 32;

/// What management has changed on a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The logical state.
    State {
        /// What it was.
        from: LinkState,
        /// What it is.
        to: LinkState,
    },
    /// The link is to go down and to train anew.
    Retrain,
    /// The port has been switched off, or on again.
    Enabled(bool),
    /// LID or LMC.
    Lid,
    /// P_Key table.
    Pkeys,
    /// GID prefix or GUID table.
    Gids,
    /// LID or service level of the subnet manager.
    Manager,
    /// Clients are to register anew.
    Reregister,
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// PortInfo as a Get returns it.
    pub info: PortInfo,
    /// P_Key table; 0 is no key.
    pub pkeys: Vec<u16>,
    /// GUID table; the first is the port's own, 0 is none.
    pub guids: Vec<u64>,
    /// VL of each service level, by input port on a switch.
    pub sl_to_vl: Vec<SlToVl>,
    /// VL arbitration: low and high priority.
    pub arbitration: [Arbitration; 2],
    /// Counters, which the owner keeps up to date.
    pub counters: Counters,
    /// What to subtract for PortCounters and for PortCountersExtended.
    pub counter_base: [Counters; 2],
    /// When the M_Key stops to protect (IBTA 14.2.4.2).
    pub lease_end: Option<u64>,
}

impl Port {
    fn new(guid: u64, inputs: usize, pkeys: u16) -> Self {
        let mut info = PortInfo::new_zeroed();
        info.gid_prefix.set(DEFAULT_PREFIX);
        info.capability_mask.set(
            capability::IS_TRAP
                | capability::IS_SL_MAPPING
                | capability::IS_SYSTEM_IMAGE_GUID
                | capability::IS_EXTENDED_SPEEDS
                | capability::IS_CLIENT_REREGISTRATION,
        );
        // 1x and 4x; 4x in use.
        (info.width_supported, info.width_enabled, info.width_active) = (3, 3, 2);
        // SDR to QDR, and FDR to NDR; NDR in use.
        (info.speed_state, info.speed_active) = (7 << 4, (4 << 4) | 7);
        (info.ext_speed_active, info.ext_speed_enabled) = ((8 << 4) | 15, 15);
        // CAST: A discriminant.
        info.phys_down = PhysicalState::Polling as u8;
        info.set_physical(PhysicalState::Polling);
        info.set_state(LinkState::Down);
        info.mtu_sm_sl = MTU_4096 << 4;
        info.vl_cap = EIGHT_VLS << 4;
        (info.vl_high_cap, info.vl_low_cap) = (ARBITRATION_ENTRIES, ARBITRATION_ENTRIES);
        info.mtu_cap = MTU_4096;
        // For ever.
        info.stall_hoq = 0x14;
        info.vls_enforcement = 1 << 4;
        info.guid_cap = GUIDS;
        info.reregister_timeout = 18;
        info.response_time = 16;
        info.errors = 0x88;
        let mut table = vec![0; usize::from(pkeys)];
        if let Some(first) = table.first_mut() {
            *first = DEFAULT_PKEY;
        }
        let mut guids = vec![0; usize::from(GUIDS)];
        guids[0] = guid;
        Self {
            info,
            pkeys: table,
            guids,
            sl_to_vl: vec![SlToVl::new(|_| 0); inputs],
            arbitration: [default_arbitration(); 2],
            counters: Counters::default(),
            counter_base: [Counters::default(); 2],
            lease_end: None,
        }
    }

    /// Returns the GUID.
    pub fn guid(&self) -> u64 {
        self.guids[0]
    }

    /// Returns the logical state.
    pub fn state(&self) -> LinkState {
        self.info.state().unwrap_or(LinkState::Down)
    }

    /// Returns the index of the P_Key that lets a packet with `pkey` in: the same partition, and not both limited members
    /// (IBTA 10.9.3).
    pub fn pkey_index(&self, pkey: u16) -> Option<u16> {
        let found = self.pkeys.iter().position(|&own| pkeys_match(own, pkey))?;
        // CAST: The table has at most 32 blocks of 32.
        Some(found as u16)
    }

    /// Returns the GID of an entry of the GUID table; all zero if the entry is empty or beyond the table.
    pub fn gid(&self, index: u16) -> [u8; 16] {
        match self.guids.get(usize::from(index)) {
            Some(&guid) if guid != 0 => {
                ((u128::from(self.info.gid_prefix.get()) << 64) | u128::from(guid)).to_be_bytes()
            }
            _ => [0; 16],
        }
    }

    /// Counts a wrong P_Key.
    pub fn count_pkey_violation(&mut self) {
        let count = self.info.pkey_violations.get().saturating_add(1);
        self.info.pkey_violations.set(count);
    }
}

/// Returns whether two P_Keys are of one partition and not both of limited members (IBTA 10.9.3). The key of no partition
/// matches none.
pub fn pkeys_match(a: u16, b: u16) -> bool {
    const FULL: u16 = 0x8000;
    let (base_a, base_b) = (a & !FULL, b & !FULL);
    base_a == base_b && base_a != 0 && (a | b) & FULL != 0
}

/// The table of a port that nobody has set: VL 0 only.
fn default_arbitration() -> Arbitration {
    let mut table = Arbitration::new_zeroed();
    table.entries[0].weight = 255;
    table
}

/// Forwarding tables of a switch.
#[derive(Clone, Debug)]
pub struct Forwarding {
    /// SwitchInfo as a Get returns it.
    pub info: SwitchInfo,
    /// Output port by LID.
    pub linear: Vec<u8>,
    /// Masks of output ports by LID from [`MULTICAST_BASE`] on, and position.
    pub multicast: Vec<Vec<u16>>,
}

impl Forwarding {
    fn new(ports: u8) -> Self {
        let mut info = SwitchInfo::new_zeroed();
        info.linear_cap.set(LINEAR_ENTRIES);
        info.multicast_cap.set(MULTICAST_ENTRIES);
        // For ever.
        info.life_time = 20 << 3;
        info.enforcement_cap.set(PKEYS);
        info.default_primary = NO_PORT;
        info.default_not_primary = NO_PORT;
        let positions = (usize::from(ports) + 1).div_ceil(MASK_PORTS);
        Self {
            info,
            linear: vec![NO_PORT; usize::from(LINEAR_ENTRIES)],
            multicast: vec![vec![0; positions]; usize::from(MULTICAST_ENTRIES)],
        }
    }

    /// Returns the output port of a unicast LID.
    pub fn port(&self, lid: u16) -> Option<u8> {
        let known = lid <= self.info.linear_top.get();
        let port = self.linear.get(usize::from(lid)).filter(|_| known)?;
        Some(*port).filter(|&port| port != NO_PORT)
    }

    /// Returns the output ports of a multicast LID.
    pub fn ports(&self, lid: u16) -> impl Iterator<Item = u8> + '_ {
        let entry = lid
            .checked_sub(MULTICAST_BASE)
            .and_then(|n| self.multicast.get(usize::from(n)));
        let masks = entry.map_or(&[][..], Vec::as_slice);
        masks.iter().enumerate().flat_map(|(position, &mask)| {
            (0..MASK_PORTS)
                .filter(move |bit| mask & (1 << bit) != 0)
                // CAST: There are at most 16 positions.
                .map(move |bit| (position * MASK_PORTS + bit) as u8)
        })
    }
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node {
    /// NodeInfo; what depends on the port is filled in by the agent.
    pub info: NodeInfo,
    /// NodeDescription.
    pub description: NodeDescription,
    /// Ports; of a switch the first is port 0.
    ports: Vec<Port>,
    /// Tables of a switch.
    pub switch: Option<Forwarding>,
    changes: Vec<(u8, Change)>,
}

/// Who made a node.
#[derive(Clone, Copy, Debug)]
pub struct Maker {
    /// OUI of the vendor.
    pub vendor: u32,
    /// Device.
    pub device: u16,
    /// Revision.
    pub revision: u32,
}

impl Node {
    fn new(kind: NodeKind, guid: u64, ports: u8, maker: Maker, description: &str) -> Self {
        let mut info = NodeInfo::new_zeroed();
        info.base_version = BASE_VERSION;
        info.class_version = Smp::CLASS_VERSION;
        // CAST: A discriminant.
        info.node_type = kind as u8;
        info.num_ports = ports;
        info.system_guid.set(guid);
        info.node_guid.set(guid);
        info.partition_cap.set(PKEYS);
        info.device_id.set(maker.device);
        info.revision.set(maker.revision);
        info.port_vendor.set(maker.vendor & 0xff_ffff);
        Self {
            info,
            description: NodeDescription::new(description),
            ports: Vec::new(),
            switch: None,
            changes: Vec::new(),
        }
    }

    /// Makes an HCA; port n has the GUID of the node plus n.
    pub fn adapter(guid: u64, ports: u8, maker: Maker, description: &str) -> Self {
        let mut node = Self::new(NodeKind::Adapter, guid, ports, maker, description);
        let port = |n: u8| Port::new(guid.wrapping_add(n.into()), 1, PKEYS);
        node.ports = (1..=ports).map(port).collect();
        node
    }

    /// Makes a switch, whose management port has the GUID of the node.
    pub fn switch(guid: u64, ports: u8, maker: Maker, description: &str) -> Self {
        let mut node = Self::new(NodeKind::Switch, guid, ports, maker, description);
        let inputs = usize::from(ports) + 1;
        node.ports = (0..=ports)
            .map(|_| Port::new(guid, inputs, PKEYS))
            .collect();
        // A base port 0 has no link and is always there (IBTA 18.2.4.1).
        node.ports[0].info.set_state(LinkState::Active);
        node.ports[0].info.set_physical(PhysicalState::LinkUp);
        node.switch = Some(Forwarding::new(ports));
        node
    }

    /// Returns whether this is a switch.
    pub fn is_switch(&self) -> bool {
        self.switch.is_some()
    }

    fn index(&self, number: u8) -> Option<usize> {
        let first = if self.is_switch() { 0 } else { 1 };
        let index = usize::from(number.checked_sub(first)?);
        (index < self.ports.len()).then_some(index)
    }

    /// Returns a port by its number.
    pub fn port(&self, number: u8) -> Option<&Port> {
        Some(&self.ports[self.index(number)?])
    }

    /// Returns a port by its number.
    pub fn port_mut(&mut self, number: u8) -> Option<&mut Port> {
        let index = self.index(number)?;
        Some(&mut self.ports[index])
    }

    /// Returns the ports with their numbers.
    pub fn ports(&self) -> impl Iterator<Item = (u8, &Port)> {
        let first = if self.is_switch() { 0 } else { 1 };
        (first..=u8::MAX).zip(&self.ports)
    }

    /// Returns the port that has the LID of management that came in on a port: on a switch it is port 0.
    pub fn management_port(&self, arrived: u8) -> u8 {
        if self.is_switch() {
            0
        } else {
            arrived
        }
    }

    /// Notes that the link of a port has come up or gone down (IBTA 7.2.7).
    pub fn set_link(&mut self, number: u8, up: bool) {
        let Some(port) = self.port_mut(number) else {
            return;
        };
        let (state, physical) = if up {
            (LinkState::Initialize, PhysicalState::LinkUp)
        } else {
            (LinkState::Down, PhysicalState::Polling)
        };
        // CAST: A discriminant.
        if up || port.info.physical() != PhysicalState::Disabled as u8 {
            port.info.set_physical(physical);
        }
        if up != (port.state() == LinkState::Down) {
            return;
        }
        if !up {
            port.counters.link_downed += 1;
        }
        self.set_state(number, state);
        self.note_state_change();
    }

    /// Changes the logical state of a port.
    pub fn set_state(&mut self, number: u8, to: LinkState) {
        let Some(port) = self.port_mut(number) else {
            return;
        };
        let from = port.state();
        if from == to {
            return;
        }
        port.info.set_state(to);
        self.note(number, Change::State { from, to });
    }

    /// Sets PortStateChange of a switch, which a subnet manager polls (IBTA 14.2.5.4).
    pub(crate) fn note_state_change(&mut self) {
        if let Some(switch) = &mut self.switch {
            switch.info.life_time |= SwitchInfo::STATE_CHANGE;
        }
    }

    pub(crate) fn note(&mut self, port: u8, change: Change) {
        self.changes.push((port, change));
    }

    /// Takes what has changed: port number and change, oldest first.
    pub fn take_changes(&mut self) -> Vec<(u8, Change)> {
        std::mem::take(&mut self.changes)
    }

    /// Returns whether something has changed.
    pub fn has_changes(&self) -> bool {
        !self.changes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pkeys_match_by_partition_and_membership() {
        for (a, b, want) in [
            (0xffff, 0xffff, true),
            (0xffff, 0x7fff, true),
            (0x7fff, 0x7fff, false),
            (0x8001, 0x0001, true),
            (0x8001, 0x8002, false),
            (0x8000, 0x8000, false),
            (0, 0, false),
        ] {
            assert_eq!(pkeys_match(a, b), want, "{a:#x} {b:#x}");
            assert_eq!(pkeys_match(b, a), want, "{b:#x} {a:#x}");
        }
    }
}
