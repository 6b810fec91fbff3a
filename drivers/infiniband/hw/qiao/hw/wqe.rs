// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work queue entries.
//!
//! A send ring is made of 64-byte blocks. A send request takes as many consecutive blocks as its
//! segments need and goes on at the start of the ring when it meets the end. The producer index
//! counts blocks. The segments are, in this order:
//!
//! 1. [`SendCtrl`];
//! 2. [`RemoteSeg`] for WRITE, READ and atomics;
//! 3. [`AtomicSeg`] for atomics;
//! 4. [`DatagramSeg`] for UD;
//! 5. `num_sge` [`DataSeg`]s, or with [`send_flag::INLINE`] an [`InlineSeg`] and the data itself,
//!    filled up to a multiple of 16 bytes.
//!
//! A receive ring has a fixed stride; a receive request is a [`RecvCtrl`] and its [`DataSeg`]s.

use crate::{
    describe::{constants, layout, numbers},
    qp::{
        Path,
        QpType, //
    },
    U16,
    U32,
    U64, //
};

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
        /// Atomic write.
        AtomicWrite = 13,
        /// Flush.
        Flush = 14,
    }
}

impl SendOpcode {
    /// Returns whether a QP of this type takes such requests from its user (IBTA 11.4.1.1).
    pub const fn is_for(self, ty: QpType) -> bool {
        match ty {
            QpType::Rc | QpType::XrcIni => true,
            QpType::Uc => !matches!(
                self,
                Self::RdmaRead
                    | Self::CompareSwap
                    | Self::FetchAdd
                    | Self::MaskedCompareSwap
                    | Self::MaskedFetchAdd
                    | Self::AtomicWrite
                    | Self::Flush
            ),
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
        /// Free-running index of the request, as in `SendCtrl`.
        pub index: U32,
        /// Reserved.
        pub rsvd: U64,
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
        SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm | SendOpcode::RdmaRead => 16,
        SendOpcode::CompareSwap | SendOpcode::FetchAdd => 32,
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

#[cfg(test)]
mod tests {
    use super::*;

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
