// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Doorbell slots of BAR2.
//!
//! BAR2 is an array of 8-byte slots, each bound to one queue by the command that creates it. The
//! slot's value is the state of the queue, not an increment, so writing it twice or losing all but
//! the last write is harmless; reads have no side effect. A page of slots, of the CPU's page size,
//! is mapped into one user context only; the first page is the kernel's.

use crate::describe::constants;

/// Bytes per slot.
pub const SLOT_SIZE: usize = 8;

/// Slot number of a queue that has none.
pub const NO_SLOT: u32 = u32::MAX;

constants! {
    /// Fields of an arm slot (CQ, EQ). An index slot (SQ, RQ, SRQ) has the free-running producer
    /// index in bits 31:0 and zero above.
    pub mod arm: u64 {
        /// Free-running index from which entries count; of an EQ the consumer index.
        INDEX = 0xffff_ffff,
        /// Field of the kind of the request.
        KIND = 3 << 32,
        /// Raise one event at the first solicited or failed entry at or past the index.
        SOLICITED = 1 << 32,
        /// Raise one event at the first entry at or past the index.
        ANY = 2 << 32,
        /// Field of the sequence number, which makes two requests at one index differ.
        SEQUENCE = 0xff << 40,
    }
}

/// What an arm slot asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmKind {
    /// Nothing: only the index moves.
    None,
    /// An event at the next solicited or failed entry.
    Solicited,
    /// An event at the next entry.
    Any,
}

/// The value of an arm slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arm {
    /// Free-running index from which entries count; of an EQ the consumer index.
    pub index: u32,
    /// What is asked for.
    pub kind: ArmKind,
    /// Changes with every request; wraps.
    pub sequence: u8,
}

impl Arm {
    /// Packs the value.
    #[inline]
    pub const fn to_wire(self) -> u64 {
        let kind = match self.kind {
            ArmKind::None => 0,
            ArmKind::Solicited => arm::SOLICITED,
            ArmKind::Any => arm::ANY,
        };
        // CAST: Widening.
        self.index as u64 | kind | ((self.sequence as u64) << 40)
    }

    /// Unpacks a value; [`None`] if a reserved bit or kind is used.
    #[inline]
    pub const fn from_wire(value: u64) -> Option<Self> {
        if value & !(arm::INDEX | arm::KIND | arm::SEQUENCE) != 0 {
            return None;
        }
        let kind = match value & arm::KIND {
            0 => ArmKind::None,
            arm::SOLICITED => ArmKind::Solicited,
            arm::ANY => ArmKind::Any,
            _ => return None,
        };
        // CAST: Truncation to the fields is meant.
        Some(Self {
            index: value as u32,
            kind,
            sequence: (value >> 40) as u8,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arm_round_trips_and_refuses_reserved_bits() {
        for kind in [ArmKind::None, ArmKind::Solicited, ArmKind::Any] {
            let arm = Arm {
                index: 0xffff_fffe,
                kind,
                sequence: 0xa5,
            };
            assert_eq!(Arm::from_wire(arm.to_wire()), Some(arm));
        }
        assert_eq!(Arm::from_wire(3 << 32), None);
        assert_eq!(Arm::from_wire(1 << 34), None);
        assert_eq!(Arm::from_wire(1 << 48), None);
    }
}
