// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The responder half: executes requests in order, once (IBTA 9.7.4, 9.7.5.2).

use super::attr::Settings;
use super::once::Outcome;
use super::path::{start, Head};
use super::qp::{complete_recv_error, Qp};
use super::{Completion, Counter, Host, RecvWqe};
use qiao_fabric::wire::{
    psn_add, psn_diff, Aeth, AtomicAckEth, Frame, Operation, Packet, Transport, PSN_MASK,
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

/// What a reply says.
#[derive(Debug)]
pub(super) enum Answer {
    Ack,
    /// A NAK or an RNR NAK. With `last` the connection ends when it has been sent.
    Nak {
        code: u8,
        last: Option<Ending>,
    },
    Outcome(Outcome),
    Read {
        rkey: u32,
        va: u64,
        length: u32,
        /// Packets sent.
        sent: u32,
    },
}

/// How the connection ends after a NAK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// A completion tells the owner.
    Completion,
    /// No request of the owner is involved: an event tells it.
    Event(EventType),
}

/// An answer that waits to be sent. Replies wait in the order of their sequence numbers.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) psn: u32,
    msn: u32,
    /// It answers a duplicate: the requester may have had it, and it does not count against what the
    /// requester may have outstanding.
    repeat: bool,
    pub(super) answer: Answer,
}

impl Reply {
    /// Returns whether it is one of those of which only so many may be outstanding.
    fn is_counted(&self) -> bool {
        matches!(self.answer, Answer::Outcome(_) | Answer::Read { .. })
    }
}

/// Why a request is refused.
pub(super) enum Refusal {
    /// A NAK with this code ends the connection; an event tells the owner.
    Nak(u8),
    /// As above; a receive request has failed, whose completion tells the owner.
    Failed(u8),
    /// No receive request: try later.
    NotReady,
}

/// State of the responder.
#[derive(Debug, Default)]
pub(super) struct Responder {
    pub(super) expected: u32,
    /// Messages completed.
    pub(super) msn: u32,
    /// A NAK for `expected` has been sent; IBTA 9.7.5.2.8 allows one.
    nak_sent: bool,
    established: bool,
    /// A NAK that ends the connection waits to be sent; nothing more is taken.
    closed: bool,
    pub(super) message: Message,
    /// Receive request of a message that was dropped (unreliable services).
    pub(super) spare: Option<RecvWqe>,
    pub(super) replies: VecDeque<Reply>,
    /// Results of recent requests, with their PSN.
    pub(super) results: VecDeque<(u32, Outcome)>,
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

    /// Appends a reply; it replaces the one before if it says all of it.
    pub(super) fn reply(&mut self, psn: u32, answer: Answer) {
        let reply = Reply {
            psn,
            msn: self.msn,
            repeat: false,
            answer,
        };
        match (self.replies.back_mut(), &reply.answer) {
            (
                Some(
                    last @ Reply {
                        answer: Answer::Ack,
                        ..
                    },
                ),
                Answer::Ack,
            ) => *last = reply,
            (
                Some(
                    last @ Reply {
                        answer: Answer::Nak { .. },
                        ..
                    },
                ),
                Answer::Nak { .. },
            ) => {
                *last = reply;
            }
            _ => self.replies.push_back(reply),
        }
    }

    fn reply_ack(&mut self, psn: u32) {
        self.reply(psn, Answer::Ack);
    }

    fn reply_nak(&mut self, psn: u32, code: u8, last: Option<Ending>) {
        self.closed = last.is_some();
        self.reply(psn, Answer::Nak { code, last });
    }

    /// Puts the answer to a duplicate before those to later requests, which the requester takes only
    /// after it.
    pub(super) fn repeat(&mut self, psn: u32, answer: Answer) {
        let later = |r: &Reply| psn_diff(r.psn, psn) > 0;
        let at = self
            .replies
            .iter()
            .position(later)
            .unwrap_or(self.replies.len());
        self.replies.insert(
            at,
            Reply {
                psn,
                msn: self.msn,
                repeat: true,
                answer,
            },
        );
    }

    #[cfg(test)]
    pub(super) fn queued(&self) -> usize {
        self.replies.len()
    }

    /// Returns how many answers that count wait, first ones or repeated ones.
    pub(super) fn waiting(&self, repeated: bool) -> usize {
        self.replies
            .iter()
            .filter(|r| r.is_counted() && r.repeat == repeated)
            .count()
    }
}

