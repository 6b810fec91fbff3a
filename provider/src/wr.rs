// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work requests and completions without C pointers.

use qiao_hw::cqe::Cqe;
use qiao_hw::wqe::{DataSeg, SendHead};

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
    /// What to do; with a datagram segment exactly on a queue pair of datagrams.
    pub(crate) head: SendHead,
}

/// A completion with the cookie of its request.
pub(crate) struct Completion {
    /// The caller's cookie.
    pub(crate) id: u64,
    /// What the device wrote.
    pub(crate) cqe: Cqe,
}
