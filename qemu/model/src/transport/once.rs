// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Requests that the responder executes once and answers by themselves: atomics, and ATOMIC WRITE and
//! FLUSH of IBTA annex A19. A duplicate gets the result again (IBTA 9.7.5.1.4).

use super::qp::Qp;
use super::responder::{syndrome, Answer, Refusal, Reply};
use super::{Atomic, Host};
use qiao_fabric::wire::{psn_add, Operation, Packet};
use qiao_hw::qp::access;
use qiao_hw::wqe::{placement, FlushLevel};

/// Requests whose results are kept for a duplicate request, whatever `max_dest_rd_atomic` says.
const MIN_RESULTS: usize = 1;

/// Result of a request that is not executed twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The value before an atomic.
    Original(u64),
    /// ATOMIC WRITE and FLUSH tell that they are done.
    Placed,
}

impl Qp {
    /// Repeats a result, if it is still known and not about to be sent anyway.
    pub(super) fn repeat_outcome(&mut self, psn: u32) {
        let rs = &mut self.responder;
        let waits = |r: &Reply| r.psn == psn && matches!(r.answer, Answer::Outcome(_));
        if rs.replies.iter().any(waits)
            || rs.waiting(true) >= usize::from(self.settings.max_dest_rd_atomic)
        {
            return;
        }
        // The newest first: sequence numbers come again.
        if let Some(&(_, outcome)) = rs.results.iter().rev().find(|(p, _)| *p == psn) {
            rs.repeat(psn, Answer::Outcome(outcome));
        }
    }

    pub(super) fn atomic(
        &mut self,
        packet: &Packet<'_>,
        psn: u32,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let (rkey, va, operation) = atomic_operation(packet)
            .filter(|(_, va, _)| va % 8 == 0)
            .ok_or(Refusal::Nak(syndrome::NAK_INVALID))?;
        self.allow(rkey, va, 8, operation.right(), host)?;
        self.allow_one_more()?;
        let original = host
            .atomic_remote(rkey, va, operation)
            .map_err(|_| Refusal::Nak(syndrome::NAK_ACCESS))?;
        let outcome = match operation {
            Atomic::Write(_) => Outcome::Placed,
            Atomic::CompareSwap { .. } | Atomic::FetchAdd(_) => Outcome::Original(original),
        };
        self.executed(psn, outcome);
        Ok(())
    }

    /// Executes a FLUSH. There is no persistent memory: no region grants it, whatever the queue pair
    /// says.
    pub(super) fn make_visible(
        &mut self,
        packet: &Packet<'_>,
        psn: u32,
        host: &mut impl Host,
    ) -> Result<(), Refusal> {
        let invalid = Refusal::Nak(syndrome::NAK_INVALID);
        let (Some(feth), Some(reth)) = (packet.feth, packet.reth) else {
            return Err(invalid);
        };
        let (Some(level), Some(rights)) = (
            FlushLevel::from_wire(feth.level()),
            rights(feth.placement()),
        ) else {
            return Err(invalid);
        };
        if self.settings.access & rights != rights {
            return Err(invalid);
        }
        self.allow_one_more()?;
        let range = match level {
            FlushLevel::Range => Some((reth.va.get(), reth.length.get())),
            FlushLevel::Region => None,
        };
        if range.is_none_or(|(_, length)| length > 0) {
            host.flush_remote(reth.rkey.get(), range, rights)
                .map_err(|_| Refusal::Nak(syndrome::NAK_ACCESS))?;
        }
        self.executed(psn, Outcome::Placed);
        Ok(())
    }

    /// Answers a request that is not executed twice, and keeps what a duplicate will ask for.
    fn executed(&mut self, psn: u32, outcome: Outcome) {
        let keep = usize::from(self.settings.max_dest_rd_atomic).max(MIN_RESULTS);
        let rs = &mut self.responder;
        rs.msn = psn_add(rs.msn, 1);
        rs.reply(psn, Answer::Outcome(outcome));
        rs.results.push_back((psn, outcome));
        if rs.results.len() > keep {
            rs.results.pop_front();
        }
    }
}

/// Returns key, address and operation that an atomic or an ATOMIC WRITE asks for.
fn atomic_operation(packet: &Packet<'_>) -> Option<(u32, u64, Atomic)> {
    if packet.operation == Operation::AtomicWrite {
        let value = u64::from_le_bytes(packet.payload.try_into().ok()?);
        return packet
            .reth
            .map(|reth| (reth.rkey.get(), reth.va.get(), Atomic::Write(value)));
    }
    let eth = packet.atomic?;
    let operand = eth.swap_or_add.get();
    let operation = match packet.operation {
        Operation::FetchAdd => Atomic::FetchAdd(operand),
        _ => Atomic::CompareSwap {
            compare: eth.compare.get(),
            swap: operand,
        },
    };
    Some((eth.rkey.get(), eth.va.get(), operation))
}

/// Returns the rights that a placement type needs; [`None`] if it is not one.
fn rights(placement: u8) -> Option<u32> {
    let right = |bit: u8, right: u32| if placement & bit != 0 { right } else { 0 };
    let known = placement::GLOBAL | placement::PERSISTENT;
    (placement != 0 && placement & !known == 0).then(|| {
        right(placement::GLOBAL, access::FLUSH_GLOBAL)
            | right(placement::PERSISTENT, access::FLUSH_PERSISTENT)
    })
}
