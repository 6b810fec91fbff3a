// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Route and base transport headers of a connection.

use super::attr::Settings;
use qiao_fabric::wire::{Bth, Builder, Grh, Lrh, Operation, Transport, BTH_ACK_REQ, BTH_SE};
use qiao_hw::qp::path_flag;

/// What the headers say of the local port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortInfo {
    /// LID.
    pub lid: u16,
    /// GID.
    pub gid: [u8; 16],
    /// P_Key of the queue pair's index.
    pub pkey: u16,
}

/// What differs from packet to packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    pub operation: Operation,
    pub psn: u32,
    pub ack_req: bool,
    pub solicited: bool,
}

/// Starts a packet to the peer of a connection.
pub(super) fn start(settings: &Settings, port: PortInfo, buffer: Vec<u8>, head: Head) -> Builder {
    let path = &settings.path;
    let lrh = Lrh {
        vl_lver: 0,
        sl_lnh: path.sl << 4,
        // CAST: The wire has 16 bits; `Settings::modify` refuses more.
        dlid: (path.dlid.get() as u16).into(),
        length: 0.into(),
        slid: (port.lid | u16::from(path.src_path_bits & 0x7f)).into(),
    };
    let grh = (path.flags & path_flag::GRH != 0).then(|| Grh {
        version_class_flow: ((6 << 28)
            | (u32::from(path.traffic_class) << 20)
            | path.flow_label.get() & 0xf_ffff)
            .into(),
        payload_length: 0.into(),
        next_header: Grh::NEXT_HEADER,
        hop_limit: path.hop_limit,
        sgid: port.gid,
        dgid: path.dgid,
    });
    let bth = Bth {
        opcode: 0,
        flags: if head.solicited { BTH_SE } else { 0 },
        pkey: port.pkey.into(),
        dest_qp: settings.dest_qpn.into(),
        ack_psn: (head.psn | if head.ack_req { BTH_ACK_REQ } else { 0 }).into(),
    };
    Builder::new(buffer, lrh, grh, bth, Transport::Rc, head.operation)
}
