// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The InfiniBand transport (IBTA volume 1, chapter 9) as a state machine without I/O.
//!
//! A [`Qp`] is driven by [`Qp::packet_in`], [`Qp::pump`], [`Qp::timer`] and [`Qp::modify`]. Memory,
//! work requests, completions and the wire are behind [`Host`], which the device implements and
//! tests replace. Time is a number of nanoseconds that the caller passes in. Nothing here blocks,
//! sleeps or draws random numbers, so that a run can be repeated.

mod attr;
#[cfg(any(test, feature = "node"))]
pub mod node;
mod once;
mod path;
mod qp;
mod requester;
mod responder;
mod unreliable;

#[cfg(test)]
mod tests;

pub use attr::{transitions, ModifyError, Settings, Special, MAX_MTU};
pub use path::PortInfo;
pub use qp::Qp;
pub use responder::MAX_MESSAGE;

use qiao_fabric::wire::Frame;
use qiao_hw::cqe::{CqeOpcode, CqeStatus};
use qiao_hw::event::EventType;
use qiao_hw::qp::{access, Path};
use qiao_hw::wqe::{FlushLevel, SendOpcode};

/// A piece of local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sge {
    /// Address.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// Key.
    pub lkey: u32,
}

/// Where the data of a send request is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// In memory.
    Sges(Vec<Sge>),
    /// In the request itself.
    Inline(Vec<u8>),
}

/// Where a datagram goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram {
    /// Path.
    pub path: Path,
    /// Queue pair.
    pub qpn: u32,
    /// Q_Key; bit 31 set means the sender's own.
    pub qkey: u32,
    /// Index of the P_Key, on a GSI QP.
    pub pkey_index: u16,
}

/// Where a datagram came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Queue pair.
    pub qpn: u32,
    /// LID.
    pub lid: u16,
    /// Service level.
    pub sl: u8,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Whether a GRH is in front of the data.
    pub grh: bool,
}

/// What a FLUSH makes sure of, beside its remote address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Bytes.
    pub length: u32,
    /// Bits in `qiao_hw::wqe::placement`.
    pub placement: u8,
    /// Which memory.
    pub level: FlushLevel,
}

/// A send request, decoded and copied out of memory that its owner may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendWqe {
    /// Free-running index of its first block.
    pub index: u32,
    /// What to do.
    pub opcode: SendOpcode,
    /// Whether success raises a completion.
    pub signaled: bool,
    /// Whether the peer gets a solicited event.
    pub solicited: bool,
    /// Whether it waits for READs and atomics before it.
    pub fence: bool,
    /// Immediate data in wire order.
    pub imm: [u8; 4],
    /// Remote address and key.
    pub remote: (u64, u32),
    /// What an atomic stores or adds, and what it compares with.
    pub atomic: (u64, u64),
    /// What a FLUSH makes sure of.
    pub flush: Option<Flush>,
    /// Where it goes, if it is a datagram.
    pub datagram: Option<Datagram>,
    /// The data.
    pub data: Data,
    /// Bytes of the data.
    pub length: u32,
    /// Set if the request is malformed: it fails with this when its turn comes.
    pub error: Option<CqeStatus>,
}

/// A receive request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecvWqe {
    /// Free-running index.
    pub index: u32,
    /// Where the data goes.
    pub sges: Vec<Sge>,
    /// Bytes of all of them.
    pub length: u64,
    /// Set if the request is malformed.
    pub error: Option<CqeStatus>,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Index of the request.
    pub index: u32,
    /// What completed.
    pub opcode: CqeOpcode,
    /// How.
    pub status: CqeStatus,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data in wire order.
    pub imm: Option<[u8; 4]>,
    /// Key that the peer invalidated.
    pub invalidated: Option<u32>,
    /// Whether the sender asked for a solicited event.
    pub solicited: bool,
    /// Where it came from, if it is a datagram.
    pub source: Option<Source>,
}

/// Memory that a key does not give, or gives but cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault;

/// An atomic operation on 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomic {
    /// Stores `swap` if the value equals `compare`.
    CompareSwap {
        /// What to compare with.
        compare: u64,
        /// What to store.
        swap: u64,
    },
    /// Adds.
    FetchAdd(
        /// What to add.
        u64,
    ),
    /// Stores.
    Write(
        /// What to store.
        u64,
    ),
}

impl Atomic {
    /// Returns the value after the operation on `old`.
    pub fn apply(self, old: u64) -> u64 {
        match self {
            Self::CompareSwap { compare, swap } if old == compare => swap,
            Self::CompareSwap { .. } => old,
            Self::FetchAdd(add) => old.wrapping_add(add),
            Self::Write(value) => value,
        }
    }

