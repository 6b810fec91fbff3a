// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The responder half: executes requests in order, once (IBTA 9.7.4, 9.7.5.2).

use super::attr::Settings;
use super::path::{start, Head};
use super::qp::{complete_recv_error, Qp};
use super::{Atomic, Completion, Counter, Host, RecvWqe};
use qiao_fabric::wire::{
    psn_add, psn_diff, Aeth, AtomicAckEth, Operation, Packet, Transport, PSN_MASK,
};
use qiao_hw::cqe::{CqeOpcode, CqeStatus};
use qiao_hw::event::EventType;
use qiao_hw::qp::{access, QpState};
use std::cmp::Ordering;
use std::collections::VecDeque;

/// AETH syndromes (IBTA 9.7.5.2.1): bits 6:5, and bits 4:0 of a NAK.
pub(super) mod syndrome {
    pub const ACK: u8 = 0;
    pub const RNR: u8 = 1;
    pub const NAK: u8 = 3;
    pub const NAK_SEQUENCE: u8 = 0;
    pub const NAK_INVALID: u8 = 1;
    pub const NAK_ACCESS: u8 = 2;
    pub const NAK_OPERATION: u8 = 3;
    /// Credit count of a responder that does not do end-to-end flow control.
    pub const NO_CREDITS: u8 = 31;
}

/// Atomics whose results are kept for a duplicate request, beyond `max_dest_rd_atomic`.
const MIN_RESULTS: usize = 1;

/// Largest message in bytes. IBTA 9.7.1 allows 2^31; half of it keeps the sequence numbers of one
/// message unambiguous at the smallest MTU.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// The message that is being received.
#[derive(Debug, Default)]
pub(super) enum Message {
    #[default]
    None,
    Send {
        wqe: RecvWqe,
        offset: u32,
    },
    Write {
        rkey: u32,
        va: u64,
        length: u32,
        offset: u32,
    },
}

/// An answer that waits to be sent, in order.
#[derive(Debug)]
enum Reply {
    Ack {
        psn: u32,
        msn: u32,
    },
    Atomic {
        psn: u32,
        msn: u32,
        original: u64,
        repeat: bool,
    },
    Read {
        psn: u32,
        msn: u32,
        rkey: u32,
        va: u64,
        length: u32,
        sent: u32,
        repeat: bool,
    },
}

/// Why a request is refused.
pub(super) enum Refusal {
    /// A NAK with this code ends the connection.
    Nak(u8),
    /// As [`Refusal::Nak`]; a receive request has failed.
    Failed(u8),
    /// No receive request: try later.
    NotReady,
}

/// State of the responder.
#[derive(Debug, Default)]
pub(super) struct Responder {
    pub(super) expected: u32,
    /// Messages completed.
    msn: u32,
    /// A NAK for `expected` has been sent; IBTA 9.7.5.2.8 allows one.
    nak_sent: bool,
    established: bool,
    pub(super) message: Message,
    /// Receive request of a message that was dropped (unreliable services).
    pub(super) spare: Option<RecvWqe>,
    replies: VecDeque<Reply>,
    /// Results of recent atomics: PSN and original value.
    results: VecDeque<(u32, u64)>,
}

impl Responder {
    pub(super) fn start(&mut self, psn: u32) {
        *self = Self {
            expected: psn,
            ..Self::default()
        };
    }

    pub(super) fn expected_psn(&self) -> u32 {
        self.expected
    }

    /// Gives up everything; returns the receive request in use.
    pub(super) fn take(&mut self) -> Option<RecvWqe> {
        self.replies.clear();
        match std::mem::take(&mut self.message) {
            Message::Send { wqe, .. } => Some(wqe),
            _ => self.spare.take(),
        }
    }

    fn reply_ack(&mut self, psn: u32) {
        let ack = Reply::Ack { psn, msn: self.msn };
        match self.replies.back_mut() {
            Some(last @ Reply::Ack { .. }) => *last = ack,
            _ => self.replies.push_back(ack),
        }
    }

    /// Answers with data that wait: first ones, or repeated ones, which the requester may have had in
    /// the meantime and which do not count against what it may have outstanding.
    fn waiting(&self, repeated: bool) -> usize {
        let counts = |r: &&Reply| match r {
            Reply::Ack { .. } => false,
            Reply::Atomic { repeat, .. } | Reply::Read { repeat, .. } => *repeat == repeated,
        };
        self.replies.iter().filter(counts).count()
    }
}

