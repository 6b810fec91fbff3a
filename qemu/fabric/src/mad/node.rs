// SPDX-License-Identifier: GPL-2.0 OR MIT

use crate::wire::header;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Kinds of nodes (IBTA 14.2.5.3 NodeType).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeKind {
    /// Channel adapter.
    Adapter = 1,
    /// Switch.
    Switch = 2,
}

header! {
    /// NodeDescription (IBTA 14.2.5.2).
    pub struct NodeDescription[64] {
        /// UTF-8, filled up with zeros.
        pub text: [u8; 64],
    }
}

impl NodeDescription {
    /// Makes one of as much of `text` as fits.
    pub fn new(text: &str) -> Self {
        let mut end = text.len().min(64);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; 64];
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        Self { text: bytes }
    }
}

impl std::fmt::Display for NodeDescription {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = self.text.iter().position(|&b| b == 0).unwrap_or(64);
        f.write_str(&String::from_utf8_lossy(&self.text[..end]))
    }
}

header! {
    /// NodeInfo (IBTA 14.2.5.3).
    pub struct NodeInfo[40] {
        /// Base version.
        pub base_version: u8,
        /// Class version.
        pub class_version: u8,
        /// A [`NodeKind`].
        pub node_type: u8,
        /// Number of ports, port 0 of a switch not counted.
        pub num_ports: u8,
        /// GUID of the system.
        pub system_guid: U64,
        /// GUID of the node.
        pub node_guid: U64,
        /// GUID of the port that the datagram came in on; of a switch that of port 0.
        pub port_guid: U64,
        /// Entries of the P_Key table of a port; of a switch those of port 0.
        pub partition_cap: U16,
        /// Device.
        pub device_id: U16,
        /// Revision.
        pub revision: U32,
        /// Bits 31:24 the port that the datagram came in on, 23:0 vendor.
        pub port_vendor: U32,
    }
}

impl NodeInfo {
    /// Returns whether the node is a switch.
    pub fn is_switch(&self) -> bool {
        // CAST: A discriminant.
        self.node_type == NodeKind::Switch as u8
    }

    /// Returns the port that the datagram came in on.
    pub fn local_port(&self) -> u8 {
        self.port_vendor.get().to_be_bytes()[0]
    }
}

header! {
    /// SwitchInfo (IBTA 14.2.5.4).
    pub struct SwitchInfo[20] {
        /// Entries of the linear forwarding table.
        pub linear_cap: U16,
        /// Entries of the random forwarding table.
        pub random_cap: U16,
        /// Entries of the multicast forwarding table.
        pub multicast_cap: U16,
        /// Last LID of the linear forwarding table that is used.
        pub linear_top: U16,
        /// Port of what the tables do not name (random forwarding).
        pub default_port: u8,
        /// Of multicast that has come in on another port.
        pub default_primary: u8,
        /// Of multicast that has come in on that port.
        pub default_not_primary: u8,
        /// Bits 7:3 lifetime, 2 a port has changed its state, 1:0 optimised SL to VL mapping.
        pub life_time: u8,
        /// LIDs per port (random forwarding).
        pub lids_per_port: U16,
        /// Entries of the P_Key table of a port.
        pub enforcement_cap: U16,
        /// Bits 7:4 partition and raw filters, 3 enhanced port 0.
        pub flags: u8,
        /// Reserved.
        pub reserved: u8,
        /// Last LID of the multicast forwarding table that is used.
        pub multicast_top: U16,
    }
}

impl SwitchInfo {
    /// Bit of `life_time`: PortStateChange.
    pub const STATE_CHANGE: u8 = 1 << 2;

    /// Returns LifeTimeValue: a packet may stay 4.096 us * 2^n; above 19 for ever.
    pub fn life_time_value(&self) -> u8 {
        self.life_time >> 3
    }
}
