// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The requester half: sends requests, takes responses, retries (IBTA 9.7.5, 9.7.6).

use super::attr::{ack_timeout_ns, rnr_timer_ns, Settings, Special};
use super::path::{start, start_on, Head, Route};
use super::qp::{complete_send, Qp};
use super::responder::syndrome;
use super::unreliable::{qkey, refusal};
use super::{Counter, Data, Fault, Host, SendWqe};
use qiao_cc::ACK_EVERY;
use qiao_fabric::wire::{
    psn_add, psn_diff, AtomicEth, Deth, Feth, Frame, Ieth, ImmDt, Operation, Packet, Reth,
    Transport,
};
use qiao_hw::cqe::CqeStatus;
use qiao_hw::qp::QpState;
use qiao_hw::wqe::SendOpcode;
use std::collections::VecDeque;

/// Most packets in flight. Half of the sequence space would be allowed; this bounds what a loss
/// costs.
const WINDOW: i32 = 256;

/// A request that has not completed.
#[derive(Debug)]
struct Pending {
    wqe: SendWqe,
    first_psn: u32,
    /// Sequence numbers that it takes.
    packets: u32,
    /// READ: response packets taken.
    responses: u32,
}

impl Pending {
    fn end_psn(&self) -> u32 {
        psn_add(self.first_psn, self.packets)
    }

    fn is_answered(&self) -> bool {
        self.wqe.opcode.is_answered()
    }

    /// Bytes that come back.
    fn answer_length(&self) -> u32 {
        if self.wqe.opcode.reads() {
            self.wqe.length
        } else {
            0
        }
    }
}

/// State of the requester.
#[derive(Debug, Default)]
pub(super) struct Requester {
    pending: VecDeque<Pending>,
    /// Where sending goes on: request and packet in it.
    cursor: (usize, u32),
    /// PSN of the next new request.
    next_psn: u32,
    /// Oldest PSN that has not been acknowledged.
    unacked: u32,
    /// One past the newest PSN ever sent.
    sent: u32,
    /// Requests before the cursor that are answered one by one.
    outstanding: usize,
    retries: u8,
    rnr_retries: u8,
    timer: Option<u64>,
    rnr_until: Option<u64>,
    /// The response that has been asked for again because a later one came: what else comes
    /// meanwhile is of the same loss and costs no further retry.
    asked_again: Option<u32>,
    /// `unacked` has moved: the timer starts anew.
    progress: bool,
}

impl Requester {
    pub(super) fn start(&mut self, psn: u32, settings: &Settings) {
        *self = Self {
            next_psn: psn,
            unacked: psn,
            sent: psn,
            ..Self::default()
        };
        self.refill(settings);
    }

    pub(super) fn next_psn(&self) -> u32 {
        self.next_psn
    }

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn deadline(&self) -> Option<u64> {
        match (self.timer, self.rnr_until) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// Removes all requests and yields them in order.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = SendWqe> {
        self.cursor = (0, 0);
        self.outstanding = 0;
        self.timer = None;
        self.rnr_until = None;
        (self.unacked, self.sent) = (self.next_psn, self.next_psn);
        std::mem::take(&mut self.pending).into_iter().map(|p| p.wqe)
    }

    fn refill(&mut self, settings: &Settings) {
        self.retries = settings.retry_count;
        self.rnr_retries = settings.rnr_retry;
    }

    /// Returns the PSN at which sending goes on.
    fn cursor_psn(&self) -> u32 {
        match self.pending.get(self.cursor.0) {
            Some(p) => psn_add(p.first_psn, self.cursor.1),
            None => self.next_psn,
        }
    }

    /// Moves the cursor to `psn`, which is not yet acknowledged.
    fn go_to(&mut self, psn: u32) {
        let mut outstanding = 0;
        let mut at = self.pending.len();
        let mut packet = 0;
        for (i, p) in self.pending.iter().enumerate() {
            if psn_diff(psn, p.end_psn()) < 0 {
                at = i;
                packet = psn_diff(psn, p.first_psn).max(0).unsigned_abs();
                break;
            }
            outstanding += usize::from(p.is_answered());
        }
        self.cursor = (at, packet);
        self.outstanding = outstanding;
    }

    fn arm(&mut self, now: u64, settings: &Settings) {
        self.timer = if self.unacked == self.cursor_psn() {
            None
        } else {
            ack_timeout_ns(settings.timeout).map(|ns| now.saturating_add(ns))
        };
    }
}

