// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{class, method, Mad, MadHeader, BASE_VERSION};
use crate::wire::header;
use zerocopy::big_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The LID that every port accepts (IBTA 4.1.3).
pub const PERMISSIVE_LID: u16 = 0xffff;

/// Bit of the status: a directed-route datagram on its way back (IBTA 14.2.1.2).
const DIRECTION: u16 = 0x8000;

header! {
    /// Subnet management datagram, routed by LID or directed (IBTA 14.2.1). The fields of a directed route are reserved in the
    /// other.
    pub struct Smp[256] {
        /// Common header.
        pub head: MadHeader,
        /// M_Key.
        pub mkey: U64,
        /// LID from which the directed route starts.
        pub directed_slid: U16,
        /// LID to which the datagram goes behind the directed route.
        pub directed_dlid: U16,
        /// Reserved.
        pub reserved: [u8; 28],
        /// Attribute.
        pub data: [u8; 64],
        /// Output ports on the way there, from index 1.
        pub initial_path: [u8; 64],
        /// Output ports on the way back, from index 1.
        pub return_path: [u8; 64],
    }
}

impl Smp {
    /// Class version of subnet management.
    pub const CLASS_VERSION: u8 = 1;

    /// Largest hop count (IBTA C14-6).
    pub const MAX_HOPS: u8 = 63;

    /// Makes a request on the directed route `path`, all of whose hops are directed; the ports are numbers of output ports.
    ///
    /// # Panics
    ///
    /// If the path is longer than [`Smp::MAX_HOPS`].
    pub fn directed(path: &[u8], method: u8, attribute: u16, modifier: u32) -> Self {
        let mut smp = Self::new_zeroed();
        smp.head.base_version = BASE_VERSION;
        smp.head.class = class::SUBN_DIRECTED;
        smp.head.class_version = Self::CLASS_VERSION;
        smp.head.method = method;
        smp.head.attribute.set(attribute);
        smp.head.modifier.set(modifier);
        assert!(
            path.len() <= usize::from(Self::MAX_HOPS),
            "the path is too long"
        );
        // CAST: At most 63.
        smp.head.hops = [0, path.len() as u8];
        smp.directed_slid.set(PERMISSIVE_LID);
        smp.directed_dlid.set(PERMISSIVE_LID);
        smp.initial_path[1..=path.len()].copy_from_slice(path);
        smp
    }

    /// Makes a datagram that is routed by LID.
    pub fn by_lid(method: u8, attribute: u16, modifier: u32) -> Self {
        let mut smp = Self::directed(&[], method, attribute, modifier);
        smp.head.class = class::SUBN_LID;
        smp.directed_slid.set(0);
        smp.directed_dlid.set(0);
        smp
    }

    /// Reads a datagram.
    pub fn from_mad(mad: &Mad) -> Self {
        zerocopy::transmute!(*mad)
    }

    /// Returns the bytes.
    pub fn to_mad(&self) -> Mad {
        zerocopy::transmute!(*self)
    }

    /// Returns whether the route is directed.
    pub fn is_directed(&self) -> bool {
        self.head.class == class::SUBN_DIRECTED
    }

    /// Returns whether a directed datagram is on its way back.
    pub fn is_returning(&self) -> bool {
        self.head.status.get() & DIRECTION != 0
    }

    /// Returns the status without the direction.
    pub fn status(&self) -> u16 {
        self.head.status.get() & !DIRECTION
    }

    /// Makes the request its response with `status`.
    pub fn respond(&mut self, status: u16) {
        let direction = if self.is_directed() { DIRECTION } else { 0 };
        self.head.status.set(status | direction);
        self.head.method = if self.head.method == method::TRAP {
            method::TRAP_REPRESS
        } else {
            method::GET_RESP
        };
    }

    /// Returns the attribute as a `T`.
    pub fn attribute<T: FromBytes + Immutable + KnownLayout + Unaligned>(&self) -> &T {
        let parsed = T::ref_from_prefix(&self.data);
        let Ok((value, _)) = parsed else {
            unreachable!("attributes of subnet management fit in 64 bytes")
        };
        value
    }

    /// Replaces the attribute; what is behind it is zero.
    pub fn set_attribute<T: IntoBytes + Immutable>(&mut self, value: &T) {
        let bytes = value.as_bytes();
        self.data.fill(0);
        self.data[..bytes.len()].copy_from_slice(bytes);
    }
}
