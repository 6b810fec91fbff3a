// SPDX-License-Identifier: GPL-2.0 OR MIT

use crate::wire::header;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The first multicast LID (IBTA 4.1.3).
pub const MULTICAST_BASE: u16 = 0xc000;

header! {
    /// A block of GUIDInfo (IBTA 14.2.5.5).
    pub struct GuidBlock[64] {
        /// GUIDs.
        pub guids: [U64; 8],
    }
}

header! {
    /// A block of P_KeyTable (IBTA 14.2.5.7).
    pub struct PkeyBlock[64] {
        /// P_Keys; 0 for none.
        pub pkeys: [U16; 32],
    }
}

header! {
    /// SLtoVLMappingTable (IBTA 14.2.5.8).
    pub struct SlToVl[8] {
        /// Bits 7:4 the VL of an even SL, 3:0 of the odd one behind it. VL 15 drops.
        pub pairs: [u8; 8],
    }
}

impl SlToVl {
    /// Makes the table of a function.
    pub fn new(mut vl: impl FnMut(u8) -> u8) -> Self {
        let mut pairs = [0; 8];
        for (sl, pair) in (0..).step_by(2).zip(&mut pairs) {
            *pair = (vl(sl) << 4) | vl(sl + 1) & 0xf;
        }
        Self { pairs }
    }

    /// Returns the VL of a service level below 16.
    pub fn vl(&self, sl: u8) -> u8 {
        let pair = self.pairs[usize::from(sl / 2 % 8)];
        if sl % 2 == 0 {
            pair >> 4
        } else {
            pair & 0xf
        }
    }
}

header! {
    /// An entry of an arbitration table.
    pub struct VlWeight[2] {
        /// Bits 3:0 the VL.
        pub vl: u8,
        /// Its weight in units of 64 bytes; 0 leaves the entry out.
        pub weight: u8,
    }
}

header! {
    /// Half of a VLArbitrationTable (IBTA 14.2.5.9).
    pub struct Arbitration[64] {
        /// Entries.
        pub entries: [VlWeight; 32],
    }
}

header! {
    /// A block of LinearForwardingTable (IBTA 14.2.5.10).
    pub struct LinearBlock[64] {
        /// Output port of each LID; 255 for none.
        pub ports: [u8; 64],
    }
}

header! {
    /// A block of MulticastForwardingTable (IBTA 14.2.5.12).
    pub struct MulticastBlock[64] {
        /// For each LID 16 output ports of the block's position, the lowest in bit 0.
        pub masks: [U16; 32],
    }
}

header! {
    /// SMInfo (IBTA 14.2.5.13).
    pub struct SmInfo[24] {
        /// GUID of the port of the subnet manager.
        pub guid: U64,
        /// SM_Key; 0 for none.
        pub key: U64,
        /// Counts up while it works.
        pub activity: U32,
        /// Bits 7:4 priority, 3:0 state: 3 is master.
        pub priority_state: u8,
        /// Reserved.
        pub reserved: [u8; 3],
    }
}

header! {
    /// Notice (IBTA 13.4.8.2) of subnet management.
    pub struct Notice[64] {
        /// Bits 7 generic, 6:0 type.
        pub kind: u8,
        /// Who sends it: 1 an HCA, 2 a switch, 4 a subnet manager.
        pub producer: [u8; 3],
        /// Trap number.
        pub trap: U16,
        /// LID of the sender.
        pub issuer: U16,
        /// Bits 15 toggle, 14:0 count.
        pub count: U16,
        /// Details by trap number.
        pub details: [u8; 54],
    }
}

impl Notice {
    /// Trap of a switch: the state of one of its links has changed (IBTA 14.2.5.1).
    pub const LINK_STATE_CHANGE: u16 = 128;

    /// Makes the notice of [`Notice::LINK_STATE_CHANGE`] of the switch with a LID.
    pub fn link_state_change(lid: u16) -> Self {
        let mut notice = Self::new_zeroed();
        // Generic, urgent.
        notice.kind = 0x80 | 1;
        notice.producer = [0, 0, 2];
        notice.trap.set(Self::LINK_STATE_CHANGE);
        notice.issuer.set(lid);
        notice.details[..2].copy_from_slice(&lid.to_be_bytes());
        notice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nibbles_are_in_the_order_of_the_service_levels() {
        let table = SlToVl::new(|sl| 15 - sl);
        assert_eq!(table.pairs[0], 0xfe);
        assert!((0..16).all(|sl| table.vl(sl) == 15 - sl));
    }
}