impl Qp {
    /// Sends requests; returns what is left of `budget`.
    pub(super) fn pump_requests(
        &mut self,
        now: u64,
        mut budget: usize,
        host: &mut impl Host,
    ) -> usize {
        if self.requester.rnr_until.is_some() {
            return budget;
        }
        while budget > 0 && self.admit(host) {
            if self.send_one(host).is_err() {
                let (at, _) = self.requester.cursor;
                if let Some(p) = self.requester.pending.get_mut(at) {
                    p.wqe.error = Some(CqeStatus::LocalProtection);
                }
                continue;
            }
            budget -= 1;
            if self.settings.service != Transport::Rc {
                self.finish_sent(host);
                continue;
            }
            if self.requester.timer.is_none() {
                self.requester.arm(now, &self.settings);
            }
        }
        self.fail_first_if_bad(host);
        budget
    }

    /// Completes what nobody acknowledges: a message is done when its last packet has been sent
    /// (IBTA 9.8.1.1).
    fn finish_sent(&mut self, host: &mut impl Host) {
        if self.requester.cursor.0 > 0 {
            self.finish_first(host);
        } else {
            self.move_unacked(self.requester.cursor_psn());
        }
    }

    /// Makes sure that the request at the cursor may be sent; takes a new one from the ring if need
    /// be.
    fn admit(&mut self, host: &mut impl Host) -> bool {
        let rq = &mut self.requester;
        if psn_diff(rq.cursor_psn(), rq.unacked) >= WINDOW {
            return false;
        }
        if rq.cursor.0 == rq.pending.len() {
            if self.settings.state != QpState::Rts || rq.pending.len() >= WINDOW as usize {
                return false;
            }
            let Some(mut wqe) = host.next_send() else {
                return false;
            };
            wqe.error = wqe.error.or_else(|| refusal(&self.settings, &wqe));
            let mtu = self.settings.mtu.bytes();
            let packets = wqe.length.div_ceil(mtu).max(1);
            let first_psn = rq.next_psn;
            rq.next_psn = psn_add(first_psn, packets);
            rq.pending.push_back(Pending {
                wqe,
                first_psn,
                packets,
                responses: 0,
            });
        }
        let p = &mut rq.pending[rq.cursor.0];
        let fresh = rq.cursor.1 == 0;
        if p.wqe.error.is_some() || fresh && p.wqe.fence && rq.outstanding > 0 {
            return false;
        }
        if p.is_answered() {
            if self.settings.max_rd_atomic == 0 {
                p.wqe.error = Some(CqeStatus::LocalQpOperation);
                return false;
            }
            return rq.outstanding < usize::from(self.settings.max_rd_atomic);
        }
        true
    }

    /// Sends the packet at the cursor and moves the cursor.
    fn send_one(&mut self, host: &mut impl Host) -> Result<(), Fault> {
        let rq = &mut self.requester;
        let (at, index) = rq.cursor;
        let p = &rq.pending[at];
        let psn = psn_add(p.first_psn, index);
        let repeated = psn_diff(psn, rq.sent) < 0;
        let (packet, next) = if p.is_answered() {
            (answered(&self.settings, p, index, host)?, p.packets)
        } else {
            (message(&self.settings, p, index, host)?, index + 1)
        };
        let end = psn_add(p.first_psn, next);
        rq.outstanding += usize::from(p.is_answered());
        rq.cursor = if next == p.packets {
            (at + 1, 0)
        } else {
            (at, next)
        };
        if repeated {
            host.count(Counter::Retransmits);
        }
        if psn_diff(end, rq.sent) > 0 {
            rq.sent = end;
        }
        host.transmit(packet);
        Ok(())
    }

    /// Fails the oldest request if it is the one that is malformed or faulted: those before it have
    /// completed, as the order of completions demands.
    fn fail_first_if_bad(&mut self, host: &mut impl Host) {
        let Some(status) = self.requester.pending.front().and_then(|p| p.wqe.error) else {
            return;
        };
        self.fail(status, host);
    }

    /// Ends the oldest request with `status`, and with it the connection, or if there is none that the
    /// peer relies on, the send queue.
    fn fail(&mut self, status: CqeStatus, host: &mut impl Host) {
        if let Some(p) = self.requester.pending.pop_front() {
            complete_send(host, &p.wqe, status, 0);
        }
        if self.settings.service == Transport::Rc {
            self.enter_error(host);
        } else {
            self.enter_send_error(host);
        }
    }

    /// Goes back to `psn` and sends from there on, if there is a retry left.
    fn retry(&mut self, psn: u32, host: &mut impl Host) {
        if self.requester.retries == 0 {
            self.fail(CqeStatus::RetryExceeded, host);
            return;
        }
        self.requester.retries -= 1;
        self.requester.go_to(psn);
    }

