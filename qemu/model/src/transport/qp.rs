// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::attr::{ModifyError, Settings, Special};
use super::requester::Requester;
use super::responder::Responder;
use super::{Completion, Counter, Host, RecvWqe, SendWqe};
use qiao_fabric::wire::{Packet, Transport};
use qiao_hw::cqe::{CqeOpcode, CqeStatus};
use qiao_hw::event::EventType;
use qiao_hw::qp::{QpAttr, QpState};
use qiao_hw::wqe::SendOpcode;

/// A queue pair.
#[derive(Debug)]
pub struct Qp {
    pub(super) settings: Settings,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    /// Whether receive requests come from a queue that others use, too.
    shared: bool,
}

impl Qp {
    /// Makes a queue pair in RESET.
    pub fn new(service: Transport) -> Self {
        Self::with(Settings::new(service))
    }

    /// Makes a queue pair in RESET whose receive requests come from a shared queue.
    pub fn new_sharing(service: Transport) -> Self {
        Self {
            shared: true,
            ..Self::new(service)
        }
    }

    /// Makes a special queue pair of a port, from 1, in RESET.
    pub fn new_special(special: Special, port: u8) -> Self {
        Self::with(Settings::new_special(special, port))
    }

    fn with(settings: Settings) -> Self {
        Self {
            settings,
            requester: Requester::default(),
            responder: Responder::default(),
            shared: false,
        }
    }

    /// Returns the state.
    pub fn state(&self) -> QpState {
        self.settings.state
    }

    /// Returns the attributes.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the attributes as the interface has them, and whether the send queue drains.
    pub fn query(&self) -> (QpAttr, bool) {
        let attr = self
            .settings
            .to_wire(self.requester.next_psn(), self.responder.expected_psn());
        let draining = self.settings.state == QpState::Sqd && !self.requester.is_idle();
        (attr, draining)
    }

    /// Changes state and attributes. In RESET the rings are the caller's to reset.
    ///
    /// # Errors
    ///
    /// If IBTA has no such transition, or an attribute is missing or out of range; then nothing has
    /// changed.
    pub fn modify(
        &mut self,
        mask: u32,
        attr: &QpAttr,
        host: &mut impl Host,
    ) -> Result<(), ModifyError> {
        let next = self.settings.modify(mask, attr)?;
        let from = self.settings.state;
        match next.state {
            QpState::Reset => {
                self.give_back(host);
                *self = Self {
                    shared: self.shared,
                    ..Self::with(next)
                };
                return Ok(());
            }
            QpState::Err => {
                self.enter_error(host);
                return Ok(());
            }
            _ => {}
        }
        self.settings = next;
        match (from, next.state) {
            (QpState::Init, QpState::Rtr) => self.responder.start(next.rq_psn),
            (QpState::Rtr, QpState::Rts) => self.requester.start(next.sq_psn, &next),
            (QpState::Rts, QpState::Sqd) => self.report_drained(host),
            _ => {}
        }
        Ok(())
    }

    /// Takes a packet of this queue pair that has passed the checks of the link and the ICRC.
    pub fn packet_in(&mut self, packet: &Packet<'_>, now: u64, host: &mut impl Host) {
        if packet.transport != self.settings.service {
            return;
        }
        if packet.operation.is_response() {
            if matches!(self.settings.state, QpState::Rts | QpState::Sqd) {
                self.response_in(packet, now, host);
                self.report_drained(host);
            }
        } else if matches!(
            self.settings.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        ) {
            self.request_in(packet, host);
        }
    }

    /// Sends up to `budget` packets. Returns whether there may be more to send at once.
    pub fn pump(&mut self, now: u64, budget: usize, host: &mut impl Host) -> bool {
        match self.settings.state {
            QpState::Rtr => self.pump_replies(budget, host) == 0,
            QpState::Rts | QpState::Sqd => {
                let left = self.pump_replies(budget, host);
                let left = self.pump_requests(now, left, host);
                self.report_drained(host);
                left == 0
            }
            QpState::Sqe => {
                self.flush_sends(host);
                false
            }
            QpState::Err => {
                self.flush(host);
                false
            }
            _ => false,
        }
    }

    /// Returns when [`Qp::timer`] wants to be called, in nanoseconds.
    pub fn deadline(&self) -> Option<u64> {
        match self.settings.state {
            QpState::Rts | QpState::Sqd => self.requester.deadline(),
            _ => None,
        }
    }

    /// Does what is due at `now`; [`Qp::pump`] then sends.
    pub fn timer(&mut self, now: u64, host: &mut impl Host) {
        if matches!(self.settings.state, QpState::Rts | QpState::Sqd) {
            self.request_timer(now, host);
        }
    }

