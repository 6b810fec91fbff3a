// SPDX-License-Identifier: GPL-2.0

//! Rings of entries that a device and the CPU both write.

use core::{
    marker::PhantomData,
    mem::MaybeUninit, //
};
use kernel::{
    device::{
        Bound,
        Device, //
    },
    dma::{
        Coherent,
        DmaAddress, //
    },
    prelude::*, //
};
use zerocopy::{
    FromBytes,
    Immutable,
    IntoBytes, //
};

/// A ring of `2^log` entries of type `T` in coherent memory of its own pages.
///
/// The device may write any entry at any time, so entries are only ever copied, word by word with
/// volatile accesses; a copy may be torn unless the device has handed the entry over. Indices run
/// freely and wrap by mask.
///
/// # Invariants
///
/// `words` holds `size_of::<T>() / 4` words for each of `mask + 1` entries.
pub struct Ring<T> {
    words: Coherent<[u32]>,
    mask: u32,
    _entries: PhantomData<T>,
}

// SAFETY: The memory may be used from any thread, and entries are plain bytes that are copied.
unsafe impl<T> Send for Ring<T> {}

// SAFETY: As for `Send`. Concurrent volatile accesses are what device memory has to live with: each
// word is read or written as a whole.
unsafe impl<T> Sync for Ring<T> {}

impl<T: FromBytes + IntoBytes + Immutable> Ring<T> {
    const WORDS: usize = {
        assert!(size_of::<T>() > 0 && size_of::<T>() % size_of::<u32>() == 0);
        size_of::<T>() / size_of::<u32>()
    };

    /// Allocates a zeroed ring of `2^log` entries.
    ///
    /// # Errors
    ///
    /// `EINVAL` if that is more than an index can tell apart, `ENOMEM`.
    pub fn new(dev: &Device<Bound>, log: u8) -> Result<Self> {
        let entries = 1u32.checked_shl(log.into()).ok_or(EINVAL)?;
        let words = Self::WORDS.checked_mul(entries as usize).ok_or(ENOMEM)?;
        // INVARIANT: That is the number of words.
        Ok(Self {
            words: Coherent::zeroed_slice(dev, words, GFP_KERNEL)?,
            mask: entries - 1,
            _entries: PhantomData,
        })
    }

    /// Returns where the device finds the ring; on a page boundary.
    pub fn dma_address(&self) -> DmaAddress {
        self.words.dma_address()
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.words.size()
    }

    #[inline]
    fn entry(&self, index: u32) -> *mut u32 {
        let first = (index & self.mask) as usize * Self::WORDS;
        self.words.as_mut_ptr().cast::<u32>().wrapping_add(first)
    }

    /// Reads the little-endian word at the byte `OFFSET` of an entry.
    #[inline]
    pub fn read_word<const OFFSET: usize>(&self, index: u32) -> u32 {
        const { assert!(OFFSET % size_of::<u32>() == 0 && OFFSET < size_of::<T>()) };
        let word = self.entry(index).wrapping_add(OFFSET / size_of::<u32>());
        // SAFETY: By the type invariants and the assertion this is a word of the ring.
        u32::from_le(unsafe { word.read_volatile() })
    }

    /// Copies an entry out.
    #[inline]
    pub fn read(&self, index: u32) -> T {
        let from = self.entry(index);
        let mut copy = MaybeUninit::<T>::uninit();
        let to: *mut u32 = copy.as_mut_ptr().cast();
        for i in 0..Self::WORDS {
            // SAFETY: By the type invariants these are words of the ring, and `copy` has as many,
            // at any alignment.
            unsafe {
                to.wrapping_add(i)
                    .write_unaligned(from.wrapping_add(i).read_volatile())
            };
        }
        // SAFETY: All bytes were written, and `T` takes any (`FromBytes`).
        unsafe { copy.assume_init() }
    }

    /// Copies an entry in.
    #[inline]
    pub fn write(&self, index: u32, value: &T) {
        let to = self.entry(index);
        let from: *const u32 = core::ptr::from_ref(value).cast();
        for i in 0..Self::WORDS {
            // SAFETY: By the type invariants these are words of the ring, and `value` has as many
            // initialised ones (`IntoBytes`), at any alignment.
            unsafe {
                to.wrapping_add(i)
                    .write_volatile(from.wrapping_add(i).read_unaligned())
            };
        }
    }
}
