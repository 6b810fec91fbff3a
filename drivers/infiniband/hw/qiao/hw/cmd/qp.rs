// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{command, NoReply};
use crate::{
    describe::{constants, layout},
    pages::PageList,
    qp::QpAttr,
    U32, //
};

constants! {
    /// Bits of `CreateQp::flags`.
    pub mod qp_flag: u32 {
        /// Every send request raises a completion, whatever its own flag says.
        SIGNAL_ALL = 1 << 0,
        /// The QP belongs to the kernel: it may use physical keys.
        KERNEL = 1 << 1,
    }
}

layout! {
    /// Creates a QP in the RESET state.
    ///
    /// One buffer holds the receive ring at `rq_offset` and the send ring at `sq_offset`. A QP with
    /// an SRQ, of type Rc, Uc or Ud, has no receive ring.
    ///
    /// A special QP (SMI, GSI; only with `feature.MAD` and `qp_flag.KERNEL`) has a number like any
    /// other here and in commands, completions and events; in packets it is QP 0 or QP 1 of its
    /// port. `Exists` if the port has one of the type.
    pub struct CreateQp[80] {
        /// QP number.
        pub qpn: U32,
        /// PD number.
        pub pdn: U32,
        /// CQ of send completions.
        pub send_cqn: U32,
        /// CQ of receive completions.
        pub recv_cqn: U32,
        /// Number of the SRQ that receive requests come from; 0 is none.
        pub srqn: U32,
        /// XRC domain, if `feature.XRC`; zero and unused otherwise.
        pub xrcdn: U32,
        /// Doorbell slot of the send queue: an index slot.
        pub sq_slot: U32,
        /// Doorbell slot of the receive queue: an index slot. None with an SRQ.
        pub rq_slot: U32,
        /// Bits in `qp_flag`.
        pub flags: U32,
        /// A `qp::QpType`.
        pub qp_type: u8,
        /// Log2 of the 64-byte blocks of the send ring.
        pub log_sq_blocks: u8,
        /// Log2 of the work requests of the receive ring; zero with an SRQ.
        pub log_rq_wqes: u8,
        /// Log2 of the bytes of a receive request, 5 to 12; zero with an SRQ.
        pub log_rq_stride: u8,
        /// Offset of the send ring in the buffer, a multiple of 64.
        pub sq_offset: U32,
        /// Offset of the receive ring in the buffer, a multiple of 64; zero with an SRQ.
        pub rq_offset: U32,
        /// Port, from 1, of a special QP (SMI and GSI); zero for others.
        pub port: u8,
        /// Reserved.
        pub rsvd: [u8; 3],
        /// Most bytes of the largest send request, control segment included; a multiple of 16.
        pub max_sq_wqe: U32,
        /// The buffer.
        pub buffer: PageList,
    }
}
command!(CreateQp => CreateQp, NoReply);

layout! {
    /// Destroys a QP in any state. After the completion the device touches neither its buffer nor
    /// the memory of its requests, and writes no completion or event of it; requests that had none
    /// get none.
    pub struct DestroyQp[8] {
        /// QP number.
        pub qpn: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
command!(DestroyQp => DestroyQp, NoReply);

layout! {
    /// Changes state and attributes. `BadState` if IBTA 10.3.1 has no such transition from the
    /// state that the QP is in, `BadOperand` if an attribute is missing or out of range.
    pub struct ModifyQp[112] {
        /// QP number.
        pub qpn: U32,
        /// Which attributes count; bits in `qp::attr`.
        pub mask: U32,
        /// The attributes.
        pub attr: QpAttr,
    }
}
command!(ModifyQp => ModifyQp, NoReply);

layout! {
    /// Reads state and attributes.
    pub struct QueryQp[8] {
        /// QP number.
        pub qpn: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
command!(QueryQp => QueryQp, QueryQpReply);

layout! {
    /// State and attributes; in `attr.sq_psn` and `attr.rq_psn` the next ones to be sent and
    /// expected.
    pub struct QueryQpReply[112] {
        /// Whether the send queue drains (state SQD only): 0 or 1.
        pub sq_draining: u8,
        /// Reserved.
        pub rsvd: [u8; 7],
        /// The attributes.
        pub attr: QpAttr,
    }
}