impl Qp {
    pub(super) fn request_in(&mut self, packet: &Packet<'_>, host: &mut impl Host) {
        if self.settings.service == Transport::Ud {
            self.datagram_in(packet, host);
            return;
        }
        if !self.responder.established {
            self.responder.established = true;
            if self.settings.state == QpState::Rtr {
                host.event(EventType::CommEstablished);
            }
        }
        if self.settings.service == Transport::Uc {
            self.connected_in(packet, host);
            return;
        }
        let psn = packet.bth.psn();
        let ahead = psn_diff(psn, self.responder.expected);
        match ahead.cmp(&0) {
            Ordering::Greater => self.out_of_sequence(host),
            Ordering::Less => {
                host.count(Counter::DuplicateRequests);
                self.duplicate(packet, psn, host);
            }
            Ordering::Equal => self.in_sequence(packet, psn, host),
        }
    }

    fn out_of_sequence(&mut self, host: &mut impl Host) {
        host.count(Counter::OutOfSequence);
        if self.responder.nak_sent {
            return;
        }
        self.responder.nak_sent = true;
        self.send_nak((syndrome::NAK << 5) | syndrome::NAK_SEQUENCE, host);
    }

    /// Answers a request that has been executed (IBTA 9.7.5.1.4): nothing is executed twice.
    fn duplicate(&mut self, packet: &Packet<'_>, psn: u32, host: &mut impl Host) {
        let limit = usize::from(self.settings.max_dest_rd_atomic);
        let rs = &mut self.responder;
        match packet.operation {
            // What a peer repeats without waiting for the answer is not kept without bound.
            _ if expects_data(packet.operation) && rs.waiting(true) >= limit => {}
            Operation::ReadRequest => {
                let Some(reth) = packet.reth else {
                    return;
                };
                let (rkey, va, length) = (reth.rkey.get(), reth.va.get(), reth.length.get());
                let allowed = self.settings.access & access::REMOTE_READ != 0
                    && length <= MAX_MESSAGE
                    && host
                        .check_remote(rkey, va, length, access::REMOTE_READ)
                        .is_ok();
                if !allowed {
                    return;
                }
                // The requester has given up the answers from here on and asks for them anew.
                rs.replies.retain(|r| match r {
                    Reply::Read { psn: p, sent, .. } => psn_diff(psn_add(*p, *sent), psn) < 0,
                    _ => true,
                });
                rs.replies.push_back(Reply::Read {
                    psn,
                    msn: rs.msn,
                    rkey,
                    va,
                    length,
                    sent: 0,
                    repeat: true,
                });
            }
            Operation::CompareSwap | Operation::FetchAdd => {
                if let Some(&(_, original)) = rs.results.iter().find(|(p, _)| *p == psn) {
                    rs.replies.push_back(Reply::Atomic {
                        psn,
                        msn: rs.msn,
                        original,
                        repeat: true,
                    });
                }
            }
            _ => {
                let newest = psn_add(rs.expected, PSN_MASK);
                if packet.bth.ack_req() {
                    rs.reply_ack(newest);
                }
            }
        }
    }

    fn in_sequence(&mut self, packet: &Packet<'_>, psn: u32, host: &mut impl Host) {
        self.responder.nak_sent = false;
        match self.execute(packet, psn, host) {
            Ok(count) => {
                self.responder.expected = psn_add(psn, count);
                if packet.bth.ack_req() && !expects_data(packet.operation) {
                    self.responder.reply_ack(psn);
                }
            }
            Err(Refusal::NotReady) => {
                // Later packets are out of sequence now and get no NAK.
                self.responder.nak_sent = true;
                self.send_nak((syndrome::RNR << 5) | self.settings.min_rnr_timer, host);
            }
            Err(Refusal::Nak(code) | Refusal::Failed(code)) => {
                self.send_nak((syndrome::NAK << 5) | code, host);
                match code {
                    syndrome::NAK_ACCESS => host.event(EventType::QpAccessError),
                    syndrome::NAK_INVALID => host.event(EventType::QpRequestError),
                    _ => {}
                }
                self.enter_error(host);
            }
        }
    }

