// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Invariant and variant CRC (IBTA 7.8).

use super::header::Lrh;
use crc::{Algorithm, Crc, Table};

/// The variant CRC: x^16 + x^12 + x^3 + x + 1, all ones first, complemented, least significant bit
/// first as on the wire. The check value is that of the bitwise definition in the test below.
const VCRC: Algorithm<u16> = Algorithm {
    width: 16,
    poly: 0x100b,
    init: 0xffff,
    refin: true,
    refout: true,
    xorout: 0xffff,
    check: 0,
    residue: 0,
};

static VCRC_TABLE: Crc<u16, Table<16>> = Crc::<u16, Table<16>>::new(&VCRC);

/// Returns the ICRC of a packet, given from LRH to the end of the padding. It covers what does not
/// change from end to end: VL, and with a GRH the whole LRH, traffic class, flow label and hop
/// limit, and the byte with FECN and BECN count as all ones (IBTA 7.8.1).
///
/// # Panics
///
/// If `packet` is shorter than its route headers and the BTH.
pub fn icrc(packet: &[u8]) -> [u8; 4] {
    let mut head = [0u8; 60];
    let global = packet[1] & 3 == Lrh::LNH_GRH;
    let bth = if global { 48 } else { 8 };
    let head = &mut head[..bth + 12];
    head.copy_from_slice(&packet[..bth + 12]);
    if global {
        head[..8].fill(0xff);
        head[8] |= 0x0f;
        head[9..12].fill(0xff);
        head[15] = 0xff;
    } else {
        head[0] |= 0xf0;
    }
    head[bth + 4] = 0xff;
    let mut crc = crc32fast::Hasher::new();
    crc.update(head);
    crc.update(&packet[bth + 12..]);
    crc.finalize().to_le_bytes()
}

/// Returns the VCRC of a packet, given from LRH to the end of the ICRC (IBTA 7.8.2).
pub fn vcrc(packet: &[u8]) -> [u8; 2] {
    VCRC_TABLE.checksum(packet).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition, bit by bit, independent of the table.
    fn bitwise(data: &[u8], poly: u32, width: u32) -> u32 {
        let top = 1u32 << (width - 1);
        let mask = top | (top - 1);
        let mut reg = mask;
        for byte in data {
            for bit in 0..8 {
                let feedback = (reg & top != 0) != ((byte >> bit) & 1 != 0);
                reg = (reg << 1) & mask;
                if feedback {
                    reg ^= poly;
                }
            }
        }
        (!reg & mask).reverse_bits() >> (32 - width)
    }

    #[test]
    fn vcrc_is_the_polynomial_division() {
        let data: Vec<u8> = (0..=255).collect();
        for n in [0, 1, 9, 60, 256] {
            let want = bitwise(&data[..n], 0x100b, 16);
            assert_eq!(u32::from(u16::from_le_bytes(vcrc(&data[..n]))), want);
        }
    }

    #[test]
    fn icrc_of_a_local_packet_is_the_division_of_the_masked_bytes() {
        let mut packet: Vec<u8> = (0u8..40).collect();
        packet[1] = Lrh::LNH_BTH;
        let mut masked = packet.clone();
        masked[0] |= 0xf0;
        masked[12] = 0xff;
        let want = bitwise(&masked, 0x04c1_1db7, 32);
        assert_eq!(u32::from_le_bytes(icrc(&packet)), want);
    }

    /// A sample packet of the IBTA specification (volume 1, 7.8) and its ICRC.
    #[test]
    fn icrc_of_the_sample_of_the_specification() {
        const PACKET: [u8; 52] = [
            0x70, 0x12, 0x37, 0x5c, 0x00, 0x0e, 0x17, 0xd2, 0x0a, 0x20, 0x24, 0x87, 0x00, 0x87,
            0xb1, 0xb3, 0x00, 0x0d, 0xec, 0x2a, 0x01, 0x71, 0x0a, 0x1c, 0x01, 0x5d, 0x40, 0x02,
            0x38, 0xf2, 0x7a, 0x05, 0x00, 0x00, 0x00, 0x0e, 0xbb, 0x88, 0x4d, 0x85, 0xfd, 0x5c,
            0xfb, 0xa4, 0x72, 0x8b, 0xc0, 0x69, 0x0e, 0xd4, 0x00, 0x00,
        ];
        assert_eq!(icrc(&PACKET), [0x96, 0x25, 0xb7, 0x5a]);
    }

    #[test]
    fn icrc_does_not_see_what_changes_on_the_way() {
        let mut packet = vec![0u8; 80];
        packet[1] = Lrh::LNH_GRH;
        let want = icrc(&packet);
        for (byte, value) in [(0, 0x30), (3, 9), (9, 1), (11, 7), (15, 63), (52, 0xc0)] {
            packet[byte] ^= value;
            assert_eq!(icrc(&packet), want, "byte {byte}");
        }
        packet[20] ^= 1;
        assert_ne!(icrc(&packet), want);
    }
}
