// SPDX-License-Identifier: GPL-2.0 OR MIT

use crate::wire::header;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Logical states of a port (IBTA 7.2.7; values of PortInfo.PortState).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkState {
    /// No link.
    Down = 1,
    /// Only subnet management passes.
    Initialize = 2,
    /// Configured; data comes in and does not go out.
    Armed = 3,
    /// Data passes.
    Active = 4,
}

/// Physical states of a port (values of PortInfo.PortPhysicalState).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhysicalState {
    /// No link, and none is looked for.
    Sleep = 1,
    /// A link is looked for.
    Polling = 2,
    /// Switched off.
    Disabled = 3,
    /// There is a link.
    LinkUp = 5,
}

/// Bits of PortInfo.CapabilityMask.
#[expect(missing_docs, reason = "the names are those of the specification")]
pub mod capability {
    pub const IS_SM: u32 = 1 << 1;
    pub const IS_TRAP: u32 = 1 << 3;
    pub const IS_SL_MAPPING: u32 = 1 << 6;
    pub const IS_EXTENDED_SPEEDS: u32 = 1 << 14;
    pub const IS_CAP_MASK2: u32 = 1 << 15;
    pub const IS_SYSTEM_IMAGE_GUID: u32 = 1 << 11;
    pub const IS_CLIENT_REREGISTRATION: u32 = 1 << 25;
}

header! {
    /// PortInfo (IBTA 14.2.5.6).
    pub struct PortInfo[64] {
        /// M_Key; 0 for none.
        pub mkey: U64,
        /// GID prefix.
        pub gid_prefix: U64,
        /// LID; 0 if none is assigned.
        pub lid: U16,
        /// LID of the subnet manager.
        pub sm_lid: U16,
        /// Bits of [`capability`].
        pub capability_mask: U32,
        /// Diagnostic code.
        pub diag_code: U16,
        /// How long the M_Key protects after a violation, in seconds; 0 for ever.
        pub mkey_lease: U16,
        /// The port that the datagram came in on.
        pub local_port: u8,
        /// Link widths that are enabled.
        pub width_enabled: u8,
        /// Link widths that the port can do.
        pub width_supported: u8,
        /// Link width in use.
        pub width_active: u8,
        /// Bits 7:4 speeds that the port can do, 3:0 a [`LinkState`].
        pub speed_state: u8,
        /// Bits 7:4 a [`PhysicalState`], 3:0 the state into which it falls.
        pub phys_down: u8,
        /// Bits 7:6 M_Key protection, 2:0 LMC.
        pub protect_lmc: u8,
        /// Bits 7:4 speed in use, 3:0 speeds that are enabled.
        pub speed_active: u8,
        /// Bits 7:4 MTU of the neighbour, 3:0 service level of the subnet manager.
        pub mtu_sm_sl: u8,
        /// Bits 7:4 VLs that the port can do, 3:0 InitType.
        pub vl_cap: u8,
        /// Blocks of 4096 bytes from the high-priority table before the other has its turn (IBTA 7.6.9.2).
        pub vl_high_limit: u8,
        /// Entries of the high-priority arbitration table.
        pub vl_high_cap: u8,
        /// Entries of the low-priority arbitration table.
        pub vl_low_cap: u8,
        /// Bits 7:4 InitTypeReply, 3:0 MTU that the port can do.
        pub mtu_cap: u8,
        /// Bits 7:5 VLStallCount, 4:0 HOQLife.
        pub stall_hoq: u8,
        /// Bits 7:4 operational VLs, 3:0 partition enforcement in and out, raw filters.
        pub vls_enforcement: u8,
        /// Wrong M_Keys.
        pub mkey_violations: U16,
        /// Wrong P_Keys.
        pub pkey_violations: U16,
        /// Wrong Q_Keys.
        pub qkey_violations: U16,
        /// Entries of the GUID table.
        pub guid_cap: u8,
        /// Bits 7 clients are to register anew, 4:0 subnet timeout.
        pub reregister_timeout: u8,
        /// Bits 4:0 how long an agent takes for an answer.
        pub response_time: u8,
        /// Thresholds of errors.
        pub errors: u8,
        /// Hint of the credits in use.
        pub max_credit_hint: U16,
        /// Bits 23:0 round trip of the link.
        pub round_trip: U32,
        /// More capabilities.
        pub capability_mask2: U16,
        /// Bits 7:4 extended speed in use, 3:0 extended speeds that the port can do.
        pub ext_speed_active: u8,
        /// Bits 4:0 extended speeds that are enabled.
        pub ext_speed_enabled: u8,
    }
}

