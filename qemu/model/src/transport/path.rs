// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Route and base transport headers.

use super::attr::{Settings, Special};
use super::Datagram;
use qiao_fabric::mad::PERMISSIVE_LID;
use qiao_fabric::wire::{Bth, Builder, Frame, Grh, Lrh, Operation, Transport, BTH_ACK_REQ, BTH_SE};
use qiao_hw::qp::{path_flag, Path};

/// What the headers say of the local port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortInfo {
    /// LID.
    pub lid: u16,
    /// Bits of the LID that a path may choose: 2^LMC - 1.
    pub path_mask: u16,
    /// GID.
    pub gid: [u8; 16],
    /// P_Key.
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

/// Where a packet goes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route<'a> {
    service: Transport,
    path: &'a Path,
    dest_qpn: u32,
    /// Of subnet management.
    management: bool,
}

/// VL of subnet management, which has no flow control (IBTA 7.6.3).
const VL15: u8 = 15;

impl<'a> Route<'a> {
    /// The way of a datagram.
    pub fn to(datagram: &'a Datagram, settings: &Settings) -> Self {
        Self {
            management: settings.special == Special::Smi,
            service: Transport::Ud,
            path: &datagram.path,
            dest_qpn: datagram.qpn,
        }
    }
}

/// Starts a packet to the peer of a connection.
pub(super) fn start(settings: &Settings, port: PortInfo, frame: Frame, head: Head) -> Builder {
    let route = Route {
        service: settings.service,
        management: false,
        path: &settings.path,
        dest_qpn: settings.dest_qpn,
    };
    start_on(route, port, frame, head)
}

/// Starts a packet on a route.
pub(super) fn start_on(route: Route<'_>, port: PortInfo, frame: Frame, head: Head) -> Builder {
    let path = route.path;
    // CAST: The wire has 16 bits; `Settings::modify` and the decoder of requests refuse more.
    let dlid = path.dlid.get() as u16;
    let slid = if route.management && dlid == PERMISSIVE_LID {
        // IBTA 14.2.2.1: both ends of a directed hop are permissive.
        PERMISSIVE_LID
    } else {
        port.lid | u16::from(path.src_path_bits) & port.path_mask
    };
    let lrh = Lrh {
        vl_lver: if route.management { VL15 << 4 } else { 0 },
        sl_lnh: path.sl << 4,
        dlid: dlid.into(),
        length: 0.into(),
        slid: slid.into(),
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
        dest_qp: route.dest_qpn.into(),
        ack_psn: (head.psn | if head.ack_req { BTH_ACK_REQ } else { 0 }).into(),
    };
    Builder::new(frame, lrh, grh, bth, route.service, head.operation)
}
