// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{command, NoReply};
use crate::{
    describe::{constants, layout},
    pages::PageList,
    U16,
    U32, //
};

constants! {
    /// Bits of `CreateSrq::flags`.
    pub mod srq_flag: u16 {
        /// The SRQ belongs to the kernel: its requests may use physical keys.
        KERNEL = 1 << 0,
    }
}

layout! {
    /// Creates an SRQ; needs `feature.SRQ`.
    ///
    /// The buffer starts with `2^log_wqes` receive requests of `2^log_stride` bytes. At
    /// `order_offset` is the order ring: as many words, each the number of a request. The producer
    /// index of the slot is that of the order ring.
    pub struct CreateSrq[48] {
        /// SRQ number, not 0.
        pub srqn: U32,
        /// PD number: that of the keys of its requests.
        pub pdn: U32,
        /// Doorbell slot: an index slot.
        pub slot: U32,
        /// Bits in `srq_flag`.
        pub flags: U16,
        /// Log2 of the number of requests, and of the words of the order ring.
        pub log_wqes: u8,
        /// Log2 of the bytes of a request, 5 to 12.
        pub log_stride: u8,
        /// Offset of the order ring in the buffer, a multiple of 64.
        pub order_offset: U32,
        /// As in `ModifySrq`.
        pub limit: U32,
        /// The buffer.
        pub buffer: PageList,
    }
}
command!(CreateSrq => CreateSrq, NoReply);

layout! {
    /// Destroys an SRQ. `Busy` while a QP uses it. After the completion the device touches neither
    /// its buffer nor the memory of its requests, and writes no event of it; its requests have no
    /// completion.
    pub struct DestroySrq[8] {
        /// SRQ number.
        pub srqn: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
command!(DestroySrq => DestroySrq, NoReply);

layout! {
    /// Asks for the event `SrqLimit`, once. `BadState` if the SRQ has failed.
    pub struct ModifySrq[8] {
        /// SRQ number.
        pub srqn: U32,
        /// Raise the event when there are fewer requests than this; 0 asks for none and takes back
        /// what was asked for before. At most the number of requests that there can be.
        pub limit: U32,
    }
}
command!(ModifySrq => ModifySrq, NoReply);

layout! {
    /// Reads the limit of an SRQ.
    pub struct QuerySrq[8] {
        /// SRQ number.
        pub srqn: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
command!(QuerySrq => QuerySrq, QuerySrqReply);

layout! {
    /// The limit of an SRQ.
    pub struct QuerySrqReply[8] {
        /// As in `ModifySrq`; 0 when the event has been raised.
        pub limit: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
