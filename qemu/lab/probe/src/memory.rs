// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory of this process with pieces that the kernel may not write.

use anyhow::{bail, Context, Result};
use memmap2::{Mmap, MmapMut};

/// Bytes of a page of the CPU; the guests are x86-64.
pub const PAGE: u64 = 4096;

/// Bytes of each part of an [`Arena`].
pub const PART: u64 = 64 * PAGE;

/// Never mapped: below the lowest address that the kernel hands out (`vm.mmap_min_addr`).
pub const UNMAPPED: u64 = PAGE;

/// In the half of the address space that is the kernel's.
pub const KERNEL: u64 = 0xffff_8880_0000_0000;

/// No address at all: between the two halves.
pub const NON_CANONICAL: u64 = 1 << 62;

/// The page at the end of the address space.
pub const LAST_PAGE: u64 = u64::MAX - PAGE + 1;

/// How often neighbours are asked for before giving up.
const ATTEMPTS: usize = 64;

/// Three mappings side by side: a writable one, a read-only one, and a writable one again.
#[derive(Debug)]
pub struct Arena {
    low: MmapMut,
    middle: Mmap,
    high: MmapMut,
    _apart: Vec<MmapMut>,
}

impl Arena {
    /// Makes an arena.
    pub fn new() -> Result<Self> {
        let map = || MmapMut::map_anon(PART as usize).context("mapping memory");
        // The kernel goes down from the top and may fill gaps first.
        let mut apart = Vec::new();
        let (mut high, mut middle) = (map()?, map()?);
        for _ in 0..ATTEMPTS {
            let low = map()?;
            if follows(&middle, &high) && follows(&low, &middle) {
                let middle = middle.make_read_only()?;
                return Ok(Self {
                    low,
                    middle,
                    high,
                    _apart: apart,
                });
            }
            apart.push(high);
            (high, middle) = (middle, low);
        }
        bail!("the kernel puts no three mappings side by side")
    }

    /// Address of the first writable part.
    pub fn writable(&self) -> u64 {
        address(&self.low)
    }

    /// Address of the read-only part, which the first one ends at and the last one follows.
    pub fn read_only(&self) -> u64 {
        address(&self.middle)
    }

    /// Address of the last part, which is writable.
    pub fn writable_again(&self) -> u64 {
        address(&self.high)
    }

    /// The bytes of the first part. The kernel writes them behind the compiler's back, which the address that was exposed
    /// accounts for.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.low
    }
}

fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr().expose_provenance() as u64
}

fn follows(low: &[u8], high: &[u8]) -> bool {
    address(low) + PART == address(high)
}