impl Qp {
    pub(super) fn request_in(&mut self, packet: &Packet<'_>, host: &mut impl Host) {
        if self.settings.service == Transport::Ud {
            self.datagram_in(packet, host);
            return;
        }
        if self.responder.closed {
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
        let rs = &mut self.responder;
        if rs.nak_sent {
            return;
        }
        rs.nak_sent = true;
        rs.reply_nak(
            rs.expected,
            (syndrome::NAK << 5) | syndrome::NAK_SEQUENCE,
            None,
        );
    }

    /// Answers a request that has been executed (IBTA 9.7.5.1.4): nothing is executed twice.
    fn duplicate(&mut self, packet: &Packet<'_>, psn: u32, host: &mut impl Host) {
        let rs = &mut self.responder;
        match packet.operation {
            Operation::ReadRequest => self.duplicate_read(packet, psn, host),
            Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::AtomicWrite
            | Operation::Flush => self.repeat_outcome(psn),
            _ if packet.bth.ack_req() => rs.reply_ack(psn_add(rs.expected, PSN_MASK)),
            _ => {}
        }
    }

    /// Reads again. A duplicate may ask for the rest of a READ only, and never for more than the READ
    /// did. Memory that is gone gets no answer: the duplicate may be a stray one.
    fn duplicate_read(&mut self, packet: &Packet<'_>, psn: u32, host: &mut impl Host) {
        let Some(reth) = packet.reth else {
            return;
        };
        let (rkey, va, length) = (reth.rkey.get(), reth.va.get(), reth.length.get());
        let mtu = self.settings.mtu.bytes();
        let end = psn_add(psn, packets(length, mtu));
        let in_past = length <= MAX_MESSAGE && psn_diff(end, self.responder.expected) <= 0;
        if !in_past
            || self
                .allow(rkey, va, length, access::REMOTE_READ, host)
                .is_err()
        {
            return;
        }
        let rs = &mut self.responder;
        // What waits for these sequence numbers is replaced: the requester starts anew.
        rs.replies.retain(|r| match r.answer {
            Answer::Read { length, .. } => {
                let its_end = psn_add(r.psn, packets(length, mtu));
                psn_diff(its_end, psn) <= 0 || psn_diff(end, r.psn) <= 0
            }
            _ => true,
        });
        if rs.waiting(true) < usize::from(self.settings.max_dest_rd_atomic) {
            rs.repeat(
                psn,
                Answer::Read {
                    rkey,
                    va,
                    length,
                    sent: 0,
                },
            );
        }
    }

    fn in_sequence(&mut self, packet: &Packet<'_>, psn: u32, host: &mut impl Host) {
        self.responder.nak_sent = false;
        let result = self.execute(packet, psn, host);
        let rs = &mut self.responder;
        let (code, ending) = match result {
            Ok(count) => {
                rs.expected = psn_add(psn, count);
                if packet.bth.ack_req() && !is_answered(packet.operation) {
                    rs.reply_ack(psn);
                }
                return;
            }
            Err(Refusal::NotReady) => {
                // Later packets are out of sequence now and get no NAK.
                rs.nak_sent = true;
                rs.reply_nak(
                    psn,
                    (syndrome::RNR << 5) | self.settings.min_rnr_timer,
                    None,
                );
                return;
            }
            Err(Refusal::Failed(code)) => (code, Ending::Completion),
            Err(Refusal::Nak(code)) if code == syndrome::NAK_ACCESS => {
                (code, Ending::Event(EventType::QpAccessError))
            }
            Err(Refusal::Nak(code)) => (code, Ending::Event(EventType::QpRequestError)),
        };
        rs.reply_nak(psn, (syndrome::NAK << 5) | code, Some(ending));
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
            CompareSwap | FetchAdd | AtomicWrite => self.atomic(packet, psn, host)?,
            Flush => self.make_visible(packet, psn, host)?,
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
            AtomicWrite => length == 8,
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
                self.put_back(wqe, host);
                return Err(Refusal::Nak(syndrome::NAK_INVALID));
            }
            return Err(refuse_recv(
                host,
                &wqe,
                CqeStatus::LocalLength,
                syndrome::NAK_INVALID,
            ));
        };
        if host.receive(&wqe, offset, packet.payload).is_err() {
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
        if let Some(ieth) = packet.ieth {
            if host.invalidate(ieth.rkey.get()).is_err() {
                let status = CqeStatus::RemoteInvalidRequest;
                return Err(refuse_recv(host, &wqe, status, syndrome::NAK_ACCESS));
            }
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
        if let Some((wqe, status)) = wqe.as_ref().and_then(|w| Some((w, w.error?))) {
            return Err(refuse_recv(host, wqe, status, syndrome::NAK_OPERATION));
        }
        let at = va.wrapping_add(u64::from(offset));
        if !packet.payload.is_empty() && host.write_remote(rkey, at, packet.payload).is_err() {
            match wqe {
                Some(wqe) if self.settings.service != Transport::Rc => {
                    self.put_back(wqe, host);
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
        rs.reply(
            psn,
            Answer::Read {
                rkey,
                va,
                length,
                sent: 0,
            },
        );
        Ok(packets(length, self.settings.mtu.bytes()))
    }

    /// Checks right, length and key of an access by the peer.
    pub(super) fn allow(
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
    pub(super) fn allow_one_more(&self) -> Result<(), Refusal> {
        if self.responder.waiting(false) >= usize::from(self.settings.max_dest_rd_atomic) {
            return Err(Refusal::Nak(syndrome::NAK_INVALID));
        }
        Ok(())
    }

    /// Sends answers; returns what is left of `budget`.
    pub(super) fn pump_replies(&mut self, mut budget: usize, host: &mut impl Host) -> usize {
        while budget > 0 {
            let Some(reply) = self.responder.replies.front_mut() else {
                break;
            };
            let Ok((packet, done)) = answer_packet(&self.settings, reply, host) else {
                self.memory_gone();
                continue;
            };
            host.transmit(packet);
            budget -= 1;
            let ending = match reply.answer {
                Answer::Nak { last, .. } => last,
                _ => None,
            };
            if done {
                self.responder.replies.pop_front();
            }
            if let Some(ending) = ending {
                self.end(ending, host);
            }
        }
        budget
    }

    /// Refuses what is left of the READ whose turn it is, and with it the connection: its memory went
    /// away while it was being read.
    fn memory_gone(&mut self) {
        let rs = &mut self.responder;
        let Some(Reply {
            psn,
            answer: Answer::Read { sent, .. },
            ..
        }) = rs.replies.pop_front()
        else {
            return;
        };
        rs.replies.clear();
        let code = (syndrome::NAK << 5) | syndrome::NAK_ACCESS;
        let ending = Ending::Event(EventType::QpAccessError);
        rs.reply_nak(psn_add(psn, sent), code, Some(ending));
    }

    fn end(&mut self, ending: Ending, host: &mut impl Host) {
        if let Ending::Event(event) = ending {
            host.event(event);
        }
        self.enter_error(host);
    }
}

/// Returns how many packets `length` bytes take.
fn packets(length: u32, mtu: u32) -> u32 {
    length.div_ceil(mtu).max(1)
}

/// Returns whether a request is answered by itself.
fn is_answered(operation: Operation) -> bool {
    use Operation::*;
    matches!(
        operation,
        ReadRequest | CompareSwap | FetchAdd | AtomicWrite | Flush
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
) -> Result<(Frame, bool), super::Fault> {
    let port = host.port(settings.path.sgid_index.get(), settings.pkey_index);
    let Reply { psn, msn, .. } = *reply;
    let ack = Aeth::new((syndrome::ACK << 5) | syndrome::NO_CREDITS, msn);
    match &mut reply.answer {
        Answer::Ack => {
            let head = answer(Operation::Acknowledge, psn);
            Ok((
                start(settings, port, host.frame(), head)
                    .header(&ack)
                    .finish(),
                true,
            ))
        }
        Answer::Nak { code, .. } => {
            let head = answer(Operation::Acknowledge, psn);
            let b = start(settings, port, host.frame(), head);
            Ok((b.header(&Aeth::new(*code, msn)).finish(), true))
        }
        Answer::Outcome(Outcome::Original(original)) => {
            let head = answer(Operation::AtomicAcknowledge, psn);
            let b = start(settings, port, host.frame(), head).header(&ack);
            let original = AtomicAckEth {
                original: (*original).into(),
            };
            Ok((b.header(&original).finish(), true))
        }
        Answer::Outcome(Outcome::Placed) => {
            let head = answer(Operation::ReadResponseOnly, psn);
            let b = start(settings, port, host.frame(), head);
            Ok((b.header(&ack).finish(), true))
        }
        Answer::Read {
            rkey,
            va,
            length,
            sent,
        } => {
            let mtu = settings.mtu.bytes();
            let (first, last) = (*sent == 0, *sent + 1 == packets(*length, mtu));
            let operation = match (first, last) {
                (true, true) => Operation::ReadResponseOnly,
                (true, false) => Operation::ReadResponseFirst,
                (false, true) => Operation::ReadResponseLast,
                (false, false) => Operation::ReadResponseMiddle,
            };
            let offset = *sent * mtu;
            let head = answer(operation, psn_add(psn, *sent));
            let mut b = start(settings, port, host.frame(), head);
            if operation.ext().aeth {
                b = b.header(&ack);
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
