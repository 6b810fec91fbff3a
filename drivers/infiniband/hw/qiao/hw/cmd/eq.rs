// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{command, NoReply};
use crate::{
    describe::{layout, numbers},
    pages::PageList,
    U16,
    U32, //
};

numbers! {
    /// What an event queue carries.
    pub enum EqType: u8 {
        /// Events of QPs, CQs, SRQs, ports and the device. There is one such queue.
        Async = 0,
        /// Completion events of the CQs bound to the queue.
        Completion = 1,
        /// Congestion reports.
        Congestion = 2,
    }
}

layout! {
    /// Creates an event queue. The ring holds `event::Eqe`s and is zeroed by the driver.
    pub struct CreateEq[40] {
        /// EQ number.
        pub eqn: U32,
        /// Doorbell slot: an arm slot.
        pub slot: U32,
        /// MSI-X vector.
        pub vector: U16,
        /// An `EqType`.
        pub eq_type: u8,
        /// Log2 of the number of entries.
        pub log_entries: u8,
        /// Reserved.
        pub rsvd: U32,
        /// The ring.
        pub ring: PageList,
    }
}
command!(CreateEq => CreateEq, NoReply);

layout! {
    /// Destroys an event queue. `Busy` while a CQ is bound to it. After the completion the device
    /// neither writes the ring nor raises the vector for this queue.
    pub struct DestroyEq[8] {
        /// EQ number.
        pub eqn: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
command!(DestroyEq => DestroyEq, NoReply);
