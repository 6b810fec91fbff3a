// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::{command, NoReply};
use crate::{
    describe::{constants, layout},
    pages::PageList,
    U32,
    U64, //
};

constants! {
    /// Bits of `CreateMkey::flags`.
    pub mod mkey_flag: u32 {
        /// No translation and no bounds: addresses are DMA addresses. For the kernel's own PDs;
        /// start, length and the page list are zero.
        PHYSICAL = 1 << 0,
        /// Created without translation, to be filled by fast registration.
        FREE = 1 << 1,
    }
}

layout! {
    /// Creates a protection entry.
    ///
    /// A key is `index << 8 | variant`: the index names the entry, the variant is compared on every
    /// use so that a stale key is refused. A region has at least one byte and does not wrap.
    pub struct CreateMkey[56] {
        /// The key, both lkey and rkey.
        pub key: U32,
        /// PD number.
        pub pdn: U32,
        /// Rights; bits in `qp::access`. Reading locally is always allowed.
        pub access: U32,
        /// Bits in `mkey_flag`.
        pub flags: U32,
        /// First address of the region as work requests and the wire give it.
        pub start: U64,
        /// Length in bytes.
        pub length: U64,
        /// The memory; it holds `length` bytes from `offset` on.
        pub pages: PageList,
    }
}
command!(CreateMkey => CreateMkey, NoReply);

layout! {
    /// Destroys a protection entry. After the completion the device no longer touches the memory.
    pub struct DestroyMkey[8] {
        /// The key.
        pub key: U32,
        /// Reserved.
        pub rsvd: U32,
    }
}
command!(DestroyMkey => DestroyMkey, NoReply);
