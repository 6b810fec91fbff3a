// SPDX-License-Identifier: GPL-2.0 OR MIT

//! RoCE v2: InfiniBand transport packets in UDP (IBTA annex A17).

use super::header::{Bth, Lrh};
use super::{Frame, WireError};
use std::net::Ipv4Addr;
use zerocopy::IntoBytes;

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

/// An address on Ethernet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// MAC address.
    pub mac: [u8; 6],
    /// IPv4 address.
    pub ip: Ipv4Addr,
}

/// Returns the Ethernet frame with a UDP datagram from `from` to `to`, whose ports are `ports`, around
/// `payload`. The UDP checksum is left out, as RoCE does (IBTA A17.3.2) and UDP over IPv4 allows.
pub fn udp_frame(from: Address, to: Address, ports: [u16; 2], payload: &[u8]) -> Vec<u8> {
    // CAST: What is sent here is shorter than a maximum transfer unit.
    let udp = (UDP + payload.len()) as u16;
    let mut frame = Vec::with_capacity(ETHERNET + IPV4 + UDP + payload.len());
    frame.extend_from_slice(&to.mac);
    frame.extend_from_slice(&from.mac);
    frame.extend_from_slice(&ETHERTYPE_IPV4);
    // Version and header length; no service; length; no fragments; time to live.
    let mut ip = [0; IPV4];
    ip[0] = 0x45;
    ip[2..4].copy_from_slice(&(udp + IPV4 as u16).to_be_bytes());
    ip[6] = 0x40;
    ip[8] = 64;
    ip[9] = PROTOCOL_UDP;
    ip[12..16].copy_from_slice(&from.ip.octets());
    ip[16..].copy_from_slice(&to.ip.octets());
    let sum = internet_checksum(&ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend_from_slice(&ip);
    for word in [ports[0], ports[1], udp, 0] {
        frame.extend_from_slice(&word.to_be_bytes());
    }
    frame.extend_from_slice(payload);
    frame
}

/// Returns the checksum of an IPv4 header whose own checksum is zero (RFC 791).
fn internet_checksum(header: &[u8; IPV4]) -> u16 {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    // CAST: Ten words have a carry of less than ten, which the second fold takes in.
    !((folded + (folded >> 16)) as u16)
}

/// Returns the RoCE frame with the transport packet of `packet`, which goes from LRH to VCRC and has no
/// GRH: the IP header takes its place. `port` is the source port, by which switches spread flows.
///
/// # Errors
///
/// [`WireError::Header`] if it has one, [`WireError::Length`] if it is too short.
pub fn from_local(
    packet: &[u8],
    from: Address,
    to: Address,
    port: u16,
) -> Result<Vec<u8>, WireError> {
    let transport = packet
        .len()
        .checked_sub(super::CRC_SIZE)
        .and_then(|end| packet.get(size_of::<Lrh>()..end))
        .filter(|transport| transport.len() >= size_of::<Bth>())
        .ok_or(WireError::Length)?;
    if packet[1] & 3 != Lrh::LNH_BTH {
        return Err(WireError::Header);
    }
    let payload = [transport, &[0; 4]].concat();
    let mut frame = udp_frame(from, to, [port, UDP_PORT], &payload);
    let end = frame.len() - 4;
    let icrc = icrc_v2(&frame[ETHERNET..end]);
    frame[end..].copy_from_slice(&icrc);
    Ok(frame)
}

/// Returns the packet that carries the transport packet of a RoCE frame from `slid` to
/// `dlid`, as the transport takes it; [`None`] if the frame is not RoCE v2 over IPv4 without options.
///
/// # Errors
///
/// [`WireError::Icrc`] if the frame's ICRC is wrong, [`WireError::Length`] if there is no such packet.
pub fn to_local(frame: &[u8], slid: u16, dlid: u16) -> Option<Result<Frame, WireError>> {
    if !check_icrc(frame)? {
        return Some(Err(WireError::Icrc));
    }
    // `check_icrc` has seen to it that all of this is there.
    let length = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
    let transport = &frame[ETHERNET + IPV4 + UDP..ETHERNET + length - 4];
    let bytes = size_of::<Lrh>() + transport.len() + 4;
    if bytes % 4 != 0 || bytes + 2 > super::MAX_PACKET {
        return Some(Err(WireError::Length));
    }
    let lrh = Lrh {
        vl_lver: 0,
        sl_lnh: Lrh::LNH_BTH,
        dlid: dlid.into(),
        // CAST: A packet is shorter than 8 KiB.
        length: ((bytes / 4) as u16).into(),
        slid: slid.into(),
    };
    let mut packet = Frame::default();
    packet.append(lrh.as_bytes());
    packet.append(transport);
    Some(Ok(packet))
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
    use super::super::{Builder, Operation, Packet, Transport, BTH_ACK_REQ};
    use super::*;
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    const ONE: Address = Address {
        mac: [2, 0, 0, 0, 0, 1],
        ip: Ipv4Addr::new(10, 0, 0, 1),
    };
    const OTHER: Address = Address {
        mac: [2, 0, 0, 0, 0, 2],
        ip: Ipv4Addr::new(10, 0, 0, 2),
    };

    fn local(payload: &[u8]) -> Vec<u8> {
        let mut lrh = Lrh::new_zeroed();
        (lrh.slid, lrh.dlid) = (7.into(), 9.into());
        let mut bth = Bth::new_zeroed();
        bth.dest_qp = 0x12345.into();
        bth.ack_psn = (BTH_ACK_REQ | 0xabcdef).into();
        let mut b = Builder::new(
            Frame::default(),
            lrh,
            None,
            bth,
            Transport::Rc,
            Operation::SendOnly,
        );
        b.payload(payload.len()).copy_from_slice(payload);
        b.finish().into_wire()
    }

    proptest! {
        #[test]
        fn a_packet_comes_back_as_it_went(payload in prop::collection::vec(any::<u8>(), 0..1024)) {
            let packet = local(&payload);
            let frame = from_local(&packet, ONE, OTHER, 0xc000).unwrap();
            prop_assert_eq!(check_icrc(&frame), Some(true));
            prop_assert_eq!(internet_checksum(frame[14..34].try_into().unwrap()), 0);
            let back = to_local(&frame, 7, 9).unwrap().unwrap();
            prop_assert_eq!(back.parse(), Packet::parse(&packet));
            prop_assert_eq!(back.into_wire(), packet);
        }

        #[test]
        fn no_frame_panics(mut frame in prop::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index) {
            let _ = to_local(&frame, 1, 2);
            let mut good = from_local(&local(&frame), ONE, OTHER, 1).unwrap();
            frame.truncate(at.index(frame.len() + 1));
            let at = at.index(good.len());
            good[at] ^= 1;
            let _ = to_local(&good, 1, 2);
            good.truncate(at);
            let _ = to_local(&good, 1, 2);
        }
    }

    #[test]
    fn what_is_no_local_packet_is_refused() {
        let mut packet = local(&[1; 8]);
        assert_eq!(
            from_local(&packet[..20], ONE, OTHER, 1),
            Err(WireError::Length)
        );
        packet[1] |= Lrh::LNH_GRH;
        assert_eq!(from_local(&packet, ONE, OTHER, 1), Err(WireError::Header));
    }

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
