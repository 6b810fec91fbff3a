// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work requests and completions without C pointers.

use qiao_hw::cqe::Cqe;
use qiao_hw::wqe::{DataSeg, DatagramSeg, SendOpcode};

/// Where the data of a send request is.
pub(crate) trait Payload {
    /// The pieces.
    fn segments(&self) -> impl ExactSizeIterator<Item = DataSeg>;
    /// Copies `length` bytes of a piece from `offset` on, for inline data.
    fn copy(&self, segment: &DataSeg, offset: usize, out: &mut [u8]);
}

/// A send request without its data.
pub(crate) struct SendWr {
    /// The caller's cookie.
    pub(crate) id: u64,
    /// What to do.
    pub(crate) opcode: SendOpcode,
    /// Bits of `qiao_hw::wqe::send_flag`.
    pub(crate) flags: u8,
    /// Immediate data in wire order, or the rkey to invalidate.
    pub(crate) imm_or_rkey: [u8; 4],
    /// Remote address and key.
    pub(crate) remote: Option<(u64, u32)>,
    /// What an atomic stores or adds, and what it compares with.
    pub(crate) atomic: Option<(u64, u64)>,
    /// Where it goes; set exactly on a queue pair of datagrams.
    pub(crate) datagram: Option<DatagramSeg>,
}

/// A completion with the cookie of its request.
pub(crate) struct Completion {
    /// The caller's cookie.
    pub(crate) id: u64,
    /// What the device wrote.
    pub(crate) cqe: Cqe,
}
