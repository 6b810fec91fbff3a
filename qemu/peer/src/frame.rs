// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What a peer needs of Ethernet beside RoCE: ARP (RFC 826) and UDP.

use qiao_fabric::wire::roce::Address;
use std::net::Ipv4Addr;

const ETHERNET: usize = 14;
const ARP: usize = 28;
/// Ethernet and IPv4 addresses of 6 and 4 bytes.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: [u8; 2] = [0, 1];
const ARP_REPLY: [u8; 2] = [0, 2];

/// Returns the answer to an ARP request for `own`; [`None`] if the frame is not one.
pub(crate) fn answer_arp(frame: &[u8], own: Address) -> Option<Vec<u8>> {
    let arp = frame.get(ETHERNET..ETHERNET + ARP)?;
    let asks = frame[12..14] == [0x08, 0x06] && arp[..6] == ARP_HEAD && arp[6..8] == ARP_REQUEST;
    if !asks || arp[24..28] != own.ip.octets() {
        return None;
    }
    let (asking, own_ip) = (&arp[8..18], own.ip.octets());
    let parts: [&[u8]; 8] = [
        &asking[..6],
        &own.mac,
        &[0x08, 0x06],
        &ARP_HEAD,
        &ARP_REPLY,
        &own.mac,
        &own_ip,
        asking,
    ];
    Some(parts.concat())
}

/// A UDP datagram over IPv4 without options, to `own`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Datagram<'a> {
    pub from: Address,
    /// Source and destination.
    pub ports: [u16; 2],
    pub payload: &'a [u8],
}

impl<'a> Datagram<'a> {
    /// Takes a frame apart; [`None`] if it holds something else.
    pub fn parse(frame: &'a [u8], own: Address) -> Option<Self> {
        let ip = frame.get(ETHERNET..)?;
        let udp = ip.get(20..)?;
        let is_udp = frame[12..14] == [0x08, 0x00] && ip[0] == 0x45 && ip[9] == 17;
        if !is_udp || ip[16..20] != own.ip.octets() {
            return None;
        }
        let word = |at: usize| Some(u16::from_be_bytes([*udp.get(at)?, *udp.get(at + 1)?]));
        let length = usize::from(word(4)?);
        Some(Self {
            from: Address {
                mac: frame[6..12].try_into().ok()?,
                ip: Ipv4Addr::new(ip[12], ip[13], ip[14], ip[15]),
            },
            ports: [word(0)?, word(2)?],
            payload: udp.get(8..length)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use qiao_fabric::wire::roce::udp_frame;

    const OWN: Address = Address {
        mac: [2, 0, 0, 0, 0, 2],
        ip: Ipv4Addr::new(10, 0, 0, 2),
    };
    const OTHER: Address = Address {
        mac: [2, 0, 0, 0, 0, 1],
        ip: Ipv4Addr::new(10, 0, 0, 1),
    };

    fn request(target: [u8; 4]) -> Vec<u8> {
        let mut frame = [[0xff; 6], OTHER.mac].concat();
        frame.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        frame.extend_from_slice(&OTHER.mac);
        frame.extend_from_slice(&OTHER.ip.octets());
        frame.extend_from_slice(&[0; 6]);
        frame.extend_from_slice(&target);
        frame
    }

    #[test]
    fn arp_for_this_address_is_answered() {
        let answer = answer_arp(&request([10, 0, 0, 2]), OWN).unwrap();
        let mut want = [OTHER.mac, OWN.mac].concat();
        want.extend_from_slice(&[8, 6, 0, 1, 8, 0, 6, 4, 0, 2, 2, 0, 0, 0, 0, 2, 10, 0, 0, 2]);
        want.extend_from_slice(&[2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
        assert_eq!(answer, want);
        assert_eq!(answer_arp(&request([10, 0, 0, 3]), OWN), None);
        assert_eq!(answer_arp(&answer, OWN), None);
        assert_eq!(answer_arp(&request([10, 0, 0, 2])[..41], OWN), None);
    }

    #[test]
    fn datagrams_to_this_address_are_taken() {
        let frame = udp_frame(OTHER, OWN, [5, 6], b"text");
        let datagram = Datagram::parse(&frame, OWN).unwrap();
        assert_eq!((datagram.from, datagram.ports), (OTHER, [5, 6]));
        assert_eq!(datagram.payload, b"text");
        assert_eq!(Datagram::parse(&frame, OTHER), None);
        for length in 0..frame.len() {
            assert_eq!(Datagram::parse(&frame[..length], OWN), None);
        }
    }
}