    pub(super) fn request_timer(&mut self, now: u64, host: &mut impl Host) {
        if self.requester.rnr_until.is_some_and(|t| t <= now) {
            self.requester.rnr_until = None;
            self.requester.timer = None;
        }
        if self.requester.timer.is_some_and(|t| t <= now) {
            self.requester.timer = None;
            self.requester.asked_again = None;
            host.count(Counter::LocalAckTimeouts);
            self.retry(self.requester.unacked, host);
            // Sending arms the timer anew.
        }
    }

    pub(super) fn response_in(&mut self, packet: &Packet<'_>, now: u64, host: &mut impl Host) {
        let rq = &self.requester;
        let psn = packet.bth.psn();
        // IBTA 9.7.5.1.1: a response outside of what is outstanding is a ghost.
        if psn_diff(psn, rq.unacked) < 0 || psn_diff(psn, rq.sent) >= 0 {
            return;
        }
        match packet.operation {
            Operation::Acknowledge => self.ack_in(packet, psn, now, host),
            Operation::AtomicAcknowledge => self.atomic_in(packet, psn, host),
            _ => self.read_response_in(packet, psn, host),
        }
        if self.settings.state == QpState::Err {
            return;
        }
        if self.requester.progress {
            self.requester.progress = false;
            self.requester.arm(now, &self.settings);
        }
        self.fail_first_if_bad(host);
    }

    fn ack_in(&mut self, packet: &Packet<'_>, psn: u32, now: u64, host: &mut impl Host) {
        let Some(aeth) = packet.aeth else {
            return;
        };
        let code = aeth.syndrome();
        let value = code & 0x1f;
        match code >> 5 {
            syndrome::ACK => {
                self.acknowledge(psn_add(psn, 1), host);
            }
            syndrome::RNR => {
                host.count(Counter::RnrNaks);
                if self.acknowledge(psn, host) {
                    self.rnr_nak(psn, value, now, host);
                }
            }
            syndrome::NAK => {
                if self.acknowledge(psn, host) {
                    self.nak(psn, value, host);
                }
            }
            _ => {}
        }
    }

    fn rnr_nak(&mut self, psn: u32, timer: u8, now: u64, host: &mut impl Host) {
        let rq = &mut self.requester;
        if rq.rnr_retries == 0 {
            self.fail(CqeStatus::RnrRetryExceeded, host);
            return;
        }
        if rq.rnr_retries != 7 {
            rq.rnr_retries -= 1;
        }
        // The peer is there: what was lost on the way to this answer is made good.
        rq.retries = self.settings.retry_count;
        rq.rnr_until = Some(now.saturating_add(rnr_timer_ns(timer)));
        rq.timer = None;
        rq.go_to(psn);
    }

    fn nak(&mut self, psn: u32, code: u8, host: &mut impl Host) {
        match code {
            syndrome::NAK_SEQUENCE => {
                host.count(Counter::SequenceNaks);
                self.requester.timer = None;
                self.retry(psn, host);
            }
            syndrome::NAK_INVALID => self.fail(CqeStatus::RemoteInvalidRequest, host),
            syndrome::NAK_ACCESS => self.fail(CqeStatus::RemoteAccess, host),
            syndrome::NAK_OPERATION => self.fail(CqeStatus::RemoteOperation, host),
            _ => self.fail(CqeStatus::BadResponse, host),
        }
    }

    /// Takes all before `psn` as received by the peer. Returns false if a READ or atomic before it has
    /// not had its response, which is then asked for again (IBTA 9.7.5.1.3), or if the connection
    /// failed.
    fn acknowledge(&mut self, psn: u32, host: &mut impl Host) -> bool {
        loop {
            let rq = &mut self.requester;
            let Some(p) = rq.pending.front() else {
                return true;
            };
            if psn_diff(psn, p.first_psn) <= 0 {
                return true;
            }
            if p.is_answered() {
                let resume = psn_add(p.first_psn, p.responses);
                if psn_diff(psn, resume) <= 0 {
                    return true;
                }
                if rq.asked_again != Some(resume) {
                    rq.asked_again = Some(resume);
                    self.retry(resume, host);
                }
                return false;
            }
            if psn_diff(psn, p.end_psn()) < 0 {
                if psn_diff(psn, rq.unacked) > 0 {
                    self.move_unacked(psn);
                }
                return true;
            }
            self.finish_first(host);
        }
    }

