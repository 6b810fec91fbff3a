// SPDX-License-Identifier: GPL-2.0 OR MIT

//! InfiniBand packets (IBTA volume 1, chapters 5, 7 and 9).
//!
//! A packet is LRH, an optional GRH, BTH, the extended headers that the opcode demands, payload, 0
//! to 3 bytes of padding, ICRC and VCRC. [`Packet::parse`] reads one and checks every length;
//! [`Builder`] writes one, so that a payload can be read from memory straight into its place.

mod build;
mod crc;
mod frame;
mod header;
mod opcode;
mod parse;
pub mod roce;

pub use build::Builder;
pub use crc::{icrc, vcrc};
pub use frame::Frame;
pub(crate) use header::header;
pub use header::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Grh, Ieth, ImmDt, Lrh, Reth, BTH_ACK_REQ,
    BTH_SE,
};
pub use opcode::{Ext, Operation, Transport};
pub use parse::{Packet, WireError};

/// Bytes of ICRC and VCRC together.
pub const CRC_SIZE: usize = 6;

/// Most bytes of a packet: all headers, an MTU of 4096 and the CRCs.
pub const MAX_PACKET: usize = 8 + 40 + 12 + 8 + 28 + 4 + 4096 + CRC_SIZE;

/// Least bytes of a packet: LRH, BTH and the CRCs.
pub const MIN_PACKET: usize = 8 + 12 + CRC_SIZE;

/// Returns the sum of a 24-bit sequence number and a count.
pub fn psn_add(psn: u32, n: u32) -> u32 {
    psn.wrapping_add(n) & PSN_MASK
}

/// Returns how far `a` is ahead of `b`; negative if it is behind. Half of the sequence space
/// counts as ahead (IBTA 9.7.2).
pub fn psn_diff(a: u32, b: u32) -> i32 {
    // CAST: The shift moves bit 23 into the sign.
    (a.wrapping_sub(b) << 8) as i32 >> 8
}

/// The bits of a packet sequence number.
pub const PSN_MASK: u32 = 0xff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psn_arithmetic_wraps_at_24_bits() {
        assert_eq!(psn_add(PSN_MASK, 1), 0);
        assert_eq!(psn_diff(0, PSN_MASK), 1);
        assert_eq!(psn_diff(PSN_MASK, 0), -1);
        assert_eq!(psn_diff(0x7f_ffff, 0), 0x7f_ffff);
        assert_eq!(psn_diff(0x80_0000, 0), -0x80_0000);
    }
}
