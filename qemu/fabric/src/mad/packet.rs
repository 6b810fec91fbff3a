// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Packets that carry one management datagram (IBTA 13.5).

use super::{Mad, MAD_SIZE, PERMISSIVE_LID};
use crate::wire::{Bth, Builder, Deth, Frame, Grh, Lrh, Operation, Packet, Transport};
use zerocopy::FromZeros;

/// Q_Key of QP 1 (IBTA 3.5.3).
pub const GSI_QKEY: u32 = 0x8001_0000;

/// VL of subnet management.
const VL15: u8 = 15;

/// Where a datagram comes from and goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// LID of the sender.
    pub slid: u16,
    /// LID of the receiver.
    pub dlid: u16,
    /// Service level.
    pub sl: u8,
    /// P_Key.
    pub pkey: u16,
    /// QP of the sender.
    pub source_qp: u32,
    /// QP of the receiver: 0 for subnet management.
    pub dest_qp: u32,
    /// Q_Key.
    pub qkey: u32,
    /// Global route header.
    pub grh: Option<Grh>,
}

impl Address {
    /// Between the two ends of one link, as on a directed route.
    pub const DIRECTED: Self = Self {
        slid: PERMISSIVE_LID,
        dlid: PERMISSIVE_LID,
        sl: 0,
        pkey: 0xffff,
        source_qp: 0,
        dest_qp: 0,
        qkey: 0,
        grh: None,
    };

    /// Returns the datagram of a packet and its address; [`None`] if it carries none.
    pub fn parse(packet: &Packet<'_>) -> Option<(Self, Mad)> {
        let mad: &Mad = packet.payload.try_into().ok()?;
        let deth = packet.deth?;
        let address = Self {
            slid: packet.lrh.slid.get(),
            dlid: packet.lrh.dlid.get(),
            sl: packet.lrh.sl(),
            pkey: packet.bth.pkey.get(),
            source_qp: deth.src_qp.get() & 0xff_ffff,
            dest_qp: packet.bth.qpn(),
            qkey: deth.qkey.get(),
            grh: packet.grh,
        };
        Some((address, *mad))
    }

    /// Returns the address of an answer: both ends change places. Global addresses do too, and the hop limit is that of an
    /// answer (IBTA 13.5.4.4).
    pub fn answer(&self) -> Self {
        let grh = self.grh.map(|grh| Grh {
            sgid: grh.dgid,
            dgid: grh.sgid,
            hop_limit: 0xff,
            ..grh
        });
        Self {
            slid: self.dlid,
            dlid: self.slid,
            source_qp: self.dest_qp,
            dest_qp: self.source_qp,
            grh,
            ..*self
        }
    }

    /// Makes the packet in `frame`.
    pub fn build(&self, frame: Frame, mad: &Mad) -> Frame {
        let vl = if self.dest_qp == 0 { VL15 } else { 0 };
        let lrh = Lrh {
            vl_lver: vl << 4,
            sl_lnh: self.sl << 4,
            dlid: self.dlid.into(),
            length: 0.into(),
            slid: self.slid.into(),
        };
        let mut bth = Bth::new_zeroed();
        bth.pkey.set(self.pkey);
        bth.dest_qp.set(self.dest_qp);
        let deth = Deth {
            qkey: self.qkey.into(),
            src_qp: self.source_qp.into(),
        };
        let start = Builder::new(
            frame,
            lrh,
            self.grh,
            bth,
            Transport::Ud,
            Operation::SendOnly,
        );
        let mut builder = start.header(&deth);
        builder.payload(MAD_SIZE).copy_from_slice(mad);
        builder.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_parses_to_what_it_was_built_of() {
        let address = Address {
            slid: 3,
            dlid: 4,
            source_qp: 1,
            dest_qp: 1,
            qkey: GSI_QKEY,
            ..Address::DIRECTED
        };
        let mut mad = [0; MAD_SIZE];
        mad[40] = 7;
        for address in [address, Address::DIRECTED, address.answer()] {
            let bytes = address.build(Frame::default(), &mad).into_wire();
            Packet::check_vcrc(&bytes).unwrap();
            let packet = Packet::parse(&bytes).unwrap();
            assert_eq!(packet.lrh.vl() == 15, address.dest_qp == 0);
            assert_eq!(Address::parse(&packet), Some((address, mad)));
        }
    }
}
