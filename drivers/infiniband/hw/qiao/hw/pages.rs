// SPDX-License-Identifier: GPL-2.0 OR MIT

//! How a buffer in host memory is described to the device.

use crate::{
    describe::{constants, layout},
    U16,
    U32,
    U64, //
};

layout! {
    /// A buffer as a list of equal pages.
    ///
    /// Level 0: `addr` is the only page. Level 1: `addr` is a table of the DMA addresses of up to
    /// 512 pages. Level n: `addr` is a table of up to 512 tables of level n - 1, all but the last
    /// of which are full. The device reads the tables while it runs the command and not later.
    pub struct PageList[24] {
        /// DMA address of the page (level 0) or of the first table.
        pub addr: U64,
        /// Number of pages; 1 at level 0.
        pub count: U32,
        /// Log2 of the page size in bytes, 12 to 31 and set in `Caps::page_sizes`.
        pub page_shift: u8,
        /// Levels of tables, 0 to 3.
        pub levels: u8,
        /// Reserved.
        pub rsvd: U16,
        /// Offset in bytes of the buffer in its first page.
        pub offset: U64,
    }
}

constants! {
    /// Limits of page lists.
    pub mod limit: u32 {
        /// Bytes of a table and its alignment.
        TABLE_SIZE = 4096,
        /// Page addresses in a table.
        TABLE_ENTRIES = 512,
        /// Most levels.
        MAX_LEVELS = 3,
        /// Log2 of the smallest page.
        MIN_PAGE_SHIFT = 12,
        /// Log2 of the largest page.
        MAX_PAGE_SHIFT = 31,
    }
}

/// Returns how many levels `count` pages need; [`None`] if three are not enough.
#[inline]
pub const fn levels_for(count: u64) -> Option<u8> {
    const N: u64 = limit::TABLE_ENTRIES as u64;
    if count <= 1 {
        Some(0)
    } else if count <= N {
        Some(1)
    } else if count <= N * N {
        Some(2)
    } else if count <= N * N * N {
        Some(3)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_at_the_edges() {
        assert_eq!(levels_for(1), Some(0));
        assert_eq!(levels_for(2), Some(1));
        assert_eq!(levels_for(512), Some(1));
        assert_eq!(levels_for(513), Some(2));
        assert_eq!(levels_for(512 * 512 + 1), Some(3));
        assert_eq!(levels_for(512 * 512 * 512 + 1), None);
    }
}
