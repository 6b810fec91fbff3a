// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A port: its addresses and its state.

use crate::transport::{Counter, PortInfo, MAX_MESSAGE};
use qiao_fabric::mad;
use qiao_fabric::node::{Port, GUIDS, PKEYS};
use qiao_hw::cmd::{LinkLayer, PortAttr};
use qiao_hw::describe::reserved_is_zero;
use qiao_hw::qp::{path_flag, Path};

/// Entries of the GID table.
pub const GIDS: u16 = GUIDS as u16;

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
    /// Datagrams dropped for their Q_Key.
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

/// Returns what the headers of packets say of a port, with the GID and the P_Key of these indices.
pub fn port_info(port: &Port, sgid_index: u16, pkey_index: u16) -> PortInfo {
    let pkey = port.pkeys.get(usize::from(pkey_index));
    PortInfo {
        lid: port.info.lid.get(),
        path_mask: (1 << port.info.lmc()) - 1,
        gid: port.gid(sgid_index),
        pkey: pkey.copied().unwrap_or_default(),
    }
}

/// Returns the state of a port as the interface has it.
pub fn attr(port: &Port) -> PortAttr {
    let info = &port.info;
    let mut attr = PortAttr::zeroed();
    attr.port_guid.set(port.guid());
    attr.subnet_prefix.set(info.gid_prefix.get());
    attr.lid.set(info.lid.get().into());
    attr.sm_lid.set(info.sm_lid.get().into());
    attr.capability_mask.set(info.capability_mask.get());
    attr.max_message.set(MAX_MESSAGE);
    attr.bad_pkeys.set(info.pkey_violations.get());
    attr.qkey_violations.set(info.qkey_violations.get());
    attr.gid_table_len.set(GIDS);
    attr.pkey_table_len.set(PKEYS);
    attr.link_layer = LinkLayer::InfiniBand.to_wire();
    // Both count as IBTA does.
    attr.state = port.state() as u8;
    attr.phys_state = info.physical();
    attr.max_mtu = info.max_mtu();
    attr.active_mtu = info.neighbor_mtu();
    attr.lmc = info.lmc();
    attr.sm_sl = info.sm_sl();
    attr.active_width = info.width_active;
    attr.active_speed.set(active_speed(info));
    attr.vl_num = info.vls_enforcement >> 4;
    attr.subnet_timeout = info.subnet_timeout();
    attr
}

/// Returns the speed in the coding of the interface, in which an extended speed follows the others: FDR10 is 8, FDR 16.
fn active_speed(info: &mad::PortInfo) -> u16 {
    match info.ext_speed_active >> 4 {
        0 => (info.speed_active >> 4).into(),
        extended => u16::from(extended) << 4,
    }
}
