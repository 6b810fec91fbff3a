// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{method, Mad, MadHeader, NodeDescription, NodeInfo, PortInfo};
use crate::wire::header;
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Types of a datagram of a multi-datagram transaction (IBTA 13.6.2.2); 0 is none.
const RMPP_DATA: u8 = 1;

/// Active, first and last, with no time that an answer may take.
const RMPP_ONLY: u8 = (0x1f << 3) | 7;

/// Bytes of attributes in one datagram.
const DATA: usize = 200;

/// Bytes of the SA header that a payload length counts beside the data.
const SA_HEADER: u32 = 20;

/// The status is that of administration: nothing was found or was too much.
const TOO_MANY: u16 = 4 << 8;

header! {
    /// Subnet administration datagram (IBTA 15.2.1.1).
    pub struct SaMad[256] {
        /// Common header.
        pub head: MadHeader,
        /// Version of the header of multi-datagram transactions.
        pub rmpp_version: u8,
        /// Its type.
        pub rmpp_type: u8,
        /// Its flags.
        pub rmpp_flags: u8,
        /// Its status.
        pub rmpp_status: u8,
        /// Number of the segment.
        pub segment: U32,
        /// Bytes of all segments.
        pub payload: U32,
        /// SM_Key.
        pub key: U64,
        /// Distance of records in units of 8 bytes.
        pub offset: U16,
        /// Reserved.
        pub reserved: U16,
        /// Which components count.
        pub mask: U64,
        /// Records.
        pub data: [u8; 200],
    }
}

impl SaMad {
    /// Class version of subnet administration.
    pub const CLASS_VERSION: u8 = 2;

    /// Reads a datagram.
    pub fn from_mad(mad: &Mad) -> Self {
        zerocopy::transmute!(*mad)
    }

    /// Returns the bytes.
    pub fn to_mad(&self) -> Mad {
        zerocopy::transmute!(*self)
    }

    /// Returns whether this acknowledges or ends a multi-datagram transaction.
    pub fn is_control(&self) -> bool {
        self.rmpp_type > RMPP_DATA
    }

    /// Returns the record.
    pub fn attribute<T: FromBytes + Immutable + KnownLayout + Unaligned>(&self) -> &T {
        let parsed = T::ref_from_prefix(&self.data);
        let Ok((value, _)) = parsed else {
            unreachable!("records of subnet administration fit in 200 bytes")
        };
        value
    }

    /// Makes the request its response with one record.
    ///
    /// # Errors
    ///
    /// A status, if the record does not fit.
    pub fn respond(&mut self, record: &[u8]) -> Result<(), u16> {
        self.data.fill(0);
        let out = self.data.get_mut(..record.len()).ok_or(TOO_MANY)?;
        out.copy_from_slice(record);
        self.finish(0);
        Ok(())
    }

    /// Makes the request its response with any number of records of one size.
    ///
    /// # Errors
    ///
    /// A status, if they do not fit into one datagram.
    pub fn respond_table(&mut self, records: &[Vec<u8>]) -> Result<(), u16> {
        let size = records.first().map_or(0, |r| r.len().next_multiple_of(8));
        let bytes = size * records.len();
        if bytes > DATA {
            return Err(TOO_MANY);
        }
        self.data.fill(0);
        for (n, record) in records.iter().enumerate() {
            self.data[n * size..][..record.len()].copy_from_slice(record);
        }
        // CAST: At most 200 bytes.
        self.offset.set((size / 8) as u16);
        (self.rmpp_version, self.rmpp_type, self.rmpp_flags) = (1, RMPP_DATA, RMPP_ONLY);
        self.segment.set(1);
        self.payload.set(SA_HEADER + bytes as u32);
        self.finish(0);
        Ok(())
    }

    /// Makes the request its response with a status and no record.
    pub fn refuse(&mut self, status: u16) {
        self.finish(status);
    }

    fn finish(&mut self, status: u16) {
        self.head.status.set(status);
        self.head.method = match self.head.method {
            method::SET => method::GET_RESP,
            request => request | method::RESPONSE,
        };
    }
}

header! {
    /// PathRecord (IBTA 15.2.5.16).
    pub struct PathRecord[64] {
        /// Service.
        pub service: U64,
        /// Destination GID.
        pub dgid: [u8; 16],
        /// Source GID.
        pub sgid: [u8; 16],
        /// Destination LID.
        pub dlid: U16,
        /// Source LID.
        pub slid: U16,
        /// Bits 31 raw traffic, 27:8 flow label, 7:0 hop limit.
        pub flow: U32,
        /// Traffic class.
        pub tclass: u8,
        /// Bits 7 reversible, 6:0 number of paths.
        pub reversible: u8,
        /// P_Key.
        pub pkey: U16,
        /// Bits 15:4 class of service, 3:0 service level.
        pub sl: U16,
        /// Bits 7:6 selector, 5:0 MTU.
        pub mtu: u8,
        /// Bits 7:6 selector, 5:0 rate.
        pub rate: u8,
        /// Bits 7:6 selector, 5:0 packet lifetime.
        pub life: u8,
        /// Preference.
        pub preference: u8,
        /// Reserved.
        pub reserved: [u8; 6],
    }
}

header! {
    /// MCMemberRecord (IBTA 15.2.5.17).
    pub struct McMemberRecord[52] {
        /// Multicast GID.
        pub mgid: [u8; 16],
        /// GID of the member.
        pub port_gid: [u8; 16],
        /// Q_Key.
        pub qkey: U32,
        /// Multicast LID.
        pub mlid: U16,
        /// Bits 7:6 selector, 5:0 MTU.
        pub mtu: u8,
        /// Traffic class.
        pub tclass: u8,
        /// P_Key.
        pub pkey: U16,
        /// Bits 7:6 selector, 5:0 rate.
        pub rate: u8,
        /// Bits 7:6 selector, 5:0 packet lifetime.
        pub life: u8,
        /// Bits 31:28 service level, 27:8 flow label, 7:0 hop limit.
        pub sl_flow: U32,
        /// Bits 7:4 scope, 3:0 join state.
        pub scope_state: u8,
        /// Bit 7: joined for another.
        pub proxy: u8,
        /// Reserved.
        pub reserved: U16,
    }
}

header! {
    /// NodeRecord (IBTA 15.2.5.2).
    pub struct NodeRecord[108] {
        /// LID.
        pub lid: U16,
        /// Reserved.
        pub reserved: U16,
        /// NodeInfo.
        pub info: NodeInfo,
        /// NodeDescription.
        pub description: NodeDescription,
    }
}

header! {
    /// PortInfoRecord (IBTA 15.2.5.3).
    pub struct PortInfoRecord[68] {
        /// LID; of a port of a switch that of the switch.
        pub lid: U16,
        /// Number of the port.
        pub number: u8,
        /// Options.
        pub options: u8,
        /// PortInfo.
        pub info: PortInfo,
    }
}
