// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{crc, Bth, Lrh, Packet, WireError, CRC_SIZE, MAX_PACKET};
use zerocopy::FromBytes;

/// A packet on its way through this process.
///
/// The CRCs of a packet that nobody has touched since it was built are right by construction, and to compute and check them
/// costs more than to move the data. They are therefore filled in when somebody looks: a capture, a fault that flips a bit, or
/// whoever takes the packet out of the process. It is what checksum offload is to a network card. In debug builds each receiver
/// computes and checks them nevertheless.
#[derive(Clone)]
pub struct Frame {
    bytes: Box<[u8]>,
    /// Bytes in use: without the CRCs until the packet is sealed.
    len: usize,
    sealed: bool,
}

impl Default for Frame {
    fn default() -> Self {
        Self {
            bytes: vec![0; MAX_PACKET].into_boxed_slice(),
            len: 0,
            sealed: false,
        }
    }
}

impl std::fmt::Debug for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frame")
            .field("bytes", &&self.bytes[..self.len])
            .field("sealed", &self.sealed)
            .finish()
    }
}

impl PartialEq for Frame {
    fn eq(&self, other: &Self) -> bool {
        self.sealed == other.sealed && self.bytes[..self.len] == other.bytes[..other.len]
    }
}

impl Eq for Frame {}

impl Frame {
    /// Takes a packet, from LRH to VCRC, that comes from elsewhere: its CRCs may be wrong.
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] if it is longer than [`MAX_PACKET`].
    pub fn from_wire(bytes: &[u8]) -> Result<Self, WireError> {
        let mut frame = Self::default();
        let place = frame.bytes.get_mut(..bytes.len());
        place.ok_or(WireError::Length)?.copy_from_slice(bytes);
        frame.len = bytes.len();
        frame.sealed = true;
        Ok(frame)
    }

    /// Returns the packet from LRH to VCRC with its CRCs.
    pub fn wire(&mut self) -> &[u8] {
        if !self.sealed {
            self.append(&crc::icrc(&self.bytes[..self.len]));
            self.append(&crc::vcrc(&self.bytes[..self.len]));
            self.sealed = true;
        }
        &self.bytes[..self.len]
    }

    /// As [`Frame::wire`], as bytes of their own.
    pub fn into_wire(mut self) -> Vec<u8> {
        self.wire().to_vec()
    }

    /// Flips a bit, as a bad cable does; `bit` counts from the start and wraps at the end of the packet.
    pub fn flip(&mut self, bit: usize) {
        let bit = bit % (self.wire().len() * 8);
        self.bytes[bit / 8] ^= 1 << (bit % 8);
    }

    /// Changes the virtual lane, which the VCRC covers and the ICRC does not.
    pub fn set_vl(&mut self, vl: u8) {
        let Some(first) = self.body_mut().first_mut().filter(|byte| **byte >> 4 != vl) else {
            return;
        };
        *first = (vl << 4) | *first & 0xf;
        if self.sealed {
            let end = self.len - 2;
            let crc = crc::vcrc(&self.bytes[..end]);
            self.bytes[end..self.len].copy_from_slice(&crc);
        }
    }

    /// Returns the bytes that it has on the wire, from LRH to VCRC.
    pub fn wire_len(&self) -> usize {
        self.len + if self.sealed { 0 } else { CRC_SIZE }
    }

    /// Returns the local route header; [`None`] if the packet is shorter than that.
    pub fn lrh(&self) -> Option<Lrh> {
        Some(Lrh::read_from_prefix(&self.bytes[..self.len]).ok()?.0)
    }

    /// Returns the base transport header; [`None`] if the packet is shorter than that.
    pub fn bth(&self) -> Option<Bth> {
        let at = if self.lrh()?.lnh() == Lrh::LNH_GRH {
            48
        } else {
            8
        };
        let bytes = self.bytes[..self.len].get(at..)?;
        Some(Bth::read_from_prefix(bytes).ok()?.0)
    }

    /// Checks the VCRC, as [`Packet::check_vcrc`].
    ///
    /// # Errors
    ///
    /// [`WireError::Length`] or [`WireError::Vcrc`].
    pub fn check_vcrc(&self) -> Result<(), WireError> {
        if !self.sealed {
            return Ok(());
        }
        Packet::check_vcrc(&self.bytes[..self.len])
    }

    /// Parses the packet, as [`Packet::parse`].
    ///
    /// # Errors
    ///
    /// What is wrong with the packet.
    pub fn parse(&self) -> Result<Packet<'_>, WireError> {
        let bytes = &self.bytes[..self.len];
        if self.sealed {
            return Packet::parse(bytes);
        }
        let packet = Packet::parse_body(bytes, None);
        if cfg!(debug_assertions) {
            let sealed = self.clone().into_wire();
            assert_eq!(Packet::check_vcrc(&sealed), Ok(()));
            assert_eq!(Packet::parse(&sealed), packet);
        }
        packet
    }

    /// Empties the frame for another packet.
    pub(super) fn clear(&mut self) {
        self.len = 0;
        self.sealed = false;
    }

    pub(super) fn body_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }

    pub(super) fn append(&mut self, bytes: &[u8]) {
        self.extend(bytes.len()).copy_from_slice(bytes);
    }

    /// Returns the place for `length` more bytes, with whatever is there.
    ///
    /// # Panics
    ///
    /// If the packet gets longer than [`MAX_PACKET`].
    pub(super) fn extend(&mut self, length: usize) -> &mut [u8] {
        let at = self.len;
        self.len += length;
        &mut self.bytes[at..self.len]
    }
}
