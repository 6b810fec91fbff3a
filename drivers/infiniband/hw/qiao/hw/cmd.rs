// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The command queue.
//!
//! The driver writes [`Entry`]s to the command ring and rings `reg::CMDQ_PRODUCER`. The device
//! executes them in any order and concurrently unless one names an object of another that has not
//! completed, writes a [`Completion`] for each, and raises the vector of `reg::CMDQ_CONFIG`. At
//! most as many commands may be outstanding as the ring has entries. An entry of the command ring
//! may be reused when the command that it held has completed.
//!
//! The id ties a completion to its command. After a timeout the driver does not use that id again
//! until the device has been reset, so that a late answer meets nobody.

use crate::{
    describe::{layout, numbers, Described},
    U16,
    U32,
    U64, //
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

mod counters;
mod cq;
mod eq;
mod mad;
mod mkey;
mod pd;
mod port;
mod qp;
mod srq;

pub use counters::{PortCounters, QueryPortCounters};
pub use cq::{cq_flag, CreateCq, DestroyCq, ModifyCq, ResizeCq, ResizeCqReply};
pub use eq::{CreateEq, DestroyEq, EqType};
pub use mad::{mad_flag, ExecMad, ExecMadReply, MAD_SIZE};
pub use mkey::{mkey_flag, CreateMkey, DestroyMkey};
pub use pd::{AllocPd, DeallocPd};
pub use port::{
    port_change,
    Gid,
    LinkLayer,
    ModifyPort,
    Pkey,
    PortAttr,
    PortState,
    QueryGid,
    QueryPkey,
    QueryPort, //
};
pub use qp::{qp_flag, CreateQp, DestroyQp, ModifyQp, QueryQp, QueryQpReply};
pub use srq::{srq_flag, CreateSrq, DestroySrq, ModifySrq, QuerySrq, QuerySrqReply};

/// Bytes of payload of a command and of a completion.
pub const PAYLOAD_SIZE: usize = 112;

layout! {
    /// An entry of the command ring.
    pub struct Entry[128] {
        /// What to do: an `Opcode`.
        pub opcode: U16,
        /// Reserved.
        pub rsvd0: U16,
        /// The driver's id of this command.
        pub id: U32,
        /// Reserved.
        pub rsvd1: U64,
        /// Operands; the structure that belongs to the opcode, zero behind it.
        pub payload: [u8; 112],
    }
}

layout! {
    /// An entry of the command completion ring.
    pub struct Completion[128] {
        /// Results; the structure that belongs to the opcode, zero behind it.
        pub payload: [u8; 112],
        /// The id of the command.
        pub id: U32,
        /// How it ended: a `Status`.
        pub status: u8,
        /// Reserved.
        pub rsvd0: [u8; 3],
        /// Which check failed; a vendor's number for a support case.
        pub syndrome: U32,
        /// Bit 0: phase. Written last.
        pub owner: U32,
    }
}

numbers! {
    /// Command opcodes. Numbers that are not named are reserved; the gaps belong to what the
    /// comment of the block names.
    pub enum Opcode: u16 {
        /// Does nothing.
        Nop = 0x0000,
        /// Creates an event queue.
        CreateEq = 0x0010,
        /// Destroys an event queue.
        DestroyEq = 0x0011,
        /// Allocates a protection domain.
        AllocPd = 0x0020,
        /// Frees a protection domain.
        DeallocPd = 0x0021,
        /// Creates a protection entry.
        CreateMkey = 0x0030,
        /// Destroys a protection entry.
        DestroyMkey = 0x0031,
        /// Creates a CQ.
        CreateCq = 0x0040,
        /// Destroys a CQ.
        DestroyCq = 0x0041,
        /// Changes the moderation of a CQ.
        ModifyCq = 0x0042,
        /// Moves a CQ to another buffer.
        ResizeCq = 0x0043,
        /// Creates a QP.
        CreateQp = 0x0050,
        /// Destroys a QP.
        DestroyQp = 0x0051,
        /// Changes the state and attributes of a QP.
        ModifyQp = 0x0052,
        /// Reads the state and attributes of a QP.
        QueryQp = 0x0053,
        /// Creates an SRQ.
        CreateSrq = 0x0060,
        /// Destroys an SRQ.
        DestroySrq = 0x0061,
        /// Changes the limit of an SRQ.
        ModifySrq = 0x0062,
        /// Reads the limit of an SRQ.
        QuerySrq = 0x0063,
        /// Reads the state of a port.
        QueryPort = 0x0080,
        /// Reads an entry of the GID table.
        QueryGid = 0x0081,
        /// Reads an entry of the P_Key table.
        QueryPkey = 0x0082,
        /// Reads the counters of a port.
        QueryPortCounters = 0x0083,
        /// Changes attributes of a port.
        ModifyPort = 0x0084,
        /// Has an agent of the device answer a management datagram.
        ExecMad = 0x0090,
    }
}

numbers! {
    /// How a command ended.
    pub enum Status: u8 {
        /// Done.
        Ok = 0,
        /// The opcode is not known, or needs a feature that the part lacks.
        BadOpcode = 1,
        /// An operand is out of range, or a reserved bit is set.
        BadOperand = 2,
        /// An id that must exist does not.
        NoSuchObject = 3,
        /// An id that must be free is in use.
        Exists = 4,
        /// Another object still refers to this one.
        Busy = 5,
        /// The state of the object does not allow this.
        BadState = 6,
        /// The part has run out of something.
        NoResources = 7,
        /// The device could not read or write host memory that the command names.
        DmaFault = 8,
        /// The device failed.
        Internal = 9,
    }
}

/// A command: the operands, the opcode and the results.
pub trait Command: Described + FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {
    /// The opcode.
    const OPCODE: Opcode;
    /// The results.
    type Reply: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned;
}

layout! {
    /// The results of a command that has none.
    pub struct NoReply[0] {}
}

impl Entry {
    /// Makes the entry for `command`.
    #[inline]
    pub fn new<C: Command>(id: u32, command: &C) -> Self {
        const {
            assert!(size_of::<C>() <= PAYLOAD_SIZE);
            assert!(size_of::<C::Reply>() <= PAYLOAD_SIZE);
        }
        let mut entry = Self::zeroed();
        entry.opcode.set(C::OPCODE.to_wire());
        entry.id.set(id);
        for (to, from) in entry.payload.iter_mut().zip(command.as_bytes()) {
            *to = *from;
        }
        entry
    }

    /// Returns the operands of a `C`; [`None`] if the rest of the payload or a reserved field is
    /// not zero.
    pub fn operands<C: Command>(&self) -> Option<C> {
        if self.rsvd0.get() != 0 || self.rsvd1.get() != 0 {
            return None;
        }
        let (operands, rest) = C::read_from_prefix(&self.payload).ok()?;
        let clean = rest.iter().all(|&b| b == 0) && crate::describe::reserved_is_zero(&operands);
        clean.then_some(operands)
    }
}

impl Completion {
    /// Makes the completion of a command with its results; the owner word is left zero.
    pub fn new<R: IntoBytes + Immutable>(id: u32, status: Status, reply: &R) -> Self {
        const { assert!(size_of::<R>() <= PAYLOAD_SIZE) };
        let mut completion = Self::zeroed();
        completion.id.set(id);
        completion.status = status.to_wire();
        for (to, from) in completion.payload.iter_mut().zip(reply.as_bytes()) {
            *to = *from;
        }
        completion
    }

    /// Returns the results; [`None`] if an `R` does not fit the payload.
    #[inline]
    pub fn reply<R: FromBytes>(&self) -> Option<R> {
        Some(R::read_from_prefix(&self.payload).ok()?.0)
    }
}

/// Implements [`Command`] for operands and results.
macro_rules! command {
    ($operands:ident => $opcode:ident, $reply:ty) => {
        impl $crate::cmd::Command for $operands {
            const OPCODE: $crate::cmd::Opcode = $crate::cmd::Opcode::$opcode;
            type Reply = $reply;
        }
    };
}
use command;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operands_round_trip() {
        let mut cmd = AllocPd::zeroed();
        cmd.pdn.set(0x12_3456);
        let entry = Entry::new(7, &cmd);
        assert_eq!(Opcode::from_wire(entry.opcode.get()), Some(Opcode::AllocPd));
        assert_eq!(entry.operands::<AllocPd>(), Some(cmd));
    }

    #[test]
    fn dirt_behind_the_operands_is_refused() {
        let mut entry = Entry::new(7, &AllocPd::zeroed());
        entry.payload[111] = 1;
        assert_eq!(entry.operands::<AllocPd>(), None);
        let mut entry = Entry::new(7, &AllocPd::zeroed());
        entry.rsvd1.set(1);
        assert_eq!(entry.operands::<AllocPd>(), None);
    }
}
