// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work queue entries.
//!
//! A send ring is made of 64-byte blocks. A send request takes as many consecutive blocks as its
//! segments need and goes on at the start of the ring when it meets the end. The producer index
//! counts blocks. The segments are, in this order:
//!
//! 1. [`SendCtrl`];
//! 2. [`RemoteSeg`] for WRITE, READ, atomics, ATOMIC WRITE and FLUSH;
//! 3. [`AtomicSeg`] for atomics, [`FlushSeg`] for FLUSH;
//! 4. [`DatagramSeg`] for UD;
//! 5. `num_sge` [`DataSeg`]s, or with [`send_flag::INLINE`] an [`InlineSeg`] and the data itself,
//!    filled up to a multiple of 16 bytes.
//!
//! A receive ring has a fixed stride; a receive request is a [`RecvCtrl`] and its [`DataSeg`]s. So
//! are those of an SRQ, which a ring of its own puts in order.

use crate::{
    caps::feature,
    describe::{constants, layout, numbers},
    qp::{
        Path,
        QpType, //
    },
    U16,
    U32,
    U64, //
};
use zerocopy::IntoBytes;

/// Bytes of a block of the send ring.
pub const BLOCK_SIZE: usize = 64;

/// Unit of `SendCtrl::size`, in bytes.
pub const SIZE_UNIT: usize = 16;

/// Smallest receive stride in bytes: one data segment.
pub const MIN_RECV_STRIDE: usize = 32;

layout! {
    /// Head of a send request.
    pub struct SendCtrl[16] {
        /// A `SendOpcode`.
        pub opcode: u8,
        /// Bits in `send_flag`.
        pub flags: u8,
        /// Bytes of all segments divided by 16, this one included.
        pub size: u8,
        /// Number of data segments; 0 with inline data.
        pub num_sge: u8,
        /// Free-running index of the first block; the device refuses a request whose index is not
        /// the one that it expects.
        pub index: U32,
        /// Immediate data in wire order, or the rkey to invalidate, little-endian.
        pub imm_or_rkey: [u8; 4],
        /// Reserved.
        pub rsvd: U32,
    }
}

numbers! {
    /// What a send request does.
    pub enum SendOpcode: u8 {
        /// SEND.
        Send = 0,
        /// SEND with immediate.
        SendImm = 1,
        /// SEND with invalidate.
        SendInvalidate = 2,
        /// RDMA WRITE.
        RdmaWrite = 3,
        /// RDMA WRITE with immediate.
        RdmaWriteImm = 4,
        /// RDMA READ.
        RdmaRead = 5,
        /// Compare-and-swap on 8 bytes.
        CompareSwap = 6,
        /// Fetch-and-add on 8 bytes.
        FetchAdd = 7,
        /// Masked compare-and-swap.
        MaskedCompareSwap = 8,
        /// Masked fetch-and-add.
        MaskedFetchAdd = 9,
        /// Local invalidate.
        LocalInvalidate = 10,
        /// Fast registration.
        RegMr = 11,
        /// Memory window bind.
        BindMw = 12,
        /// ATOMIC WRITE of 8 bytes (IBTA annex A19).
        AtomicWrite = 13,
        /// FLUSH (IBTA annex A19). Has no data.
        Flush = 14,
    }
}

impl SendOpcode {
    /// Returns whether the peer answers with data, which goes to the memory of the request.
    pub const fn reads(self) -> bool {
        matches!(
            self,
            Self::RdmaRead
                | Self::CompareSwap
                | Self::FetchAdd
                | Self::MaskedCompareSwap
                | Self::MaskedFetchAdd
        )
    }

    /// Returns whether the peer answers each such request by itself, with data or without:
    /// requests of which only so many may be outstanding.
    pub const fn is_answered(self) -> bool {
        self.reads() || matches!(self, Self::AtomicWrite | Self::Flush)
    }

