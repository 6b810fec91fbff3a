// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Event queue entries.

use crate::{
    describe::{layout, numbers},
    U16,
    U32,
    U64, //
};

layout! {
    /// An event. The device never overwrites an entry that the consumer index has not passed: what
    /// finds no room stays pending in its object and is written when there is room.
    pub struct Eqe[32] {
        /// An `EventType`.
        pub event_type: u8,
        /// Port, from 1, of a port event; zero otherwise.
        pub port: u8,
        /// Reserved.
        pub rsvd0: U16,
        /// Number of the CQ, QP or SRQ; zero for ports and the device.
        pub id: U32,
        /// Meaning by type: for `CqError` and `DeviceFatal` a vendor's syndrome; zero otherwise.
        pub data: U64,
        /// Reserved.
        pub rsvd1: [u8; 12],
        /// Bit 0: phase. Written last.
        pub owner: U32,
    }
}

numbers! {
    /// What happened.
    pub enum EventType: u8 {
        /// An armed CQ has completions. Completion EQs only.
        Completion = 0x00,
        /// First packet on a QP in RTR.
        CommEstablished = 0x10,
        /// The send queue has drained.
        SqDrained = 0x11,
        /// The path has migrated.
        PathMigrated = 0x12,
        /// The last request of a QP with an SRQ has been taken.
        LastWqeReached = 0x13,
        /// A QP failed and could not report it by a completion.
        QpFatal = 0x14,
        /// The responder of a QP got an invalid request.
        QpRequestError = 0x15,
        /// The responder of a QP got a request without the right.
        QpAccessError = 0x16,
        /// The path could not migrate.
        PathMigrationError = 0x17,
        /// A CQ has overflowed or its buffer could not be written.
        CqError = 0x20,
        /// An SRQ has fallen below its limit.
        SrqLimit = 0x30,
        /// An SRQ has failed.
        SrqError = 0x31,
        /// A port has become active.
        PortActive = 0x40,
        /// A port is no longer active.
        PortError = 0x41,
        /// The LID has changed.
        LidChange = 0x42,
        /// The P_Key table has changed.
        PkeyChange = 0x43,
        /// The GID table has changed.
        GidChange = 0x44,
        /// The subnet manager has changed.
        SmChange = 0x45,
        /// The subnet manager asks for registration anew.
        ClientReregister = 0x46,
        /// The device has failed; `status.FATAL` is set.
        DeviceFatal = 0xff,
    }
}
