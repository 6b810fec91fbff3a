// SPDX-License-Identifier: GPL-2.0 OR MIT

//! RoCE v2: InfiniBand transport packets in UDP (IBTA annex A17).

use super::header::Bth;

/// UDP port of RoCE v2.
pub const UDP_PORT: u16 = 4791;

const ETHERNET: usize = 14;
const IPV4: usize = 20;
const UDP: usize = 8;
const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const PROTOCOL_UDP: u8 = 17;

/// Returns whether the ICRC of an Ethernet frame is right; [`None`] if the frame is not RoCE v2 over
/// IPv4 without options.
pub fn check_icrc(frame: &[u8]) -> Option<bool> {
    let ip = frame.get(ETHERNET..)?;
    let is_roce = frame[12..14] == ETHERTYPE_IPV4
        && *ip.first()? == 0x45
        && *ip.get(9)? == PROTOCOL_UDP
        && ip.get(IPV4 + 2..IPV4 + 4)? == UDP_PORT.to_be_bytes();
    if !is_roce {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([ip[2], ip[3]]));
    let (packet, icrc) = ip.get(..length)?.split_last_chunk::<4>()?;
    (packet.len() >= IPV4 + UDP + size_of::<Bth>()).then(|| icrc_v2(packet) == *icrc)
}

/// Returns the ICRC of a packet from its IPv4 header to the end of the padding. In place of the LRH it
/// covers eight bytes of ones, and as ones count type of service, time to live and both checksums, and
/// the byte of the BTH with FECN and BECN (IBTA A17.3.3).
///
/// # Panics
///
/// If `packet` is shorter than IPv4 header, UDP header and BTH.
fn icrc_v2(packet: &[u8]) -> [u8; 4] {
    const HEAD: usize = IPV4 + UDP + size_of::<Bth>();
    let mut head = [0; HEAD];
    head.copy_from_slice(&packet[..HEAD]);
    for at in [1, 8, 10, 11, IPV4 + 6, IPV4 + 7, IPV4 + UDP + 4] {
        head[at] = 0xff;
    }
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[0xff; 8]);
    crc.update(&head);
    crc.update(&packet[HEAD..]);
    crc.finalize().to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_frames_are_not_judged() {
        assert_eq!(check_icrc(&[]), None);
        assert_eq!(check_icrc(&[0; 100]), None);
        let mut frame = [0; 80];
        frame[12..14].copy_from_slice(&ETHERTYPE_IPV4);
        frame[14] = 0x45;
        frame[23] = PROTOCOL_UDP;
        frame[36..38].copy_from_slice(&UDP_PORT.to_be_bytes());
        // Longer than the frame, and shorter than its headers.
        for length in [200u16, 30, 0] {
            frame[16..18].copy_from_slice(&length.to_be_bytes());
            assert_eq!(check_icrc(&frame), None);
        }
        frame[16..18].copy_from_slice(&66u16.to_be_bytes());
        assert_eq!(check_icrc(&frame), Some(false));
    }
}