    /// Returns the right that it needs (IBTA 10.6.3, annex A19).
    pub fn right(self) -> u32 {
        match self {
            Self::CompareSwap { .. } | Self::FetchAdd(_) => access::REMOTE_ATOMIC,
            Self::Write(_) => access::REMOTE_WRITE,
        }
    }
}

/// What the transport counts, beside what the link counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the meanings are those of qiao_hw::cmd::PortCounters"
)]
pub enum Counter {
    Retransmits,
    LocalAckTimeouts,
    OutOfSequence,
    SequenceNaks,
    RnrNaks,
    DuplicateRequests,
    LocalErrors,
    RemoteErrors,
    QkeyViolations,
}

/// What a queue pair needs from the device, for one queue pair.
///
/// Every method is called from within the methods of [`Qp`] and must not call back.
pub trait Host {
    /// Takes the next send request from the ring; [`None`] if there is none.
    fn next_send(&mut self) -> Option<SendWqe>;
    /// Takes the next receive request from the ring; [`None`] if there is none.
    fn next_recv(&mut self) -> Option<RecvWqe>;
    /// Gives a request back to the shared queue that it was taken from: it is the next one.
    fn put_back(&mut self, wqe: RecvWqe);
    /// Writes received data to the memory of a receive request from byte `offset` on.
    ///
    /// # Errors
    ///
    /// If a key does not allow it; part may have been written.
    fn receive(&mut self, wqe: &RecvWqe, offset: u32, data: &[u8]) -> Result<(), Fault>;
    /// Reads local memory from byte `offset` of the pieces on; fills `out`.
    ///
    /// # Errors
    ///
    /// If a key does not allow it. The contents of `out` then do not count.
    fn gather(&mut self, sges: &[Sge], offset: u32, out: &mut [u8]) -> Result<(), Fault>;
    /// Writes local memory from byte `offset` of the pieces on.
    ///
    /// # Errors
    ///
    /// If a key does not allow it; part may have been written.
    fn scatter(&mut self, sges: &[Sge], offset: u32, data: &[u8]) -> Result<(), Fault>;
    /// Checks that the peer may access memory; `access` is one bit of `qiao_hw::qp::access`.
    ///
    /// # Errors
    ///
    /// If the key does not allow it.
    fn check_remote(&mut self, rkey: u32, va: u64, length: u32, access: u32) -> Result<(), Fault>;
    /// Reads memory for the peer.
    ///
    /// # Errors
    ///
    /// If the key does not allow it.
    fn read_remote(&mut self, rkey: u32, va: u64, out: &mut [u8]) -> Result<(), Fault>;
    /// Writes memory for the peer.
    ///
    /// # Errors
    ///
    /// If the key does not allow it.
    fn write_remote(&mut self, rkey: u32, va: u64, data: &[u8]) -> Result<(), Fault>;
    /// Does an atomic operation for the peer and returns the value before it.
    ///
    /// # Errors
    ///
    /// If the key does not allow it.
    fn atomic_remote(&mut self, rkey: u32, va: u64, operation: Atomic) -> Result<u64, Fault>;
    /// Makes what has been written to memory for peers visible to everybody; all of the region if there
    /// is no `range` of address and length. `access` are bits of `qiao_hw::qp::access`.
    ///
    /// # Errors
    ///
    /// If the key does not allow it.
    fn flush_remote(
        &mut self,
        rkey: u32,
        range: Option<(u64, u32)>,
        access: u32,
    ) -> Result<(), Fault>;
    /// Invalidates a key of this queue pair's memory for the peer (SEND with invalidate). A device
    /// without keys that can be invalidated refuses.
    ///
    /// # Errors
    ///
    /// If the key is not one that the peer may invalidate.
    fn invalidate(&mut self, _rkey: u32) -> Result<(), Fault> {
        Err(Fault)
    }
    /// Writes a completion.
    fn complete(&mut self, completion: Completion);
    /// Raises an asynchronous event of this queue pair.
    fn event(&mut self, event: EventType);
    /// Counts.
    fn count(&mut self, counter: Counter);
    /// Returns the number of the queue pair in packets.
    fn wire_qpn(&self) -> u32;
    /// Returns what the headers say of the port: its LID, and the GID and P_Key of these indices.
    fn port(&self, sgid_index: u16, pkey_index: u16) -> PortInfo;
    /// Returns the index of the P_Key by which a packet with `pkey` came in.
    fn pkey_index(&self, pkey: u16) -> u16;
    /// Returns a frame to build a packet in.
    fn frame(&mut self) -> Frame;
    /// Sends a packet.
    fn transmit(&mut self, packet: Frame);
}
