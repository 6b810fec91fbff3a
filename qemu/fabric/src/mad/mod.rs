// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Management datagrams (IBTA volume 1, chapters 13 to 16), big-endian as they are on the wire.

mod directed;
mod node;
mod packet;
mod perf;
mod port;
mod sa;
mod smp;
mod table;

pub use directed::{receive, reply, Step};
pub use node::{NodeDescription, NodeInfo, NodeKind, SwitchInfo};
pub use packet::{Address, GSI_QKEY};
pub use perf::{
    counter_select, ClassPortInfo, PerfMad, PortCounters, PortCountersExtended, ALL_PORTS,
};
pub use port::{capability, LinkState, PhysicalState, PortInfo};
pub use sa::{McMemberRecord, NodeRecord, PathRecord, PortInfoRecord, SaMad};
pub use smp::{Smp, PERMISSIVE_LID};
pub use table::{
    Arbitration, GuidBlock, LinearBlock, MulticastBlock, Notice, PkeyBlock, SlToVl, SmInfo,
    VlWeight, MULTICAST_BASE,
};

use crate::wire::header;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a management datagram (IBTA 13.4.2).
pub const MAD_SIZE: usize = 256;

/// The only base version.
pub const BASE_VERSION: u8 = 1;

/// Management classes (IBTA table 102).
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod class {
    pub const SUBN_LID: u8 = 0x01;
    pub const SUBN_ADM: u8 = 0x03;
    pub const PERFORMANCE: u8 = 0x04;
    pub const SUBN_DIRECTED: u8 = 0x81;
}

/// Methods (IBTA table 103).
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod method {
    pub const GET: u8 = 0x01;
    pub const SET: u8 = 0x02;
    pub const TRAP: u8 = 0x05;
    pub const TRAP_REPRESS: u8 = 0x07;
    pub const GET_TABLE: u8 = 0x12;
    pub const DELETE: u8 = 0x15;
    pub const GET_RESP: u8 = 0x81;
    /// Bit of all responses.
    pub const RESPONSE: u8 = 0x80;
}

/// Attributes of subnet management (IBTA table 112) and those of all classes.
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod attribute {
    pub const CLASS_PORT_INFO: u16 = 0x01;
    pub const NOTICE: u16 = 0x02;
    pub const NODE_DESCRIPTION: u16 = 0x10;
    pub const NODE_INFO: u16 = 0x11;
    pub const SWITCH_INFO: u16 = 0x12;
    pub const GUID_INFO: u16 = 0x14;
    pub const PORT_INFO: u16 = 0x15;
    pub const PKEY_TABLE: u16 = 0x16;
    pub const SL_TO_VL: u16 = 0x17;
    pub const VL_ARBITRATION: u16 = 0x18;
    pub const LINEAR_FORWARDING: u16 = 0x19;
    pub const MULTICAST_FORWARDING: u16 = 0x1b;
    pub const SM_INFO: u16 = 0x20;
    /// Of performance management (IBTA table 243).
    pub const PORT_COUNTERS: u16 = 0x12;
    pub const PORT_COUNTERS_EXTENDED: u16 = 0x1d;
    /// Of subnet administration (IBTA table 189).
    pub const NODE_RECORD: u16 = 0x11;
    pub const PORT_INFO_RECORD: u16 = 0x12;
    pub const PATH_RECORD: u16 = 0x35;
    pub const MC_MEMBER_RECORD: u16 = 0x38;
}

/// Codes of the status field (IBTA 13.4.7).
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod status {
    pub const BAD_VERSION: u16 = 1 << 2;
    pub const UNSUPPORTED_METHOD: u16 = 2 << 2;
    pub const UNSUPPORTED_ATTRIBUTE: u16 = 3 << 2;
    pub const INVALID_VALUE: u16 = 7 << 2;
}

header! {
    /// Common header (IBTA 13.4.3).
    pub struct MadHeader[24] {
        /// [`BASE_VERSION`].
        pub base_version: u8,
        /// Management class.
        pub class: u8,
        /// Version of the class.
        pub class_version: u8,
        /// Method.
        pub method: u8,
        /// Status; bit 15 of a directed-route datagram says that it is on its way back.
        pub status: U16,
        /// Hop pointer and hop count of a directed-route datagram.
        pub hops: [u8; 2],
        /// Transaction.
        pub transaction: U64,
        /// Attribute.
        pub attribute: U16,
        /// Reserved.
        pub reserved: U16,
        /// Attribute modifier.
        pub modifier: U32,
    }
}

/// Any datagram.
pub type Mad = [u8; MAD_SIZE];

/// Returns the header of a datagram.
pub fn head(mad: &Mad) -> &MadHeader {
    let parsed = MadHeader::ref_from_prefix(mad);
    // The header is a prefix of the array and has no alignment.
    let Ok((header, _)) = parsed else {
        unreachable!("the array holds the header")
    };
    header
}
