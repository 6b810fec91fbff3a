// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Headers, big-endian as they are on the wire.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! header {
    ($(#[$meta:meta])* pub struct $name:ident[$size:literal] { $($(#[$fmeta:meta])* pub $field:ident: $ty:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
        )]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }

        const _: () = assert!(size_of::<$name>() == $size);
    };
}

pub(crate) use header;

header! {
    /// Local route header (IBTA 7.7).
    pub struct Lrh[8] {
        /// Bits 7:4 virtual lane, 3:0 link version.
        pub vl_lver: u8,
        /// Bits 7:4 service level, 1:0 link next header.
        pub sl_lnh: u8,
        /// Destination LID.
        pub dlid: U16,
        /// Bits 10:0 length in 4-byte words from the LRH to the ICRC.
        pub length: U16,
        /// Source LID.
        pub slid: U16,
    }
}

impl Lrh {
    /// Link next header: BTH.
    pub const LNH_BTH: u8 = 2;
    /// Link next header: GRH.
    pub const LNH_GRH: u8 = 3;

    /// Returns the virtual lane.
    pub fn vl(&self) -> u8 {
        self.vl_lver >> 4
    }

    /// Returns the link version.
    pub fn lver(&self) -> u8 {
        self.vl_lver & 0xf
    }

    /// Returns the service level.
    pub fn sl(&self) -> u8 {
        self.sl_lnh >> 4
    }

    /// Returns the link next header.
    pub fn lnh(&self) -> u8 {
        self.sl_lnh & 3
    }

    /// Returns the bytes of the packet without VCRC.
    pub fn bytes(&self) -> usize {
        usize::from(self.length.get() & 0x7ff) * 4
    }
}

header! {
    /// Global route header (IBTA 8.3).
    pub struct Grh[40] {
        /// Bits 31:28 version 6, 27:20 traffic class, 19:0 flow label.
        pub version_class_flow: U32,
        /// Bytes from the end of this header to the ICRC, which is included.
        pub payload_length: U16,
        /// 0x1b: IBA transport.
        pub next_header: u8,
        /// Hop limit.
        pub hop_limit: u8,
        /// Source GID.
        pub sgid: [u8; 16],
        /// Destination GID.
        pub dgid: [u8; 16],
    }
}

impl Grh {
    /// The only next header.
    pub const NEXT_HEADER: u8 = 0x1b;
}

header! {
    /// Base transport header (IBTA 9.2).
    pub struct Bth[12] {
        /// Transport and operation.
        pub opcode: u8,
        /// Bit 7 solicited event, 6 migration, 5:4 pad count, 3:0 version.
        pub flags: u8,
        /// Partition key.
        pub pkey: U16,
        /// Bits 31:24 FECN, BECN and reserved, 23:0 destination QP.
        pub dest_qp: U32,
        /// Bit 31 acknowledge request, 23:0 packet sequence number.
        pub ack_psn: U32,
    }
}

/// Bit of [`Bth::flags`]: solicited event.
pub const BTH_SE: u8 = 0x80;
/// Bit of [`Bth::ack_psn`]: acknowledge request.
pub const BTH_ACK_REQ: u32 = 1 << 31;

impl Bth {
    /// Returns the pad count.
    pub fn pad(&self) -> usize {
        usize::from((self.flags >> 4) & 3)
    }

    /// Returns whether a solicited event is asked for.
    pub fn solicited(&self) -> bool {
        self.flags & BTH_SE != 0
    }

    /// Returns the destination QP.
    pub fn qpn(&self) -> u32 {
        self.dest_qp.get() & 0xff_ffff
    }

    /// Returns whether an acknowledge is asked for.
    pub fn ack_req(&self) -> bool {
        self.ack_psn.get() & BTH_ACK_REQ != 0
    }

    /// Returns the packet sequence number.
    pub fn psn(&self) -> u32 {
        self.ack_psn.get() & super::PSN_MASK
    }
}

header! {
    /// FLUSH extended transport header (IBTA annex A19): comes before the RDMA one.
    pub struct Feth[4] {
        /// Bits 5:4 selectivity level, 3:0 placement type.
        pub level_placement: U32,
    }
}

impl Feth {
    /// Makes the header from level, 2 bits, and placement, 4 bits.
    pub fn new(level: u8, placement: u8) -> Self {
        Self {
            level_placement: ((u32::from(level & 3) << 4) | u32::from(placement & 0xf)).into(),
        }
    }

    /// Returns the selectivity level.
    pub fn level(&self) -> u8 {
        // CAST: 2 bits.
        ((self.level_placement.get() >> 4) & 3) as u8
    }

    /// Returns the placement type.
    pub fn placement(&self) -> u8 {
        // CAST: 4 bits.
        (self.level_placement.get() & 0xf) as u8
    }
}

header! {
    /// RDMA extended transport header (IBTA 9.3.3).
    pub struct Reth[16] {
        /// Virtual address.
        pub va: U64,
        /// Remote key.
        pub rkey: U32,
        /// Bytes.
        pub length: U32,
    }
}

header! {
    /// ACK extended transport header (IBTA 9.3.5).
    pub struct Aeth[4] {
        /// Bits 31:24 syndrome, 23:0 message sequence number.
        pub syndrome_msn: U32,
    }
}

impl Aeth {
    /// Makes the header.
    pub fn new(syndrome: u8, msn: u32) -> Self {
        Self {
            syndrome_msn: U32::new((u32::from(syndrome) << 24) | msn & super::PSN_MASK),
        }
    }

    /// Returns the syndrome.
    pub fn syndrome(&self) -> u8 {
        self.syndrome_msn.get().to_be_bytes()[0]
    }
}

header! {
    /// Atomic extended transport header (IBTA 9.3.6).
    pub struct AtomicEth[28] {
        /// Virtual address.
        pub va: U64,
        /// Remote key.
        pub rkey: U32,
        /// What to store, or to add.
        pub swap_or_add: U64,
        /// What to compare with.
        pub compare: U64,
    }
}

header! {
    /// Atomic ACK extended transport header (IBTA 9.3.7).
    pub struct AtomicAckEth[8] {
        /// Value before the operation.
        pub original: U64,
    }
}

header! {
    /// Immediate data (IBTA 9.4).
    pub struct ImmDt[4] {
        /// The data.
        pub data: [u8; 4],
    }
}

header! {
    /// Invalidate extended transport header (IBTA 9.3.8).
    pub struct Ieth[4] {
        /// Remote key.
        pub rkey: U32,
    }
}

header! {
    /// Datagram extended transport header (IBTA 9.3.2).
    pub struct Deth[8] {
        /// Queue key.
        pub qkey: U32,
        /// Bits 23:0 source QP.
        pub src_qp: U32,
    }
}
