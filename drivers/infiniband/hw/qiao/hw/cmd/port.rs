// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{command, NoReply};
use crate::{
    describe::{constants, layout, numbers},
    U16,
    U32,
    U64, //
};

numbers! {
    /// Link layer of a port.
    pub enum LinkLayer: u8 {
        /// InfiniBand.
        InfiniBand = 1,
        /// Ethernet.
        Ethernet = 2,
    }
}

numbers! {
    /// Logical state of a port; the values of IBTA 14.2.5.6 PortInfo.PortState.
    pub enum PortState: u8 {
        /// No link.
        Down = 1,
        /// Link up, not configured.
        Init = 2,
        /// Configured, no data traffic yet.
        Armed = 3,
        /// Carries traffic.
        Active = 4,
    }
}

layout! {
    /// Reads the state of a port.
    pub struct QueryPort[8] {
        /// Port number, from 1.
        pub port: u8,
        /// Reserved.
        pub rsvd: [u8; 7],
    }
}
command!(QueryPort => QueryPort, PortAttr);

layout! {
    /// The state of a port. Encodings are those of the IBTA PortInfo attribute (14.2.5.6).
    pub struct PortAttr[64] {
        /// GUID of the port.
        pub port_guid: U64,
        /// Prefix of the subnet; default fe80::/64.
        pub subnet_prefix: U64,
        /// LID; 0 if none is assigned.
        pub lid: U32,
        /// LID of the subnet manager.
        pub sm_lid: U32,
        /// Capability mask.
        pub capability_mask: U32,
        /// Largest message in bytes.
        pub max_message: U32,
        /// P_Key violations.
        pub bad_pkeys: U16,
        /// Q_Key violations.
        pub qkey_violations: U16,
        /// Length of the GID table.
        pub gid_table_len: U16,
        /// Length of the P_Key table.
        pub pkey_table_len: U16,
        /// A `LinkLayer`.
        pub link_layer: u8,
        /// A `PortState`.
        pub state: u8,
        /// Physical state: 1 sleep, 2 polling, 3 disabled, 4 training, 5 link up, 6 recovery.
        pub phys_state: u8,
        /// Largest MTU that the port can do: a `qp::Mtu`.
        pub max_mtu: u8,
        /// MTU in use: a `qp::Mtu`.
        pub active_mtu: u8,
        /// Width in use: 1 for 1x, 2 for 4x, 4 for 8x, 8 for 12x, 16 for 2x.
        pub active_width: u8,
        /// Speed in use: 1 SDR, 2 DDR, 4 QDR, 8 FDR10, 16 FDR, 32 EDR, 64 HDR, 128 NDR, 256 XDR.
        pub active_speed: U16,
        /// LID mask control.
        pub lmc: u8,
        /// Service level of the subnet manager.
        pub sm_sl: u8,
        /// Virtual lanes in operation: 1 VL0, 2 VL0-1, 3 VL0-3, 4 VL0-7, 5 VL0-14.
        pub vl_num: u8,
        /// Subnet timeout: 4.096 us * 2^n.
        pub subnet_timeout: u8,
        /// Reserved.
        pub rsvd: [u8; 12],
    }
}

layout! {
    /// Reads an entry of the GID table.
    pub struct QueryGid[8] {
        /// Port number, from 1.
        pub port: u8,
        /// Reserved.
        pub rsvd0: u8,
        /// Index.
        pub index: U16,
        /// Reserved.
        pub rsvd1: U32,
    }
}
command!(QueryGid => QueryGid, Gid);

layout! {
    /// A GID.
    pub struct Gid[16] {
        /// The GID in wire order.
        pub raw: [u8; 16],
    }
}

layout! {
    /// Reads an entry of the P_Key table.
    pub struct QueryPkey[8] {
        /// Port number, from 1.
        pub port: u8,
        /// Reserved.
        pub rsvd0: u8,
        /// Index.
        pub index: U16,
        /// Reserved.
        pub rsvd1: U32,
    }
}
command!(QueryPkey => QueryPkey, Pkey);

layout! {
    /// A P_Key.
    pub struct Pkey[8] {
        /// Bit 15 full membership, 14:0 the key; 0 if the entry is not used.
        pub pkey: U16,
        /// Reserved.
        pub rsvd: [u8; 6],
    }
}

constants! {
    /// Bits of `ModifyPort::changes`.
    pub mod port_change: u8 {
        /// Apply `set_capabilities` and `clear_capabilities`.
        CAPABILITIES = 1 << 0,
        /// Set the counter of Q_Key violations to zero.
        RESET_QKEY_VIOLATIONS = 1 << 1,
    }
}

layout! {
    /// Changes attributes of a port (IBTA 11.2.1.4).
    pub struct ModifyPort[16] {
        /// Port number, from 1.
        pub port: u8,
        /// What to do; bits in `port_change`.
        pub changes: u8,
        /// Reserved.
        pub rsvd: [u8; 6],
        /// Bits of `PortAttr::capability_mask` to set. Bits that say what agents of the device can
        /// do are the device's own: `BadOperand`.
        pub set_capabilities: U32,
        /// Bits to clear, as above.
        pub clear_capabilities: U32,
    }
}
command!(ModifyPort => ModifyPort, NoReply);
