// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{command, NoReply};
use crate::{
    describe::{constants, layout},
    pages::PageList,
    U16,
    U32, //
};

constants! {
    /// Bits of `CreateCq::flags`.
    pub mod cq_flag: u16 {
        /// The device overwrites the oldest entry instead of reporting an overflow.
        IGNORE_OVERRUN = 1 << 0,
    }
}

layout! {
    /// Creates a CQ.
    ///
    /// The buffer holds `2^log_entries` `cqe::Cqe`s, zeroed by the owner, and behind them the
    /// doorbell record: 64 bytes of which the first four are the free-running consumer index. The
    /// device reads the record only to detect an overflow, which puts the CQ into error and raises
    /// `CqError`.
    pub struct CreateCq[48] {
        /// CQ number.
        pub cqn: U32,
        /// Completion EQ that gets its events.
        pub eqn: U32,
        /// Doorbell slot: an arm slot.
        pub slot: U32,
        /// Bits in `cq_flag`.
        pub flags: U16,
        /// Log2 of the number of entries.
        pub log_entries: u8,
        /// Reserved.
        pub rsvd0: u8,
        /// Most completions before an armed CQ raises an event; 0 and 1 mean each.
        pub moderation_count: U16,
        /// Longest time in microseconds that moderation may hold an event back; 0 means none.
        pub moderation_usec: U16,
        /// Reserved.
        pub rsvd1: U32,
        /// The buffer.
        pub buffer: PageList,
    }
}
command!(CreateCq => CreateCq, NoReply);

layout! {
    /// Destroys a CQ. `Busy` while a QP uses it. After the completion the device writes neither the
    /// buffer nor an event of this CQ.
    pub struct DestroyCq[8] {
        /// CQ number.
        pub cqn: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
command!(DestroyCq => DestroyCq, NoReply);

layout! {
    /// Changes the moderation of a CQ.
    pub struct ModifyCq[8] {
        /// CQ number.
        pub cqn: U32,
        /// As in `CreateCq`.
        pub moderation_count: U16,
        /// As in `CreateCq`.
        pub moderation_usec: U16,
    }
}
command!(ModifyCq => ModifyCq, NoReply);

layout! {
    /// Moves a CQ to another buffer, larger or smaller; needs `feature.CQ_RESIZE`.
    ///
    /// The buffer is as in `CreateCq`, with the consumer index in its record. `BadState` if the CQ
    /// holds more completions than the new buffer has entries. After the completion the device
    /// touches the old buffer no more; what it has written there remains to be read.
    pub struct ResizeCq[32] {
        /// CQ number.
        pub cqn: U32,
        /// Log2 of the number of entries.
        pub log_entries: u8,
        /// Reserved.
        pub rsvd: [u8; 3],
        /// The buffer.
        pub buffer: PageList,
    }
}
command!(ResizeCq => ResizeCq, ResizeCqReply);

layout! {
    /// Where the entries in the new buffer start.
    pub struct ResizeCqReply[8] {
        /// Index of the first completion in the new buffer, at its start: slot and phase of that of
        /// index `i` are those of `i - base`. Indices go on; those before are in the old buffer.
        pub base: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
