// SPDX-License-Identifier: GPL-2.0

//! Rings of entries that a device and the CPU both write.

use core::{
    marker::PhantomData,
    mem::MaybeUninit, //
};
use kernel::{
    alloc::flags::__GFP_NOWARN,
    device::{
        Bound,
        Device, //
    },
    dma::{
        Coherent,
        DmaAddress, //
    },
    prelude::*,
    sync::Arc, //
};
use zerocopy::{
    FromBytes,
    Immutable,
    IntoBytes, //
};

/// Zeroed coherent memory of its own pages, for rings.
pub struct RingMemory(Coherent<[u32]>);

// SAFETY: The memory may be used and freed from any thread, and holds plain words.
unsafe impl Send for RingMemory {}

// SAFETY: `&RingMemory` only reads where the memory is.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Allocates `bytes`, rounded up to whole words.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(dev: &Device<Bound>, bytes: usize) -> Result<Arc<Self>> {
        let words = bytes.div_ceil(size_of::<u32>());
        // A consumer may ask for more than the system has in one piece.
        let words = Coherent::zeroed_slice(dev, words, GFP_KERNEL | __GFP_NOWARN)?;
        Ok(Arc::new(Self(words), GFP_KERNEL)?)
    }

    /// Returns where the device finds the memory; on a page boundary.
    pub fn dma_address(&self) -> DmaAddress {
        self.0.dma_address()
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> usize {
        self.0.size()
    }
}

/// A ring of `2^log` entries of type `T` in coherent memory.
///
/// The device may write any entry at any time, so entries are only ever copied, word by word with
/// volatile accesses; a copy may be torn unless the device has handed the entry over. Indices run
/// freely and wrap by mask.
///
/// # Invariants
///
/// `memory` holds `size_of::<T>() / 4` words for each of `mask + 1` entries from the word `first`
/// on.
pub struct Ring<T> {
    memory: Arc<RingMemory>,
    first: usize,
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

    /// Allocates a zeroed ring of `2^log` entries in pages of its own.
    ///
    /// # Errors
    ///
    /// `EINVAL` if that is more than an index can tell apart, `ENOMEM`.
    pub fn new(dev: &Device<Bound>, log: u8) -> Result<Self> {
        let entries = 1u32.checked_shl(log.into()).ok_or(EINVAL)?;
        let bytes = size_of::<T>().checked_mul(entries as usize).ok_or(ENOMEM)?;
        Self::within(RingMemory::new(dev, bytes)?, 0, log)
    }

    /// Takes the memory from the byte `offset` on for a ring of `2^log` entries.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the memory does not hold it, or if `offset` is not one of a word.
    pub fn within(memory: Arc<RingMemory>, offset: usize, log: u8) -> Result<Self> {
        let entries = 1u32.checked_shl(log.into()).ok_or(EINVAL)?;
        let bytes = size_of::<T>()
            .checked_mul(entries as usize)
            .and_then(|bytes| bytes.checked_add(offset))
            .ok_or(EINVAL)?;
        if bytes > memory.size() || offset % size_of::<u32>() != 0 {
            return Err(EINVAL);
        }
        // INVARIANT: Just checked.
        Ok(Self {
            memory,
            first: offset / size_of::<u32>(),
            mask: entries - 1,
            _entries: PhantomData,
        })
    }

    /// Returns the memory that the ring is in.
    pub fn memory(&self) -> &RingMemory {
        &self.memory
    }

    /// Returns where the device finds the ring; on a page boundary if the ring has its own pages.
    pub fn dma_address(&self) -> DmaAddress {
        self.memory.dma_address() + (self.first * size_of::<u32>()) as DmaAddress
    }

    #[inline]
    fn entry(&self, index: u32) -> *mut u32 {
        let word = self.first + (index & self.mask) as usize * Self::WORDS;
        self.memory.0.as_mut_ptr().cast::<u32>().wrapping_add(word)
    }

    /// Reads the little-endian word at the byte `OFFSET` of an entry.
    #[inline]
    pub fn read_word<const OFFSET: usize>(&self, index: u32) -> u32 {
        const { assert!(OFFSET % size_of::<u32>() == 0 && OFFSET < size_of::<T>()) };
        let word = self.entry(index).wrapping_add(OFFSET / size_of::<u32>());
        // SAFETY: By the type invariants and the assertion this is a word of the ring.
        u32::from_le(unsafe { word.read_volatile() })
    }

    /// Writes the word at the byte `OFFSET` of an entry, little-endian.
    #[inline]
    pub fn write_word<const OFFSET: usize>(&self, index: u32, value: u32) {
        const { assert!(OFFSET % size_of::<u32>() == 0 && OFFSET < size_of::<T>()) };
        let word = self.entry(index).wrapping_add(OFFSET / size_of::<u32>());
        // SAFETY: By the type invariants and the assertion this is a word of the ring.
        unsafe { word.write_volatile(value.to_le()) };
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
