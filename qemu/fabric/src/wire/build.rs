// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{crc, opcode, Bth, Grh, Lrh, Operation, Transport};
use zerocopy::{Immutable, IntoBytes};

/// Writes a packet into a buffer: headers first, then the payload, then [`Builder::finish`].
#[derive(Debug)]
pub struct Builder {
    buffer: Vec<u8>,
    bth: usize,
    payload: usize,
}

impl Builder {
    /// Starts a packet in `buffer`, whose contents are dropped and whose capacity is kept. Lengths in
    /// `lrh` and `grh`, and opcode and pad count in `bth`, are filled in by this type.
    pub fn new(
        mut buffer: Vec<u8>,
        mut lrh: Lrh,
        grh: Option<Grh>,
        mut bth: Bth,
        transport: Transport,
        operation: Operation,
    ) -> Self {
        buffer.clear();
        let lnh = if grh.is_some() {
            Lrh::LNH_GRH
        } else {
            Lrh::LNH_BTH
        };
        lrh.sl_lnh = lrh.sl_lnh & 0xf0 | lnh;
        buffer.extend_from_slice(lrh.as_bytes());
        if let Some(grh) = grh {
            buffer.extend_from_slice(grh.as_bytes());
        }
        bth.opcode = opcode::pack(transport, operation);
        let at = buffer.len();
        buffer.extend_from_slice(bth.as_bytes());
        let payload = buffer.len();
        Self {
            buffer,
            bth: at,
            payload,
        }
    }

    /// Appends an extended header; the order is that of [`super::Packet`].
    pub fn header<T: IntoBytes + Immutable>(mut self, header: &T) -> Self {
        self.buffer.extend_from_slice(header.as_bytes());
        self.payload = self.buffer.len();
        self
    }

    /// Returns the place for `length` bytes of payload, zeroed.
    pub fn payload(&mut self, length: usize) -> &mut [u8] {
        let at = self.buffer.len();
        self.buffer.resize(at + length, 0);
        &mut self.buffer[at..]
    }

    /// Pads, fills in the lengths and appends both CRCs. Returns the packet from LRH to VCRC.
    pub fn finish(mut self) -> Vec<u8> {
        let length = self.buffer.len() - self.payload;
        let pad = length.wrapping_neg() & 3;
        self.buffer.resize(self.buffer.len() + pad, 0);
        let flags = &mut self.buffer[self.bth + 1];
        // CAST: At most 3.
        *flags = *flags & 0xcf | ((pad as u8) << 4);
        let bytes = self.buffer.len() + 4;
        // CAST: A packet is shorter than 8 KiB.
        let words = (bytes / 4) as u16;
        self.buffer[4..6].copy_from_slice(&words.to_be_bytes());
        if self.bth == 48 {
            // CAST: As above.
            let global = (bytes - 48) as u16;
            self.buffer[12..14].copy_from_slice(&global.to_be_bytes());
        }
        let icrc = crc::icrc(&self.buffer);
        self.buffer.extend_from_slice(&icrc);
        let vcrc = crc::vcrc(&self.buffer);
        self.buffer.extend_from_slice(&vcrc);
        self.buffer
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    fn build(global: bool, operation: Operation, payload: &[u8]) -> Vec<u8> {
        let lrh = Lrh {
            vl_lver: 0,
            sl_lnh: 0x30,
            dlid: 2.into(),
            length: 0.into(),
            slid: 1.into(),
        };
        let grh = Grh {
            version_class_flow: (6 << 28).into(),
            payload_length: 0.into(),
            next_header: Grh::NEXT_HEADER,
            hop_limit: 64,
            sgid: [1; 16],
            dgid: [2; 16],
        };
        let mut bth = Bth::new_zeroed();
        bth.dest_qp = 0x12345.into();
        bth.ack_psn = (BTH_ACK_REQ | 0xabcdef).into();
        let mut b = Builder::new(
            Vec::new(),
            lrh,
            global.then_some(grh),
            bth,
            Transport::Rc,
            operation,
        );
        let ext = operation.ext();
        if ext.reth {
            b = b.header(&Reth::new_zeroed());
        }
        if ext.atomic {
            b = b.header(&AtomicEth::new_zeroed());
        }
        if ext.aeth {
            b = b.header(&Aeth::new(0x1f, 5));
        }
        if ext.atomic_ack {
            b = b.header(&AtomicAckEth::new_zeroed());
        }
        if ext.imm {
            b = b.header(&ImmDt { data: [1, 2, 3, 4] });
        }
        if ext.ieth {
            b = b.header(&Ieth { rkey: 7.into() });
        }
        b.payload(payload.len()).copy_from_slice(payload);
        b.finish()
    }

    fn operation() -> impl Strategy<Value = Operation> {
        (0u8..=23).prop_filter_map("reserved", |bits| opcode::unpack(bits).map(|(_, op)| op))
    }

    proptest! {
        #[test]
        fn what_is_built_parses_to_the_same(
            global: bool, operation in operation(), payload in prop::collection::vec(any::<u8>(), 0..4096),
        ) {
            let bytes = build(global, operation, &payload);
            prop_assert!(bytes.len() <= MAX_PACKET);
            Packet::check_vcrc(&bytes).unwrap();
            let packet = Packet::parse(&bytes).unwrap();
            prop_assert_eq!(packet.payload, &payload[..]);
            prop_assert_eq!(packet.operation, operation);
            prop_assert_eq!(packet.bth.qpn(), 0x12345);
            prop_assert_eq!(packet.bth.psn(), 0xabcdef);
            prop_assert!(packet.bth.ack_req());
            prop_assert_eq!(packet.lrh.sl(), 3);
            prop_assert_eq!(packet.grh.is_some(), global);
            prop_assert_eq!(packet.imm.is_some(), operation.ext().imm);
        }

        #[test]
        fn a_flipped_bit_is_found(
            operation in operation(), payload in prop::collection::vec(any::<u8>(), 0..300), at: prop::sample::Index, bit in 0u8..8,
        ) {
            let mut bytes = build(false, operation, &payload);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(Packet::check_vcrc(&bytes).is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Packet::check_vcrc(&bytes);
            let _ = Packet::parse(&bytes);
        }

        #[test]
        fn truncation_is_refused(operation in operation(), payload in prop::collection::vec(any::<u8>(), 0..300), cut in 1usize..60) {
            let bytes = build(true, operation, &payload);
            prop_assert!(Packet::parse(&bytes[..bytes.len() - cut.min(bytes.len())]).is_err());
        }
    }
}
