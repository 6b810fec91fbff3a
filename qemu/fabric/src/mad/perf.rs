// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{class, method, Mad, MadHeader, BASE_VERSION};
use crate::wire::header;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// PortSelect that means every port (IBTA 16.1.3.5).
pub const ALL_PORTS: u8 = 0xff;

header! {
    /// Performance management datagram (IBTA 16.1.1).
    pub struct PerfMad[256] {
        /// Common header.
        pub head: MadHeader,
        /// Reserved.
        pub reserved: [u8; 40],
        /// Attribute.
        pub data: [u8; 192],
    }
}

impl PerfMad {
    /// Class version of performance management.
    pub const CLASS_VERSION: u8 = 1;

    /// Makes a Get of an attribute.
    pub fn get(attribute: u16) -> Self {
        let mut mad = Self::new_zeroed();
        mad.head.base_version = BASE_VERSION;
        mad.head.class = class::PERFORMANCE;
        mad.head.class_version = Self::CLASS_VERSION;
        mad.head.method = method::GET;
        mad.head.attribute.set(attribute);
        mad
    }

    /// Reads a datagram.
    pub fn from_mad(mad: &Mad) -> Self {
        zerocopy::transmute!(*mad)
    }

    /// Returns the bytes.
    pub fn to_mad(&self) -> Mad {
        zerocopy::transmute!(*self)
    }

    /// Returns the attribute as a `T`.
    pub fn attribute<T: FromBytes + Immutable + KnownLayout + Unaligned>(&self) -> &T {
        let parsed = T::ref_from_prefix(&self.data);
        let Ok((value, _)) = parsed else {
            unreachable!("attributes of performance management fit in 192 bytes")
        };
        value
    }

    /// Replaces the attribute; what is behind it is zero.
    pub fn set_attribute<T: IntoBytes + Immutable>(&mut self, value: &T) {
        let bytes = value.as_bytes();
        self.data.fill(0);
        self.data[..bytes.len()].copy_from_slice(bytes);
    }
}

header! {
    /// ClassPortInfo (IBTA 13.4.8.1).
    pub struct ClassPortInfo[72] {
        /// Base version.
        pub base_version: u8,
        /// Class version.
        pub class_version: u8,
        /// What the class can do.
        pub capability_mask: U16,
        /// Bits 31:5 more of it, 4:0 how long an answer takes: 4.096 us * 2^n.
        pub response_time: U32,
        /// Redirection: GID, class and flow, LID, P_Key, QP and Q_Key.
        pub redirect: [u8; 32],
        /// Where traps go, as above.
        pub trap: [u8; 32],
    }
}

impl ClassPortInfo {
    /// Capability of performance management: [`ALL_PORTS`].
    pub const ALL_PORT_SELECT: u16 = 1 << 8;
    /// Capability of performance management: PortCountersExtended.
    pub const EXTENDED_WIDTH: u16 = 1 << 9;
    /// Capability of performance management: PortXmitWait.
    pub const XMIT_WAIT: u16 = 1 << 12;
}

/// Bits of `PortCounters::select` (IBTA 16.1.3.5).
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod counter_select {
    pub const LINK_DOWNED: u16 = 1 << 2;
    pub const RCV_ERRORS: u16 = 1 << 3;
    pub const RCV_SWITCH_RELAY_ERRORS: u16 = 1 << 5;
    pub const XMIT_DISCARDS: u16 = 1 << 6;
    pub const XMIT_CONSTRAINT_ERRORS: u16 = 1 << 7;
    pub const RCV_CONSTRAINT_ERRORS: u16 = 1 << 8;
    pub const VL15_DROPPED: u16 = 1 << 11;
    pub const XMIT_DATA: u16 = 1 << 12;
    pub const RCV_DATA: u16 = 1 << 13;
    pub const XMIT_PKTS: u16 = 1 << 14;
    pub const RCV_PKTS: u16 = 1 << 15;
}

header! {
    /// PortCounters (IBTA 16.1.3.5). Counters stay at their largest value.
    pub struct PortCounters[44] {
        /// Reserved.
        pub reserved0: u8,
        /// Port, or [`ALL_PORTS`].
        pub port: u8,
        /// What a Set writes; bits of [`counter_select`].
        pub select: U16,
        /// SymbolErrorCounter.
        pub symbol_errors: U16,
        /// LinkErrorRecoveryCounter.
        pub link_recoveries: u8,
        /// LinkDownedCounter.
        pub link_downed: u8,
        /// PortRcvErrors.
        pub rcv_errors: U16,
        /// PortRcvRemotePhysicalErrors.
        pub rcv_remote_errors: U16,
        /// PortRcvSwitchRelayErrors.
        pub rcv_relay_errors: U16,
        /// PortXmitDiscards.
        pub xmit_discards: U16,
        /// PortXmitConstraintErrors.
        pub xmit_constraint_errors: u8,
        /// PortRcvConstraintErrors.
        pub rcv_constraint_errors: u8,
        /// Bit 0: a Set writes PortXmitWait.
        pub select2: u8,
        /// Bits 7:4 LocalLinkIntegrityErrors, 3:0 ExcessiveBufferOverrunErrors.
        pub integrity_overrun: u8,
        /// Reserved.
        pub reserved1: U16,
        /// VL15Dropped.
        pub vl15_dropped: U16,
        /// PortXmitData.
        pub xmit_data: U32,
        /// PortRcvData.
        pub rcv_data: U32,
        /// PortXmitPkts.
        pub xmit_pkts: U32,
        /// PortRcvPkts.
        pub rcv_pkts: U32,
        /// PortXmitWait.
        pub xmit_wait: U32,
    }
}

header! {
    /// PortCountersExtended (IBTA 16.1.4.11).
    pub struct PortCountersExtended[72] {
        /// Reserved.
        pub reserved0: u8,
        /// Port, or [`ALL_PORTS`].
        pub port: u8,
        /// What a Set writes: bit n for the n-th counter.
        pub select: U16,
        /// Reserved.
        pub reserved1: U32,
        /// PortXmitData.
        pub xmit_data: U64,
        /// PortRcvData.
        pub rcv_data: U64,
        /// PortXmitPkts.
        pub xmit_pkts: U64,
        /// PortRcvPkts.
        pub rcv_pkts: U64,
        /// PortUnicastXmitPkts.
        pub unicast_xmit_pkts: U64,
        /// PortUnicastRcvPkts.
        pub unicast_rcv_pkts: U64,
        /// PortMulticastXmitPkts.
        pub multicast_xmit_pkts: U64,
        /// PortMulticastRcvPkts.
        pub multicast_rcv_pkts: U64,
    }
}
