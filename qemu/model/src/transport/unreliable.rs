// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What unreliable services do otherwise (IBTA 9.8): nothing is acknowledged, and what does not come
//! whole is dropped without a word.

use super::attr::{Settings, Special};
use super::qp::Qp;
use super::responder::{Message, Refusal};
use super::{Completion, Counter, Host, RecvWqe, SendWqe, Source};
use qiao_fabric::wire::{psn_add, Operation, Packet, Transport};
use qiao_hw::cqe::{CqeOpcode, CqeStatus};
use qiao_hw::qp::QpType;
use zerocopy::IntoBytes;

/// Bytes in front of a datagram that are kept for its GRH.
const GRH_SIZE: u32 = 40;

/// Bit of a request's Q_Key: the queue pair's own is meant (IBTA 10.2.5).
const OWN_QKEY: u32 = 1 << 31;

/// Returns why a request cannot be sent by the service, if it cannot.
pub(super) fn refusal(settings: &Settings, wqe: &SendWqe) -> Option<CqeStatus> {
    let allowed = match settings.service {
        Transport::Rc => return None,
        Transport::Uc => wqe.opcode.is_for(QpType::Uc),
        // IBTA 11.2.5.1: an address is of one port.
        Transport::Ud => {
            wqe.opcode.is_for(QpType::Ud)
                && wqe.datagram.is_some_and(|d| d.path.port == settings.port)
        }
    };
    if !allowed {
        return Some(CqeStatus::LocalQpOperation);
    }
    let too_long = settings.service == Transport::Ud && wqe.length > settings.mtu.bytes();
    too_long.then_some(CqeStatus::LocalLength)
}

/// Returns the Q_Key that a datagram carries.
pub(super) fn qkey(settings: &Settings, asked: u32) -> u32 {
    if asked & OWN_QKEY != 0 {
        settings.qkey
    } else {
        asked
    }
}

impl Qp {
    /// Takes a packet of an unreliable connection. One that is not the next ends the message that is
    /// being received; with the start of another all is well again (IBTA 9.8.2.2).
    pub(super) fn connected_in(&mut self, packet: &Packet<'_>, host: &mut impl Host) {
        use Operation::*;
        let psn = packet.bth.psn();
        let starts = matches!(
            packet.operation,
            SendFirst | SendOnly | SendOnlyImm | WriteFirst | WriteOnly | WriteOnlyImm
        );
        let expected = std::mem::replace(&mut self.responder.expected, psn_add(psn, 1));
        if psn != expected {
            host.count(Counter::OutOfSequence);
        }
        if psn != expected || starts {
            self.drop_message(host);
        }
        if !starts && matches!(self.responder.message, Message::None) {
            return;
        }
        match self.execute(packet, psn, host) {
            Ok(_) => {}
            Err(Refusal::Failed(_)) => self.enter_error(host),
            Err(Refusal::Nak(_) | Refusal::NotReady) => self.drop_message(host),
        }
    }

    /// Forgets the message that is being received; its receive request takes the next one.
    fn drop_message(&mut self, host: &mut impl Host) {
        if let Message::Send { wqe, .. } = std::mem::take(&mut self.responder.message) {
            self.put_back(wqe, host);
        }
    }

    /// Takes the next receive request.
    pub(super) fn take_recv(&mut self, host: &mut impl Host) -> Option<RecvWqe> {
        self.responder.spare.take().or_else(|| host.next_recv())
    }

    /// Takes a datagram (IBTA 9.8.3): without the key, without a receive request, or longer than that,
    /// it is dropped.
    pub(super) fn datagram_in(&mut self, packet: &Packet<'_>, host: &mut impl Host) {
        let Some(deth) = packet.deth else {
            return;
        };
        if deth.qkey.get() != self.settings.qkey {
            host.count(Counter::QkeyViolations);
            return;
        }
        if packet.payload.len() > self.settings.mtu_bytes() {
            return;
        }
        let Some(wqe) = self.take_recv(host) else {
            return;
        };
        if let Some(status) = wqe.error {
            self.fail_recv(&wqe, status, host);
            return;
        }
        // CAST: A payload is at most the MTU.
        let byte_len = GRH_SIZE + packet.payload.len() as u32;
        if u64::from(byte_len) > wqe.length {
            self.put_back(wqe, host);
            return;
        }
        let global = packet.grh.as_ref().map_or(&[][..], IntoBytes::as_bytes);
        let written = host
            .receive(&wqe, 0, global)
            .and_then(|()| host.receive(&wqe, GRH_SIZE, packet.payload));
        if written.is_err() {
            self.fail_recv(&wqe, CqeStatus::LocalProtection, host);
            return;
        }
        let pkey_index = match self.settings.special {
            Special::Gsi => host.pkey_index(packet.bth.pkey.get()),
            Special::None | Special::Smi => self.settings.pkey_index,
        };
        host.complete(Completion {
            index: wqe.index,
            opcode: CqeOpcode::Recv,
            status: CqeStatus::Success,
            byte_len,
            imm: packet.imm.map(|i| i.data),
            invalidated: None,
            solicited: packet.bth.solicited(),
            source: Some(Source {
                qpn: deth.src_qp.get() & 0xff_ffff,
                lid: packet.lrh.slid.get(),
                sl: packet.lrh.sl(),
                pkey_index,
                grh: packet.grh.is_some(),
            }),
        });
    }

    fn fail_recv(&mut self, wqe: &RecvWqe, status: CqeStatus, host: &mut impl Host) {
        super::qp::complete_recv_error(host, wqe, status);
        self.enter_error(host);
    }
}