    /// Returns the features that a part must have, bits in `caps::feature`.
    pub const fn needs(self) -> u64 {
        match self {
            Self::Send | Self::SendImm | Self::RdmaWrite | Self::RdmaWriteImm | Self::RdmaRead => 0,
            Self::CompareSwap | Self::FetchAdd => feature::ATOMIC,
            Self::MaskedCompareSwap | Self::MaskedFetchAdd => feature::MASKED_ATOMIC,
            Self::AtomicWrite => feature::ATOMIC_WRITE,
            Self::Flush => feature::FLUSH,
            Self::SendInvalidate | Self::LocalInvalidate | Self::RegMr => feature::FAST_REG,
            Self::BindMw => feature::MW_2B,
        }
    }

    /// Returns whether a QP of this type takes such requests from its user (IBTA 11.4.1.1).
    pub const fn is_for(self, ty: QpType) -> bool {
        match ty {
            QpType::Rc | QpType::XrcIni => true,
            QpType::Uc => !self.is_answered(),
            QpType::Ud | QpType::Gsi | QpType::Smi => matches!(self, Self::Send | Self::SendImm),
            QpType::XrcTgt => false,
        }
    }
}

constants! {
    /// Bits of `SendCtrl::flags`.
    pub mod send_flag: u8 {
        /// Raise a completion on success.
        SIGNALED = 1 << 0,
        /// Ask the peer for a solicited event.
        SOLICITED = 1 << 1,
        /// Start only when all READs and atomics before have completed.
        FENCE = 1 << 2,
        /// The data is in the request.
        INLINE = 1 << 3,
    }
}

layout! {
    /// Remote memory.
    pub struct RemoteSeg[16] {
        /// Address.
        pub addr: U64,
        /// Key.
        pub rkey: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}

layout! {
    /// Operands of an atomic.
    pub struct AtomicSeg[16] {
        /// What to store, or to add.
        pub swap_or_add: U64,
        /// What to compare with.
        pub compare: U64,
    }
}

numbers! {
    /// Which memory a FLUSH is about (IBTA annex A19: selectivity level).
    pub enum FlushLevel: u8 {
        /// `FlushSeg::length` bytes at the remote address.
        Range = 0,
        /// All of the region that the key names; address and length do not count.
        Region = 1,
    }
}

constants! {
    /// Bits of `FlushSeg::placement` (IBTA annex A19: placement type).
    pub mod placement: u8 {
        /// What was written before can be seen by everybody.
        GLOBAL = 1 << 0,
        /// What was written before outlives a loss of power.
        PERSISTENT = 1 << 1,
    }
}

layout! {
    /// What a FLUSH makes sure of.
    pub struct FlushSeg[16] {
        /// Bytes.
        pub length: U32,
        /// Bits in `placement`, at least one.
        pub placement: u8,
        /// A `FlushLevel`.
        pub level: u8,
        /// Reserved.
        pub rsvd: [u8; 10],
    }
}

layout! {
    /// Destination of a datagram.
    pub struct DatagramSeg[64] {
        /// Path.
        pub path: Path,
        /// QP number.
        pub qpn: U32,
        /// Q_Key; bit 31 set means the QP's own.
        pub qkey: U32,
        /// Index of the P_Key on a GSI QP; zero on others, which use the QP's own.
        pub pkey_index: U16,
        /// Reserved.
        pub rsvd: [u8; 6],
    }
}

layout! {
    /// A piece of local memory.
    pub struct DataSeg[16] {
        /// Address.
        pub addr: U64,
        /// Bytes; 0 is no byte.
        pub length: U32,
        /// Key.
        pub lkey: U32,
    }
}

layout! {
    /// Head of inline data.
    pub struct InlineSeg[4] {
        /// Bytes that follow.
        pub length: U32,
    }
}

layout! {
    /// Head of a receive request.
    pub struct RecvCtrl[16] {
        /// Number of data segments.
        pub num_sge: U32,
        /// Free-running index of the request, as in `SendCtrl`; in an SRQ of its word in the order
        /// ring.
        pub index: U32,
        /// Reserved.
        pub rsvd: U64,
    }
}

impl RemoteSeg {
    /// Makes the segment.
    #[inline]
    pub fn new(addr: u64, rkey: u32) -> Self {
        Self {
            addr: addr.into(),
            rkey: rkey.into(),
            rsvd: 0.into(),
        }
    }
}

impl AtomicSeg {
    /// Makes the segment.
    #[inline]
    pub fn new(swap_or_add: u64, compare: u64) -> Self {
        Self {
            swap_or_add: swap_or_add.into(),
            compare: compare.into(),
        }
    }
}

/// Returns how many blocks a send request of `bytes` takes.
#[inline]
pub const fn blocks(bytes: usize) -> usize {
    bytes.div_ceil(BLOCK_SIZE)
}

/// Returns the bytes of the segments that come before the data.
#[inline]
pub const fn head_size(opcode: SendOpcode, datagram: bool) -> usize {
    let remote = match opcode {
        SendOpcode::RdmaWrite
        | SendOpcode::RdmaWriteImm
        | SendOpcode::RdmaRead
        | SendOpcode::AtomicWrite => 16,
        SendOpcode::CompareSwap | SendOpcode::FetchAdd | SendOpcode::Flush => 32,
        _ => 0,
    };
    16 + remote + if datagram { 64 } else { 0 }
}

/// Returns the bytes of a send request with `num_sge` data segments.
#[inline]
pub const fn sge_size(opcode: SendOpcode, datagram: bool, num_sge: usize) -> usize {
    head_size(opcode, datagram) + 16 * num_sge
}

/// Returns the bytes of a send request with `length` bytes of inline data, filled up.
#[inline]
pub const fn inline_size(opcode: SendOpcode, datagram: bool, length: usize) -> usize {
    head_size(opcode, datagram) + (4 + length).next_multiple_of(SIZE_UNIT)
}

/// Everything of a send request but its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendHead {
    /// What to do.
    pub opcode: SendOpcode,
    /// Bits in `send_flag`.
    pub flags: u8,
    /// As `SendCtrl::imm_or_rkey`.
    pub imm_or_rkey: [u8; 4],
    /// Of WRITE, READ, atomics, ATOMIC WRITE and FLUSH.
    pub remote: Option<RemoteSeg>,
    /// Of atomics.
    pub atomic: Option<AtomicSeg>,
    /// Of FLUSH.
    pub flush: Option<FlushSeg>,
    /// Of datagrams.
    pub datagram: Option<DatagramSeg>,
}

