// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{
    crc, opcode, Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Feth, Grh, Ieth, ImmDt, Lrh, Operation,
    Reth, Transport, CRC_SIZE, MIN_PACKET,
};
use zerocopy::FromBytes;

/// Why a packet is not one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// Shorter than its headers, or not as long as the LRH says.
    #[error("wrong length")]
    Length,
    /// Link version, next header, transport version or GRH are not those of IBA.
    #[error("malformed header")]
    Header,
    /// The opcode is reserved or not supported.
    #[error("unknown opcode {0:#04x}")]
    Opcode(u8),
    /// The variant CRC is wrong.
    #[error("bad VCRC")]
    Vcrc,
    /// The invariant CRC is wrong.
    #[error("bad ICRC")]
    Icrc,
}

/// A parsed packet, borrowing its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// Local route header.
    pub lrh: Lrh,
    /// Global route header.
    pub grh: Option<Grh>,
    /// Base transport header.
    pub bth: Bth,
    /// Transport.
    pub transport: Transport,
    /// Operation.
    pub operation: Operation,
    /// Datagram header.
    pub deth: Option<Deth>,
    /// FLUSH header.
    pub feth: Option<Feth>,
    /// RDMA header.
    pub reth: Option<Reth>,
    /// Atomic header.
    pub atomic: Option<AtomicEth>,
    /// ACK header.
    pub aeth: Option<Aeth>,
    /// Atomic ACK header.
    pub atomic_ack: Option<AtomicAckEth>,
    /// Immediate data.
    pub imm: Option<ImmDt>,
    /// Invalidate header.
    pub ieth: Option<Ieth>,
    /// Payload without padding.
    pub payload: &'a [u8],
}

/// Takes a header off the front of `bytes`.
fn take<T: FromBytes>(bytes: &mut &[u8]) -> Result<T, WireError> {
    let (header, rest) = T::read_from_prefix(bytes).map_err(|_| WireError::Length)?;
    *bytes = rest;
    Ok(header)
}

fn take_if<T: FromBytes>(present: bool, bytes: &mut &[u8]) -> Result<Option<T>, WireError> {
    if !present {
        return Ok(None);
    }
    take(bytes).map(Some)
}

impl<'a> Packet<'a> {
    /// Parses `bytes`, from LRH to VCRC, and checks lengths and the ICRC. The VCRC is the link's
    /// and checked by [`Packet::check_vcrc`].
    ///
    /// # Errors
    ///
    /// What is wrong with the packet; nothing of it may then be used.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, WireError> {
        if bytes.len() < MIN_PACKET {
            return Err(WireError::Length);
        }
        let (body, crcs) = bytes.split_at(bytes.len() - CRC_SIZE);
        Self::parse_body(body, Some(&crcs[..4]))
    }

    /// Parses a packet from LRH to the end of the padding. Without an ICRC it is taken to be right.
    pub(super) fn parse_body(body: &'a [u8], icrc: Option<&[u8]>) -> Result<Self, WireError> {
        let mut rest = body;
        let lrh: Lrh = take(&mut rest)?;
        if lrh.bytes() != body.len() + 4 {
            return Err(WireError::Length);
        }
        let global = match lrh.lnh() {
            Lrh::LNH_BTH => false,
            Lrh::LNH_GRH => true,
            _ => return Err(WireError::Header),
        };
        let grh: Option<Grh> = take_if(global, &mut rest)?;
        if let Some(grh) = &grh {
            let version = grh.version_class_flow.get() >> 28;
            if version != 6 || grh.next_header != Grh::NEXT_HEADER || lrh.lver() != 0 {
                return Err(WireError::Header);
            }
            if usize::from(grh.payload_length.get()) != rest.len() + 4 {
                return Err(WireError::Length);
            }
        }
        let bth: Bth = take(&mut rest)?;
        if lrh.lver() != 0 || bth.flags & 0xf != 0 {
            return Err(WireError::Header);
        }
        if icrc.is_some_and(|icrc| crc::icrc(body) != icrc) {
            return Err(WireError::Icrc);
        }
        let (transport, operation) =
            opcode::unpack(bth.opcode).ok_or(WireError::Opcode(bth.opcode))?;
        let ext = operation.ext();
        let deth = take_if(transport == Transport::Ud, &mut rest)?;
        let feth = take_if(ext.feth, &mut rest)?;
        let reth = take_if(ext.reth, &mut rest)?;
        let atomic = take_if(ext.atomic, &mut rest)?;
        let aeth = take_if(ext.aeth, &mut rest)?;
        let atomic_ack = take_if(ext.atomic_ack, &mut rest)?;
        let imm = take_if(ext.imm, &mut rest)?;
        let ieth = take_if(ext.ieth, &mut rest)?;
        let length = rest.len().checked_sub(bth.pad()).ok_or(WireError::Length)?;
        Ok(Self {
            lrh,
            grh,
            bth,
            transport,
            operation,
            deth,
            feth,
            reth,
            atomic,
            aeth,
            atomic_ack,
            imm,
            ieth,
            payload: &rest[..length],
        })
    }

    /// Checks the VCRC of `bytes`, from LRH to VCRC.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] or [`WireError::Vcrc`].
    pub fn check_vcrc(bytes: &[u8]) -> Result<(), WireError> {
        if bytes.len() < MIN_PACKET {
            return Err(WireError::Length);
        }
        let (packet, crc) = bytes.split_at(bytes.len() - 2);
        if crc::vcrc(packet) != crc {
            return Err(WireError::Vcrc);
        }
        Ok(())
    }
}