    /// Executes a request; returns how many sequence numbers it takes.
    pub(super) fn execute(
        &mut self,
        packet: &Packet<'_>,
        psn: u32,
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        use Operation::*;
        self.check_order(packet)?;
        match packet.operation {
            ReadRequest => return self.read(packet, psn, host),
            CompareSwap | FetchAdd => self.atomic(packet, psn, host)?,
            SendFirst | SendMiddle | SendLast | SendLastImm | SendLastInvalidate | SendOnly
            | SendOnlyImm | SendOnlyInvalidate => self.send(packet, host)?,
            _ => self.write(packet, host)?,
        }
        Ok(1)
    }

    /// Checks that the packet continues or starts a message as it must, and its length (IBTA 9.7.4.1).
    fn check_order(&self, packet: &Packet<'_>) -> Result<(), Refusal> {
        use Operation::*;
        let mtu = self.settings.mtu_bytes();
        let length = packet.payload.len();
        let fits = match packet.operation {
            SendFirst | SendMiddle | WriteFirst | WriteMiddle => length == mtu,
            SendLast | SendLastImm | SendLastInvalidate | WriteLast | WriteLastImm => {
                (1..=mtu).contains(&length)
            }
            SendOnly | SendOnlyImm | SendOnlyInvalidate | WriteOnly | WriteOnlyImm => length <= mtu,
            _ => length == 0,
        };
        let follows = match packet.operation {
            SendMiddle | SendLast | SendLastImm | SendLastInvalidate => {
                matches!(self.responder.message, Message::Send { .. })
            }
            WriteMiddle | WriteLast | WriteLastImm => {
                matches!(self.responder.message, Message::Write { .. })
            }
            _ => matches!(self.responder.message, Message::None),
        };
        if !fits || !follows {
            return Err(Refusal::Nak(syndrome::NAK_INVALID));
        }
        Ok(())
    }