impl SendHead {
    /// Makes the head of a request that needs no segment but the first.
    #[inline]
    pub const fn new(opcode: SendOpcode, flags: u8) -> Self {
        Self {
            opcode,
            flags,
            imm_or_rkey: [0; 4],
            remote: None,
            atomic: None,
            flush: None,
            datagram: None,
        }
    }

    /// Returns the bytes of the segments before the data.
    #[inline]
    pub fn size(&self) -> usize {
        let optional = |there: bool, size| if there { size } else { 0 };
        size_of::<SendCtrl>()
            + optional(self.remote.is_some(), size_of::<RemoteSeg>())
            + optional(self.atomic.is_some(), size_of::<AtomicSeg>())
            + optional(self.flush.is_some(), size_of::<FlushSeg>())
            + optional(self.datagram.is_some(), size_of::<DatagramSeg>())
    }

    /// Writes the segments before the data. `size` is that of the whole request, in units of
    /// `SIZE_UNIT`, `index` that of its first block.
    pub fn write<F: FnMut(u32, &[u8; BLOCK_SIZE])>(
        &self,
        out: &mut BlockWriter<BLOCK_SIZE, F>,
        index: u32,
        size: u8,
        num_sge: u8,
    ) {
        let ctrl = SendCtrl {
            opcode: self.opcode.to_wire(),
            flags: self.flags,
            size,
            num_sge,
            index: index.into(),
            imm_or_rkey: self.imm_or_rkey,
            rsvd: 0.into(),
        };
        out.push(ctrl.as_bytes());
        if let Some(remote) = &self.remote {
            out.push(remote.as_bytes());
        }
        if let Some(atomic) = &self.atomic {
            out.push(atomic.as_bytes());
        }
        if let Some(flush) = &self.flush {
            out.push(flush.as_bytes());
        }
        if let Some(datagram) = &self.datagram {
            out.push(datagram.as_bytes());
        }
    }
}

/// Cuts the bytes of a request into blocks of `N`, and gives each to `put` with its free-running
/// index.
#[derive(Debug)]
pub struct BlockWriter<const N: usize, F> {
    put: F,
    index: u32,
    block: [u8; N],
    fill: usize,
}

