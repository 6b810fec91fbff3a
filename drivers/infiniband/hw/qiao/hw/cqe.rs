// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Completion queue entries.

use crate::{
    describe::{constants, layout, numbers},
    U16,
    U32,
    U64, //
};

layout! {
    /// A completion. With a status other than `Success` only `qpn`, `wqe_index`, `status`,
    /// `vendor_error`, the receive bit of `opcode` and `owner` count.
    pub struct Cqe[64] {
        /// QP number.
        pub qpn: U32,
        /// Which request: the free-running index of its first block in the send queue, or of the
        /// request in the receive queue; the number of the request in an SRQ.
        pub wqe_index: U32,
        /// Bytes received or read.
        pub byte_len: U32,
        /// Immediate data in wire order, or the rkey that was invalidated; see `flags`.
        pub imm_or_rkey: [u8; 4],
        /// A `CqeOpcode`.
        pub opcode: u8,
        /// A `CqeStatus`.
        pub status: u8,
        /// Bits in `cqe_flag`.
        pub flags: u8,
        /// A vendor's number for a failed request.
        pub vendor_error: u8,
        /// QP number of the sender (UD).
        pub src_qpn: U32,
        /// LID of the sender (UD).
        pub slid: U32,
        /// Index of the P_Key (UD).
        pub pkey_index: U16,
        /// Service level (UD).
        pub sl: u8,
        /// Destination path bits (UD).
        pub path_bits: u8,
        /// When the device completed the request; unit in `Caps::timestamp_khz`.
        pub timestamp: U64,
        /// SRQ number of a receive that took its buffer there; zero otherwise.
        pub srqn: U32,
        /// Reserved.
        pub rsvd: [u8; 16],
        /// Bit 0: phase. Written last.
        pub owner: U32,
    }
}

numbers! {
    /// What completed. Bit 7 is set for receives.
    pub enum CqeOpcode: u8 {
        /// SEND of any kind.
        Send = 0,
        /// RDMA WRITE of any kind.
        RdmaWrite = 1,
        /// RDMA READ.
        RdmaRead = 2,
        /// Compare-and-swap.
        CompareSwap = 3,
        /// Fetch-and-add.
        FetchAdd = 4,
        /// Memory window bind.
        BindMw = 5,
        /// Local invalidate.
        LocalInvalidate = 6,
        /// Fast registration.
        RegMr = 7,
        /// Masked compare-and-swap.
        MaskedCompareSwap = 8,
        /// Masked fetch-and-add.
        MaskedFetchAdd = 9,
        /// Flush.
        Flush = 10,
        /// Atomic write.
        AtomicWrite = 11,
        /// Receive of a SEND.
        Recv = 0x80,
        /// Receive that an RDMA WRITE with immediate consumed.
        RecvRdmaWithImm = 0x81,
    }
}

/// Bit of `Cqe::opcode` that tells receives.
pub const OPCODE_RECV: u8 = 0x80;

numbers! {
    /// How a request ended. The values are those of `enum ib_wc_status`.
    pub enum CqeStatus: u8 {
        /// Done.
        Success = 0,
        /// The data did not fit, or a message is too long.
        LocalLength = 1,
        /// The request is malformed.
        LocalQpOperation = 2,
        /// Local EE context error (unused).
        LocalEecOperation = 3,
        /// A local key, address or right is wrong.
        LocalProtection = 4,
        /// The request was flushed because its QP is in error.
        WrFlush = 5,
        /// Memory window bind failed.
        MwBind = 6,
        /// The responder sent something unexpected.
        BadResponse = 7,
        /// The receive buffer's rights were violated during a receive.
        LocalAccess = 8,
        /// The responder refused the request as invalid.
        RemoteInvalidRequest = 9,
        /// The responder found a remote key, address or right wrong.
        RemoteAccess = 10,
        /// The responder failed.
        RemoteOperation = 11,
        /// No answer after all retries.
        RetryExceeded = 12,
        /// The receiver was not ready after all retries.
        RnrRetryExceeded = 13,
        /// RDD violation (unused).
        LocalRddViolation = 14,
        /// RD request invalid (unused).
        RemoteInvalidRdRequest = 15,
        /// Aborted by the responder (XRC).
        RemoteAborted = 16,
        /// Invalid EE context number (unused).
        InvalidEecn = 17,
        /// Invalid EE context state (unused).
        InvalidEecState = 18,
        /// The device failed.
        Fatal = 19,
        /// A response took too long.
        ResponseTimeout = 20,
        /// Any other error.
        General = 21,
    }
}

constants! {
    /// Bits of `Cqe::flags`.
    pub mod cqe_flag: u8 {
        /// The first 40 bytes of the buffer hold a GRH (UD).
        GRH = 1 << 0,
        /// `imm_or_rkey` holds immediate data.
        IMM = 1 << 1,
        /// `imm_or_rkey` holds an invalidated rkey, little-endian.
        INVALIDATED = 1 << 2,
        /// The sender asked for a solicited event.
        SOLICITED = 1 << 3,
    }
}