    fn send(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refusal> {
        let (wqe, offset) = match std::mem::take(&mut self.responder.message) {
            Message::Send { wqe, offset } => (wqe, offset),
            _ => (self.take_recv(host).ok_or(Refusal::NotReady)?, 0),
        };
        if let Some(status) = wqe.error {
            return Err(refuse_recv(host, &wqe, status, syndrome::NAK_OPERATION));
        }
        // CAST: A payload is at most 4096 bytes.
        let end = offset
            .checked_add(packet.payload.len() as u32)
            .filter(|&e| e <= MAX_MESSAGE);
        let Some(end) = end.filter(|&e| u64::from(e) <= wqe.length) else {
            // IBTA 9.9.3: without a connection to end the message is dropped.
            if self.settings.service != Transport::Rc {
                self.responder.spare = Some(wqe);
                return Err(Refusal::Nak(syndrome::NAK_INVALID));
            }
            return Err(refuse_recv(
                host,
                &wqe,
                CqeStatus::LocalLength,
                syndrome::NAK_INVALID,
            ));
        };
        if host.scatter(&wqe.sges, offset, packet.payload).is_err() {
            let status = CqeStatus::LocalProtection;
            return Err(refuse_recv(host, &wqe, status, syndrome::NAK_OPERATION));
        }
        if matches!(
            packet.operation,
            Operation::SendFirst | Operation::SendMiddle
        ) {
            self.responder.message = Message::Send { wqe, offset: end };
            return Ok(());
        }
        self.finish_recv(packet, &wqe, CqeOpcode::Recv, end, host);
        Ok(())
    }

    fn write(&mut self, packet: &Packet<'_>, host: &mut impl Host) -> Result<(), Refusal> {
        let (rkey, va, length, offset) = match (&self.responder.message, packet.reth) {
            (
                Message::Write {
                    rkey,
                    va,
                    length,
                    offset,
                },
                None,
            ) => (*rkey, *va, *length, *offset),
            (_, Some(reth)) => {
                let (rkey, va, length) = (reth.rkey.get(), reth.va.get(), reth.length.get());
                self.allow(rkey, va, length, access::REMOTE_WRITE, host)?;
                (rkey, va, length, 0)
            }
            _ => return Err(Refusal::Nak(syndrome::NAK_INVALID)),
        };
        let last = !matches!(
            packet.operation,
            Operation::WriteFirst | Operation::WriteMiddle
        );
        // CAST: A payload is at most 4096 bytes.
        let end = offset.checked_add(packet.payload.len() as u32);
        // The lengths must agree: neither more nor, at the end, less than announced.
        let Some(end) = end.filter(|&e| if last { e == length } else { e < length }) else {
            return Err(Refusal::Nak(syndrome::NAK_INVALID));
        };
        let wqe = if packet.imm.is_some() {
            Some(self.take_recv(host).ok_or(Refusal::NotReady)?)
        } else {
            None
        };
        let at = va.wrapping_add(u64::from(offset));
        if !packet.payload.is_empty() && host.write_remote(rkey, at, packet.payload).is_err() {
            match wqe {
                Some(wqe) if self.settings.service != Transport::Rc => {
                    self.responder.spare = Some(wqe);
                }
                Some(wqe) => complete_recv_error(host, &wqe, CqeStatus::WrFlush),
                None => {}
            }
            return Err(Refusal::Nak(syndrome::NAK_ACCESS));
        }
        if !last {
            self.responder.message = Message::Write {
                rkey,
                va,
                length,
                offset: end,
            };
            return Ok(());
        }
        self.responder.message = Message::None;
        match wqe {
            Some(wqe) => self.finish_recv(packet, &wqe, CqeOpcode::RecvRdmaWithImm, end, host),
            None => self.responder.msn = psn_add(self.responder.msn, 1),
        }
        Ok(())
    }

    fn finish_recv(
        &mut self,
        packet: &Packet<'_>,
        wqe: &RecvWqe,
        opcode: CqeOpcode,
        byte_len: u32,
        host: &mut impl Host,
    ) {
        self.responder.msn = psn_add(self.responder.msn, 1);
        host.complete(Completion {
            index: wqe.index,
            opcode,
            status: CqeStatus::Success,
            byte_len,
            imm: packet.imm.map(|i| i.data),
            invalidated: packet.ieth.map(|i| i.rkey.get()),
            solicited: packet.bth.solicited(),
            source: None,
        });
    }

    fn read(
        &mut self,
        packet: &Packet<'_>,
        psn: u32,
        host: &mut impl Host,
    ) -> Result<u32, Refusal> {
        let reth = packet.reth.ok_or(Refusal::Nak(syndrome::NAK_INVALID))?;
        let (rkey, va, length) = (reth.rkey.get(), reth.va.get(), reth.length.get());
        self.allow(rkey, va, length, access::REMOTE_READ, host)?;
        self.allow_one_more()?;
        let rs = &mut self.responder;
        rs.msn = psn_add(rs.msn, 1);
        rs.replies.push_back(Reply::Read {
            psn,
            msn: rs.msn,
            rkey,
            va,
            length,
            sent: 0,
            repeat: false,
        });
        Ok(length.div_ceil(self.settings.mtu.bytes()).max(1))
    }

    fn atomic(
        &mut self,
        packet: &Packet<'_>,
        psn: u32,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let eth = packet.atomic.ok_or(Refusal::Nak(syndrome::NAK_INVALID))?;
        let (rkey, va) = (eth.rkey.get(), eth.va.get());
        if va % 8 != 0 {
            return Err(Refusal::Nak(syndrome::NAK_INVALID));
        }
        self.allow(rkey, va, 8, access::REMOTE_ATOMIC, host)?;
        self.allow_one_more()?;
        let operation = if packet.operation == Operation::FetchAdd {
            Atomic::FetchAdd(eth.swap_or_add.get())
        } else {
            Atomic::CompareSwap {
                compare: eth.compare.get(),
                swap: eth.swap_or_add.get(),
            }
        };
        let original = host
            .atomic_remote(rkey, va, operation)
            .map_err(|_| Refusal::Nak(syndrome::NAK_ACCESS))?;
        let keep = usize::from(self.settings.max_dest_rd_atomic).max(MIN_RESULTS);
        let rs = &mut self.responder;
        rs.msn = psn_add(rs.msn, 1);
        rs.replies.push_back(Reply::Atomic {
            psn,
            msn: rs.msn,
            original,
            repeat: false,
        });
        rs.results.push_back((psn, original));
        if rs.results.len() > keep {
            rs.results.pop_front();
        }
        Ok(())
    }

    /// Checks right, length and key of an access by the peer.
    fn allow(
        &self,
        rkey: u32,
        va: u64,
        length: u32,
        right: u32,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        if self.settings.access & right == 0 || length > MAX_MESSAGE {
            return Err(Refusal::Nak(syndrome::NAK_INVALID));
        }
        // IBTA 9.7.4.1.5: the key of an access to no byte is not checked.
        if length == 0 {
            return Ok(());
        }
        host.check_remote(rkey, va, length, right)
            .map_err(|_| Refusal::Nak(syndrome::NAK_ACCESS))
    }

    /// Checks that the peer keeps to the READs and atomics that were agreed on.
    fn allow_one_more(&self) -> Result<(), Refusal> {
        if self.responder.waiting(false) >= usize::from(self.settings.max_dest_rd_atomic) {
            return Err(Refusal::Nak(syndrome::NAK_INVALID));
        }
        Ok(())
    }

    /// Sends a NAK for the expected PSN behind all answers that wait.
    fn send_nak(&mut self, code: u8, host: &mut impl Host) {
        while !self.responder.replies.is_empty() && self.settings.state != QpState::Err {
            self.pump_replies(usize::MAX, host);
        }
        let head = answer(Operation::Acknowledge, self.responder.expected);
        let port = host.port();
        let packet = start(&self.settings, port, host.buffer(), head)
            .header(&Aeth::new(code, self.responder.msn))
            .finish();
        host.transmit(packet);
    }

    /// Sends answers; returns what is left of `budget`.
    pub(super) fn pump_replies(&mut self, mut budget: usize, host: &mut impl Host) -> usize {
        while budget > 0 {
            let Some(reply) = self.responder.replies.front_mut() else {
                break;
            };
            let Ok((packet, done)) = answer_packet(&self.settings, reply, host) else {
                // The memory went away while it was being read.
                self.responder.replies.clear();
                self.send_nak((syndrome::NAK << 5) | syndrome::NAK_ACCESS, host);
                host.event(EventType::QpAccessError);
                self.enter_error(host);
                break;
            };
            if done {
                self.responder.replies.pop_front();
            }
            host.transmit(packet);
            budget -= 1;
        }
        budget
    }
}

fn expects_data(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::ReadRequest | Operation::CompareSwap | Operation::FetchAdd
    )
}