    /// Completes the oldest request.
    fn finish_first(&mut self, host: &mut impl Host) {
        let rq = &mut self.requester;
        let Some(p) = rq.pending.pop_front() else {
            return;
        };
        let end = p.end_psn();
        match rq.cursor.0.checked_sub(1) {
            Some(at) => {
                rq.cursor.0 = at;
                rq.outstanding -= usize::from(p.is_answered());
            }
            // The peer had it all although it was to be sent again.
            None => rq.cursor = (0, 0),
        }
        complete_send(host, &p.wqe, CqeStatus::Success, p.answer_length());
        self.move_unacked(end);
    }

    /// Notes that all before `psn` is done with, which gives back all retries (IBTA 9.7.5.1.2).
    fn move_unacked(&mut self, psn: u32) {
        let rq = &mut self.requester;
        rq.unacked = psn;
        rq.progress = true;
        rq.asked_again = None;
        rq.refill(&self.settings);
        if psn_diff(rq.cursor_psn(), psn) < 0 {
            rq.go_to(psn);
        }
    }

    /// Returns the READ or atomic that waits for the response `psn`, when all before it is
    /// acknowledged by this very response.
    fn waiting(&mut self, psn: u32, host: &mut impl Host) -> Option<&mut Pending> {
        if !self.acknowledge(psn, host) {
            return None;
        }
        let p = self.requester.pending.front_mut()?;
        let expected = psn_add(p.first_psn, p.responses);
        (p.is_answered() && expected == psn).then_some(p)
    }

    fn read_response_in(&mut self, packet: &Packet<'_>, psn: u32, host: &mut impl Host) {
        let mtu = self.settings.mtu_bytes();
        let Some(p) = self.waiting(psn, host) else {
            return;
        };
        let last = matches!(
            packet.operation,
            Operation::ReadResponseLast | Operation::ReadResponseOnly
        );
        // CAST: A message is at most 2^31 bytes.
        let offset = p.responses as usize * mtu;
        let rest = p.answer_length() as usize - offset;
        // ATOMIC WRITE and FLUSH are answered by a READ response without data (IBTA annex A19).
        if is_atomic(p.wqe.opcode)
            || last != (p.responses + 1 == p.packets)
            || packet.payload.len() != rest.min(mtu)
        {
            self.fail(CqeStatus::BadResponse, host);
            return;
        }
        // CAST: As above.
        let came = !packet.payload.is_empty();
        if came && scatter(&p.wqe, offset as u32, packet.payload, host).is_err() {
            self.fail(CqeStatus::LocalProtection, host);
            return;
        }
        p.responses += 1;
        if last {
            self.finish_first(host);
        } else {
            self.move_unacked(psn_add(psn, 1));
        }
    }

    fn atomic_in(&mut self, packet: &Packet<'_>, psn: u32, host: &mut impl Host) {
        let Some(p) = self.waiting(psn, host) else {
            return;
        };
        let (true, Some(ack)) = (is_atomic(p.wqe.opcode), packet.atomic_ack) else {
            self.fail(CqeStatus::BadResponse, host);
            return;
        };
        let original = ack.original.get().to_le_bytes();
        if scatter(&p.wqe, 0, &original, host).is_err() {
            self.fail(CqeStatus::LocalProtection, host);
            return;
        }
        p.responses = 1;
        self.finish_first(host);
    }
}

fn scatter(wqe: &SendWqe, offset: u32, data: &[u8], host: &mut impl Host) -> Result<(), Fault> {
    match &wqe.data {
        Data::Sges(sges) => host.scatter(sges, offset, data),
        Data::Inline(_) => Err(Fault),
    }
}