impl<const N: usize, F: FnMut(u32, &[u8; N])> BlockWriter<N, F> {
    /// Starts with the block `index`.
    pub fn new(index: u32, put: F) -> Self {
        Self {
            put,
            index,
            block: [0; N],
            fill: 0,
        }
    }

    /// Appends bytes.
    #[inline]
    pub fn push(&mut self, mut bytes: &[u8]) {
        // `fill` is less than `N` between calls, so that there is room.
        while let Some(room) = self.block.get_mut(self.fill..) {
            let n = room.len().min(bytes.len());
            let (Some(to), Some((now, later))) = (room.get_mut(..n), bytes.split_at_checked(n))
            else {
                break;
            };
            to.copy_from_slice(now);
            bytes = later;
            self.fill += n;
            if self.fill < N {
                break;
            }
            self.flush();
        }
    }

    /// Appends zeroes up to a multiple of `SIZE_UNIT`, which `N` must be, too.
    #[inline]
    pub fn pad(&mut self) {
        // The rest of a block is zero.
        self.fill = self.fill.next_multiple_of(SIZE_UNIT);
        if self.fill >= N {
            self.flush();
        }
    }

    /// Fills the last block up with zeroes and ends.
    pub fn finish(mut self) {
        if self.fill > 0 {
            self.flush();
        }
    }

    fn flush(&mut self) {
        (self.put)(self.index, &self.block);
        self.index = self.index.wrapping_add(1);
        self.block = [0; N];
        self.fill = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use zerocopy::FromBytes;

    #[test]
    fn blocks_come_in_order_and_the_last_is_filled_up() {
        let mut blocks = [(7, [0; BLOCK_SIZE]); 3];
        let mut places = blocks.iter_mut();
        let mut out = BlockWriter::new(u32::MAX, |index, block: &[u8; BLOCK_SIZE]| {
            *places.next().unwrap() = (index, *block);
        });
        out.push(&[1; 60]);
        out.push(&[2; 70]);
        out.push(&[]);
        out.pad();
        out.push(&[3]);
        out.finish();
        let [first, second, third] = blocks;
        assert_eq!((first.0, first.1[59], first.1[60]), (u32::MAX, 1, 2));
        assert_eq!((second.0, second.1), (0, [2; BLOCK_SIZE]));
        assert_eq!(third.0, 1);
        assert_eq!((third.1[1], third.1[2], third.1[15]), (2, 0, 0));
        assert_eq!((third.1[16], third.1[17]), (3, 0));
    }

    #[test]
    fn head_is_as_long_as_it_says() {
        let head = SendHead {
            remote: Some(RemoteSeg::new(1, 2)),
            atomic: Some(AtomicSeg::new(3, 4)),
            ..SendHead::new(SendOpcode::FetchAdd, send_flag::SIGNALED)
        };
        assert_eq!(head.size(), head_size(head.opcode, false));
        let mut block = None;
        let mut out = BlockWriter::new(5, |_, bytes: &[u8; BLOCK_SIZE]| block = Some(*bytes));
        head.write(&mut out, 5, 4, 1);
        out.push(&[9; 16]);
        out.finish();
        let bytes = block.unwrap();
        let (ctrl, rest) = SendCtrl::read_from_prefix(&bytes).unwrap();
        assert_eq!((ctrl.index.get(), ctrl.size, ctrl.num_sge), (5, 4, 1));
        assert_eq!(rest[32..], [9; 16]);
    }

    #[test]
    fn sizes() {
        assert_eq!(sge_size(SendOpcode::Send, false, 1), 32);
        assert_eq!(sge_size(SendOpcode::RdmaWrite, false, 2), 64);
        assert_eq!(blocks(sge_size(SendOpcode::RdmaWrite, false, 3)), 2);
        assert_eq!(inline_size(SendOpcode::Send, false, 0), 32);
        assert_eq!(inline_size(SendOpcode::RdmaWrite, false, 28), 64);
        assert_eq!(inline_size(SendOpcode::RdmaWrite, false, 29), 80);
    }
}