fn answer(operation: Operation, psn: u32) -> Head {
    Head {
        operation,
        psn,
        ack_req: false,
        solicited: false,
    }
}

/// Fails a receive request and returns the refusal for the peer.
fn refuse_recv(host: &mut impl Host, wqe: &RecvWqe, status: CqeStatus, code: u8) -> Refusal {
    complete_recv_error(host, wqe, status);
    Refusal::Failed(code)
}

/// Makes the next packet of a reply; returns it and whether it is the last.
fn answer_packet(
    settings: &Settings,
    reply: &mut Reply,
    host: &mut impl Host,
) -> Result<(Vec<u8>, bool), super::Fault> {
    let port = host.port();
    let ack = |msn| Aeth::new((syndrome::ACK << 5) | syndrome::NO_CREDITS, msn);
    match reply {
        Reply::Ack { psn, msn } => {
            let head = answer(Operation::Acknowledge, *psn);
            let b = start(settings, port, host.buffer(), head);
            Ok((b.header(&ack(*msn)).finish(), true))
        }
        Reply::Atomic {
            psn, msn, original, ..
        } => {
            let head = answer(Operation::AtomicAcknowledge, *psn);
            let b = start(settings, port, host.buffer(), head).header(&ack(*msn));
            let original = AtomicAckEth {
                original: (*original).into(),
            };
            Ok((b.header(&original).finish(), true))
        }
        Reply::Read {
            psn,
            msn,
            rkey,
            va,
            length,
            sent,
            ..
        } => {
            let mtu = settings.mtu.bytes();
            let packets = length.div_ceil(mtu).max(1);
            let (first, last) = (*sent == 0, *sent + 1 == packets);
            let operation = match (first, last) {
                (true, true) => Operation::ReadResponseOnly,
                (true, false) => Operation::ReadResponseFirst,
                (false, true) => Operation::ReadResponseLast,
                (false, false) => Operation::ReadResponseMiddle,
            };
            let offset = *sent * mtu;
            let head = answer(operation, psn_add(*psn, *sent));
            let mut b = start(settings, port, host.buffer(), head);
            if operation.ext().aeth {
                b = b.header(&ack(*msn));
            }
            // CAST: At most the MTU.
            let out = b.payload((*length - offset).min(mtu) as usize);
            if !out.is_empty() {
                host.read_remote(*rkey, va.wrapping_add(u64::from(offset)), out)?;
            }
            *sent += 1;
            Ok((b.finish(), last))
        }
    }
}