/// Makes packet `index` of a SEND or WRITE.
fn message(
    settings: &Settings,
    p: &Pending,
    index: u32,
    host: &mut impl Host,
) -> Result<Frame, Fault> {
    let wqe = &p.wqe;
    let mtu = settings.mtu.bytes();
    let first = index == 0;
    let last = index + 1 == p.packets;
    let offset = index * mtu;
    let length = (wqe.length - offset).min(mtu) as usize;
    let operation = message_operation(wqe.opcode, first, last);
    let head = Head {
        operation,
        psn: psn_add(p.first_psn, index),
        // Nobody acknowledges what is unreliable (IBTA 9.8.1).
        ack_req: settings.service == Transport::Rc && (last || index % ACK_EVERY == ACK_EVERY - 1),
        solicited: last && wqe.solicited,
    };
    let path = wqe.datagram.as_ref().map_or(&settings.path, |d| &d.path);
    let pkey_index = match (settings.special, &wqe.datagram) {
        (Special::Gsi, Some(datagram)) => datagram.pkey_index,
        _ => settings.pkey_index,
    };
    let port = host.port(path.sgid_index.get(), pkey_index);
    let mut b = match &wqe.datagram {
        Some(datagram) => {
            let deth = Deth {
                qkey: qkey(settings, datagram.qkey).into(),
                src_qp: host.wire_qpn().into(),
            };
            start_on(Route::to(datagram, settings), port, host.frame(), head).header(&deth)
        }
        None => start(settings, port, host.frame(), head),
    };
    let ext = operation.ext();
    if ext.reth {
        b = b.header(&Reth {
            va: wqe.remote.0.into(),
            rkey: wqe.remote.1.into(),
            length: wqe.length.into(),
        });
    }
    if ext.imm {
        b = b.header(&ImmDt { data: wqe.imm });
    }
    if ext.ieth {
        b = b.header(&Ieth {
            rkey: u32::from_le_bytes(wqe.imm).into(),
        });
    }
    gather(wqe, offset, b.payload(length), host)?;
    Ok(b.finish())
}

/// Fills `out` with the data from byte `offset` on.
fn gather(wqe: &SendWqe, offset: u32, out: &mut [u8], host: &mut impl Host) -> Result<(), Fault> {
    match &wqe.data {
        Data::Sges(sges) => host.gather(sges, offset, out),
        Data::Inline(data) => {
            let from = offset as usize;
            out.copy_from_slice(data.get(from..from + out.len()).ok_or(Fault)?);
            Ok(())
        }
    }
}

fn is_atomic(opcode: SendOpcode) -> bool {
    matches!(opcode, SendOpcode::CompareSwap | SendOpcode::FetchAdd)
}

fn message_operation(opcode: SendOpcode, first: bool, last: bool) -> Operation {
    use Operation::*;
    let write = matches!(opcode, SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm);
    match (first, last, opcode) {
        (true, true, SendOpcode::SendImm) => SendOnlyImm,
        (true, true, SendOpcode::SendInvalidate) => SendOnlyInvalidate,
        (true, true, SendOpcode::RdmaWriteImm) => WriteOnlyImm,
        (false, true, SendOpcode::SendImm) => SendLastImm,
        (false, true, SendOpcode::SendInvalidate) => SendLastInvalidate,
        (false, true, SendOpcode::RdmaWriteImm) => WriteLastImm,
        (true, true, _) if write => WriteOnly,
        (true, true, _) => SendOnly,
        (false, true, _) if write => WriteLast,
        (false, true, _) => SendLast,
        (true, false, _) if write => WriteFirst,
        (true, false, _) => SendFirst,
        (false, false, _) if write => WriteMiddle,
        (false, false, _) => SendMiddle,
    }
}

/// Makes a request that is answered by itself; a READ from response packet `index` on.
fn answered(
    settings: &Settings,
    p: &Pending,
    index: u32,
    host: &mut impl Host,
) -> Result<Frame, Fault> {
    let wqe = &p.wqe;
    let (va, rkey) = wqe.remote;
    let operation = match wqe.opcode {
        SendOpcode::CompareSwap => Operation::CompareSwap,
        SendOpcode::FetchAdd => Operation::FetchAdd,
        SendOpcode::AtomicWrite => Operation::AtomicWrite,
        SendOpcode::Flush => Operation::Flush,
        _ => Operation::ReadRequest,
    };
    let head = Head {
        operation,
        psn: psn_add(p.first_psn, index),
        ack_req: false,
        solicited: false,
    };
    let port = host.port(settings.path.sgid_index.get(), settings.pkey_index);
    let mut b = start(settings, port, host.frame(), head);
    if is_atomic(wqe.opcode) {
        let (swap_or_add, compare) = wqe.atomic;
        b = b.header(&AtomicEth {
            va: va.into(),
            rkey: rkey.into(),
            swap_or_add: swap_or_add.into(),
            compare: compare.into(),
        });
        return Ok(b.finish());
    }
    let offset = index * settings.mtu.bytes();
    let mut length = wqe.length - offset;
    if let Some(flush) = &wqe.flush {
        b = b.header(&Feth::new(flush.level.to_wire(), flush.placement));
        length = flush.length;
    }
    b = b.header(&Reth {
        va: va.wrapping_add(u64::from(offset)).into(),
        rkey: rkey.into(),
        length: length.into(),
    });
    if operation == Operation::AtomicWrite {
        gather(wqe, 0, b.payload(wqe.length as usize), host)?;
    }
    Ok(b.finish())
}