impl PortInfo {
    /// Bit of `reregister_timeout`.
    pub const REREGISTER: u8 = 1 << 7;
    /// Bit of `vls_enforcement`: P_Keys of what comes in are checked.
    pub const ENFORCE_INBOUND: u8 = 1 << 3;
    /// Bit of `vls_enforcement`: P_Keys of what goes out are checked.
    pub const ENFORCE_OUTBOUND: u8 = 1 << 2;

    /// Returns the logical state; [`None`] if it is none (in a Set: no change).
    pub fn state(&self) -> Option<LinkState> {
        match self.speed_state & 0xf {
            1 => Some(LinkState::Down),
            2 => Some(LinkState::Initialize),
            3 => Some(LinkState::Armed),
            4 => Some(LinkState::Active),
            _ => None,
        }
    }

    /// Replaces the logical state.
    pub fn set_state(&mut self, state: LinkState) {
        // CAST: Discriminants below 16.
        self.speed_state = self.speed_state & 0xf0 | state as u8;
    }

    /// Returns the physical state as a number.
    pub fn physical(&self) -> u8 {
        self.phys_down >> 4
    }

    /// Replaces the physical state.
    pub fn set_physical(&mut self, state: PhysicalState) {
        // CAST: Discriminants below 16.
        self.phys_down = ((state as u8) << 4) | self.phys_down & 0xf;
    }

    /// Returns M_KeyProtectBits.
    pub fn protection(&self) -> u8 {
        self.protect_lmc >> 6
    }

    /// Returns the LID mask control: the port has 2^n LIDs.
    pub fn lmc(&self) -> u8 {
        self.protect_lmc & 7
    }

    /// Returns MTU code of the link.
    pub fn neighbor_mtu(&self) -> u8 {
        self.mtu_sm_sl >> 4
    }

    /// Returns the service level to the subnet manager.
    pub fn sm_sl(&self) -> u8 {
        self.mtu_sm_sl & 0xf
    }

    /// Returns the largest MTU code.
    pub fn max_mtu(&self) -> u8 {
        self.mtu_cap & 0xf
    }

    /// Returns how many data VLs the code of an `OperationalVLs` or `VLCap` stands for.
    pub fn data_vls(code: u8) -> u8 {
        match code {
            0 | 1 => 1,
            2 => 2,
            3 => 4,
            4 => 8,
            _ => 15,
        }
    }

    /// Returns the number of data VLs in operation.
    pub fn operational_vls(&self) -> u8 {
        Self::data_vls(self.vls_enforcement >> 4)
    }

    /// Returns HOQLife: a packet may wait at the head 4.096 us * 2^n; above 19 for ever (IBTA 18.2.5.4).
    pub fn hoq_life(&self) -> u8 {
        self.stall_hoq & 0x1f
    }

    /// Returns how many packets in a row may be dropped for their age before the VL stalls.
    pub fn vl_stall_count(&self) -> u8 {
        self.stall_hoq >> 5
    }

    /// Returns whether a unicast LID is one of the port's.
    pub fn has_lid(&self, lid: u16) -> bool {
        let mask = u16::MAX << self.lmc();
        self.lid.get() != 0 && lid & mask == self.lid.get() & mask
    }

    /// Returns the subnet timeout: 4.096 us * 2^n.
    pub fn subnet_timeout(&self) -> u8 {
        self.reregister_timeout & 0x1f
    }
}