    /// Ends all requests, those in flight and those in the rings, each with one flush completion.
    pub(super) fn enter_error(&mut self, host: &mut impl Host) {
        let from = std::mem::replace(&mut self.settings.state, QpState::Err);
        self.flush(host);
        // Those that it has taken are done, and it takes no more (IBTA 11.6.3).
        if self.shared && from != QpState::Err {
            host.event(EventType::LastWqeReached);
        }
    }

    /// Gives the request that it has taken from a shared queue back, before it is destroyed or reset.
    pub fn give_back(&mut self, host: &mut impl Host) {
        if let Some(wqe) = self.responder.take().filter(|_| self.shared) {
            host.put_back(wqe);
        }
    }

    /// Keeps a receive request that was not used for the next message: of this queue pair, or of
    /// any that shares the queue.
    pub(super) fn put_back(&mut self, wqe: RecvWqe, host: &mut impl Host) {
        if self.shared {
            host.put_back(wqe);
        } else {
            self.responder.spare = Some(wqe);
        }
    }

    /// Ends all send requests; receiving goes on (IBTA 10.3.1.6).
    pub(super) fn enter_send_error(&mut self, host: &mut impl Host) {
        self.settings.state = QpState::Sqe;
        self.flush_sends(host);
    }

    fn flush_sends(&mut self, host: &mut impl Host) {
        for wqe in self.requester.take_all() {
            complete_send(host, &wqe, CqeStatus::WrFlush, 0);
        }
        while let Some(wqe) = host.next_send() {
            complete_send(host, &wqe, CqeStatus::WrFlush, 0);
        }
    }

    fn flush(&mut self, host: &mut impl Host) {
        self.flush_sends(host);
        if let Some(wqe) = self.responder.take() {
            complete_recv_error(host, &wqe, CqeStatus::WrFlush);
        }
        // Those in a shared queue are for others, too (IBTA 10.2.9).
        if self.shared {
            return;
        }
        while let Some(wqe) = host.next_recv() {
            complete_recv_error(host, &wqe, CqeStatus::WrFlush);
        }
    }

    /// Raises SQ_DRAINED once when the send queue of a queue pair in SQD is empty.
    fn report_drained(&mut self, host: &mut impl Host) {
        let drained = self.settings.state == QpState::Sqd && self.requester.is_idle();
        if drained && self.settings.notify_drained {
            self.settings.notify_drained = false;
            host.event(EventType::SqDrained);
        }
    }
}

fn send_completion(opcode: SendOpcode) -> CqeOpcode {
    match opcode {
        SendOpcode::Send | SendOpcode::SendImm | SendOpcode::SendInvalidate => CqeOpcode::Send,
        SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm => CqeOpcode::RdmaWrite,
        SendOpcode::RdmaRead => CqeOpcode::RdmaRead,
        SendOpcode::CompareSwap => CqeOpcode::CompareSwap,
        SendOpcode::FetchAdd => CqeOpcode::FetchAdd,
        SendOpcode::MaskedCompareSwap => CqeOpcode::MaskedCompareSwap,
        SendOpcode::MaskedFetchAdd => CqeOpcode::MaskedFetchAdd,
        SendOpcode::LocalInvalidate => CqeOpcode::LocalInvalidate,
        SendOpcode::RegMr => CqeOpcode::RegMr,
        SendOpcode::BindMw => CqeOpcode::BindMw,
        SendOpcode::AtomicWrite => CqeOpcode::AtomicWrite,
        SendOpcode::Flush => CqeOpcode::Flush,
    }
}

/// Ends a send request: success raises a completion if it was asked for, failure always.
pub(super) fn complete_send(host: &mut impl Host, wqe: &SendWqe, status: CqeStatus, byte_len: u32) {
    if status == CqeStatus::Success && !wqe.signaled {
        return;
    }
    match status {
        CqeStatus::LocalLength | CqeStatus::LocalProtection | CqeStatus::LocalQpOperation => {
            host.count(Counter::LocalErrors);
        }
        CqeStatus::RemoteAccess | CqeStatus::RemoteOperation | CqeStatus::RemoteInvalidRequest => {
            host.count(Counter::RemoteErrors)
        }
        _ => {}
    }
    host.complete(Completion {
        index: wqe.index,
        opcode: send_completion(wqe.opcode),
        status,
        byte_len,
        imm: None,
        invalidated: None,
        solicited: false,
        source: None,
    });
}

/// Ends a receive request that failed.
pub(super) fn complete_recv_error(host: &mut impl Host, wqe: &RecvWqe, status: CqeStatus) {
    host.complete(Completion {
        index: wqe.index,
        opcode: CqeOpcode::Recv,
        status,
        byte_len: 0,
        imm: None,
        invalidated: None,
        solicited: false,
        source: None,
    });
}
