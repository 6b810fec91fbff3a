// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A port: its addresses and its state.

use crate::transport::{Counter, PortInfo, MAX_MESSAGE, MAX_MTU};
use qiao_hw::cmd::{LinkLayer, PortAttr, PortState};
use qiao_hw::describe::reserved_is_zero;
use qiao_hw::qp::{path_flag, Path};

/// Prefix of a subnet that no subnet manager has named.
pub const DEFAULT_PREFIX: u64 = 0xfe80 << 48;

/// The only P_Key: full member of the default partition.
pub const DEFAULT_PKEY: u16 = 0xffff;

/// Entries of the GID table.
pub const GIDS: u16 = 1;

/// Entries of the P_Key table.
pub const PKEYS: u16 = 1;

/// Bits of PortInfo.CapabilityMask (IBTA 14.2.5.6) that speak for what the host runs: subnet manager, SNMP tunnelling, device
/// management, vendor class, communication management.
pub const HOST_CAPABILITIES: u32 = (1 << 1) | (1 << 16) | (1 << 17) | (1 << 19) | (1 << 20);

/// Returns whether a path is one that the ports have.
pub fn path_is_valid(path: &Path) -> bool {
    let global = path.flags & path_flag::GRH != 0;
    reserved_is_zero(path)
        && path.flags & !path_flag::GRH == 0
        && path.dlid.get() <= 0xffff
        && path.sl <= 15
        && (!global || path.sgid_index.get() < GIDS)
}

/// Physical states of IBTA PortInfo.PortPhysicalState.
const POLLING: u8 = 2;
const LINK_UP: u8 = 5;

/// Events that the transport counts on a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[expect(
    missing_docs,
    reason = "the meanings are those of qiao_hw::cmd::PortCounters"
)]
pub struct TransportCounters {
    pub retransmits: u64,
    pub local_ack_timeouts: u64,
    pub out_of_sequence: u64,
    pub sequence_naks: u64,
    pub rnr_naks: u64,
    pub duplicate_requests: u64,
    pub local_errors: u64,
    pub remote_errors: u64,
    /// PortInfo.Q_KeyViolations (IBTA 14.2.5.6), which stays at its largest value there.
    pub qkey_violations: u64,
    /// Packets dropped for a bad ICRC or header.
    pub rcv_errors: u64,
}

impl TransportCounters {
    /// Counts one.
    pub fn count(&mut self, counter: Counter) {
        *match counter {
            Counter::Retransmits => &mut self.retransmits,
            Counter::LocalAckTimeouts => &mut self.local_ack_timeouts,
            Counter::OutOfSequence => &mut self.out_of_sequence,
            Counter::SequenceNaks => &mut self.sequence_naks,
            Counter::RnrNaks => &mut self.rnr_naks,
            Counter::DuplicateRequests => &mut self.duplicate_requests,
            Counter::LocalErrors => &mut self.local_errors,
            Counter::RemoteErrors => &mut self.remote_errors,
            Counter::QkeyViolations => &mut self.qkey_violations,
        } += 1;
    }
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// GUID.
    pub guid: u64,
    /// LID that the configuration has given.
    pub lid: u16,
    /// Whether it has a link that is up.
    pub link_up: bool,
    /// What the transport has counted.
    pub counters: TransportCounters,
    /// What the host has set of PortInfo.CapabilityMask.
    pub capabilities: u32,
}

impl Port {
    /// Returns the only GID.
    pub fn gid(&self) -> [u8; 16] {
        ((u128::from(DEFAULT_PREFIX) << 64) | u128::from(self.guid)).to_be_bytes()
    }

    /// Returns what the headers of packets say.
    pub fn info(&self) -> PortInfo {
        PortInfo {
            lid: self.lid,
            gid: self.gid(),
            pkey: DEFAULT_PKEY,
        }
    }

    /// Returns the state as the interface has it.
    pub fn attr(&self) -> PortAttr {
        let mut attr = PortAttr::zeroed();
        attr.port_guid.set(self.guid);
        attr.subnet_prefix.set(DEFAULT_PREFIX);
        attr.lid.set(self.lid.into());
        attr.capability_mask.set(self.capabilities);
        let violations = self.counters.qkey_violations;
        attr.qkey_violations
            .set(violations.try_into().unwrap_or(u16::MAX));
        attr.max_message.set(MAX_MESSAGE);
        attr.gid_table_len.set(GIDS);
        attr.pkey_table_len.set(PKEYS);
        attr.link_layer = LinkLayer::InfiniBand.to_wire();
        let (state, phys) = if self.link_up {
            (PortState::Active, LINK_UP)
        } else {
            (PortState::Down, POLLING)
        };
        attr.state = state.to_wire();
        attr.phys_state = phys;
        attr.max_mtu = MAX_MTU.to_wire();
        attr.active_mtu = MAX_MTU.to_wire();
        // 4x NDR.
        attr.active_width = 2;
        attr.active_speed.set(128);
        // VL0 only.
        attr.vl_num = 1;
        attr.subnet_timeout = 18;
        attr
    }
}
