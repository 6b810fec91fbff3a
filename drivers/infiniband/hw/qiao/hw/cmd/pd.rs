// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{command, NoReply};
use crate::{describe::layout, U32};

layout! {
    /// Allocates a protection domain.
    pub struct AllocPd[8] {
        /// PD number.
        pub pdn: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
command!(AllocPd => AllocPd, NoReply);

layout! {
    /// Frees a protection domain. `Busy` while an object uses it.
    pub struct DeallocPd[8] {
        /// PD number.
        pub pdn: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
command!(DeallocPd => DeallocPd, NoReply);
