// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::command;
use crate::{
    describe::{constants, layout},
    U32,
    U64, //
};

/// Bytes of a management datagram (IBTA 13.4.2).
pub const MAD_SIZE: usize = 256;

constants! {
    /// Bits of `ExecMad::flags`, and of `ExecMadReply::flags` where it says so.
    pub mod mad_flag: u8 {
        /// The request comes from the host itself: the M_Key is not checked (IBTA 14.2.4).
        IGNORE_MKEY = 1 << 0,
        /// The request comes from the host itself: the B_Key is not checked (IBTA 16.2.2).
        IGNORE_BKEY = 1 << 1,
        /// In the reply: a response has been written.
        RESPONSE = 1 << 7,
    }
}

layout! {
    /// Has the agent that serves its class answer a management datagram, as if it had arrived on
    /// the port. Needs `feature.MAD`. Classes that no agent of the device serves are ignored:
    /// `Ok` without `mad_flag.RESPONSE`.
    pub struct ExecMad[32] {
        /// Port number, from 1.
        pub port: u8,
        /// Bits in `mad_flag`.
        pub flags: u8,
        /// Reserved.
        pub rsvd0: [u8; 2],
        /// LID of the sender; the port's own for requests of the host.
        pub slid: U32,
        /// DMA address of the request: `MAD_SIZE` bytes that do not cross a 4 KiB page.
        pub request: U64,
        /// DMA address for the response: as above, may be that of the request.
        pub response: U64,
        /// Reserved.
        pub rsvd1: U64,
    }
}
command!(ExecMad => ExecMad, ExecMadReply);

layout! {
    /// Whether there is a response.
    pub struct ExecMadReply[8] {
        /// Bits in `mad_flag`.
        pub flags: u8,
        /// Reserved.
        pub rsvd: [u8; 7],
    }
}
