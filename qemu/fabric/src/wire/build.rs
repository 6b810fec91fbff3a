// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{opcode, Bth, Frame, Grh, Lrh, Operation, Transport};
use zerocopy::{Immutable, IntoBytes};

/// Writes a packet into a frame: headers first, then the payload, then [`Builder::finish`].
#[derive(Debug)]
pub struct Builder {
    frame: Frame,
    bth: usize,
    payload: usize,
}

impl Builder {
    /// Starts a packet in `frame`, whose contents are dropped. Lengths in `lrh` and `grh`, and opcode and pad count in `bth`, are
    /// filled in by this type.
    pub fn new(
        mut frame: Frame,
        mut lrh: Lrh,
        grh: Option<Grh>,
        mut bth: Bth,
        transport: Transport,
        operation: Operation,
    ) -> Self {
        frame.clear();
        let lnh = if grh.is_some() {
            Lrh::LNH_GRH
        } else {
            Lrh::LNH_BTH
        };
        lrh.sl_lnh = lrh.sl_lnh & 0xf0 | lnh;
        frame.append(lrh.as_bytes());
        if let Some(grh) = grh {
            frame.append(grh.as_bytes());
        }
        bth.opcode = opcode::pack(transport, operation);
        let at = frame.body_mut().len();
        frame.append(bth.as_bytes());
        Self {
            frame,
            bth: at,
            payload: at + size_of::<Bth>(),
        }
    }

    /// Appends an extended header; the order is that of [`super::Packet`].
    pub fn header<T: IntoBytes + Immutable>(mut self, header: &T) -> Self {
        self.frame.append(header.as_bytes());
        self.payload += size_of::<T>();
        self
    }

    /// Returns the place for `length` bytes of payload, with what another packet has left there: fill all of it.
    pub fn payload(&mut self, length: usize) -> &mut [u8] {
        self.frame.extend(length)
    }

    /// Pads and fills in the lengths. The CRCs are computed when somebody wants to see them.
    pub fn finish(mut self) -> Frame {
        let length = self.frame.body_mut().len() - self.payload;
        let pad = length.wrapping_neg() & 3;
        self.frame.append(&[0; 3][..pad]);
        let bytes = self.frame.body_mut();
        let flags = &mut bytes[self.bth + 1];
        // CAST: At most 3.
        *flags = *flags & 0xcf | ((pad as u8) << 4);
        // The lengths include the ICRC.
        let total = bytes.len() + 4;
        // CAST: A packet is shorter than 8 KiB.
        let words = (total / 4) as u16;
        bytes[4..6].copy_from_slice(&words.to_be_bytes());
        if self.bth == 48 {
            // CAST: As above.
            let global = (total - 48) as u16;
            bytes[12..14].copy_from_slice(&global.to_be_bytes());
        }
        self.frame
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;
    use proptest::prelude::*;
    use zerocopy::FromZeros;

    fn build(global: bool, operation: Operation, payload: &[u8]) -> Frame {
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
            Frame::default(),
            lrh,
            global.then_some(grh),
            bth,
            Transport::Rc,
            operation,
        );
        let ext = operation.ext();
        if ext.feth {
            b = b.header(&Feth::new(1, 2));
        }
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
        (0u8..=31).prop_filter_map("reserved", |bits| opcode::unpack(bits).map(|(_, op)| op))
    }

    proptest! {
        #[test]
        fn what_is_built_parses_to_the_same(
            global: bool, operation in operation(), payload in prop::collection::vec(any::<u8>(), 0..4096),
        ) {
            let frame = build(global, operation, &payload);
            let unsealed = frame.parse().unwrap();
            let bytes = frame.clone().into_wire();
            prop_assert!(bytes.len() <= MAX_PACKET);
            prop_assert_eq!(frame.wire_len(), bytes.len());
            Packet::check_vcrc(&bytes).unwrap();
            let packet = Packet::parse(&bytes).unwrap();
            prop_assert_eq!(&packet, &unsealed);
            let again = Frame::from_wire(&bytes).unwrap();
            prop_assert_eq!(again.parse().unwrap(), unsealed);
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
            operation in operation(), payload in prop::collection::vec(any::<u8>(), 0..300), at: prop::sample::Index, bit in 0usize..8,
        ) {
            let mut frame = build(false, operation, &payload);
            frame.flip(at.index(frame.wire_len()) * 8 + bit);
            prop_assert!(frame.check_vcrc().is_err());
        }

        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = Packet::check_vcrc(&bytes);
            let _ = Packet::parse(&bytes);
        }

        #[test]
        fn truncation_is_refused(operation in operation(), payload in prop::collection::vec(any::<u8>(), 0..300), cut in 1usize..60) {
            let bytes = build(true, operation, &payload).into_wire();
            prop_assert!(Packet::parse(&bytes[..bytes.len() - cut.min(bytes.len())]).is_err());
        }
    }
}
