// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Memory that is shared with the device.

use super::bindings;
use super::check;
use crate::Errno;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;

/// Zeroed pages for rings, not inherited by children of a fork.
///
/// # Invariants
///
/// `ptr` is the start of an anonymous mapping of `len` bytes that this value owns. It is accessed
/// only by the methods below: by atomics, or by volatile copies of which the device may see a part,
/// which the interface allows for everything that precedes a doorbell or an owner word.
pub(crate) struct Buffer {
    ptr: NonNull<u8>,
    len: usize,
}

// SAFETY: The mapping belongs to the process, not to a thread.
unsafe impl Send for Buffer {}
// SAFETY: Accesses through a shared reference are atomic or volatile copies; rings order the latter
// by their locks.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Maps at least `len` bytes.
    pub(crate) fn new(len: usize) -> Result<Self, Errno> {
        let page = page_size();
        let len = len
            .checked_next_multiple_of(page)
            .filter(|&n| n > 0)
            .ok_or(libc::ENOMEM)?;
        let ptr = map(len, libc::PROT_READ | libc::PROT_WRITE, None)?;
        let buffer = Self { ptr, len };
        // SAFETY: The range is a mapping of this process.
        check(unsafe { bindings::ibv_dontfork_range(ptr.as_ptr().cast(), len) })?;
        Ok(buffer)
    }

    /// Returns the address for the kernel.
    pub(crate) fn addr(&self) -> u64 {
        self.ptr.as_ptr() as u64
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len));
        // SAFETY: In bounds by the check above.
        unsafe { self.ptr.as_ptr().add(offset) }
    }

    fn atomic(&self, offset: usize) -> &AtomicU32 {
        assert!(offset % 4 == 0);
        let ptr = self.at(offset, 4).cast::<AtomicU32>();
        // SAFETY: In bounds, aligned, live as long as `self`, and accessed atomically here and by the
        // device; volatile copies of the same word happen only under the ring's ownership rules.
        unsafe { &*ptr }
    }

    /// Reads a word; what follows is not read before it.
    pub(crate) fn load_u32(&self, offset: usize) -> u32 {
        u32::from_le(self.atomic(offset).load(Ordering::Acquire))
    }

    /// Writes a word after all that precedes.
    pub(crate) fn store_u32(&self, offset: usize, value: u32) {
        self.atomic(offset).store(value.to_le(), Ordering::Release);
    }

    /// Copies out; both lengths are multiples of 8.
    pub(crate) fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset % 8 == 0 && out.len() % 8 == 0);
        let from = self.at(offset, out.len()).cast::<u64>();
        for (i, word) in out.chunks_exact_mut(8).enumerate() {
            // SAFETY: In bounds and aligned by the checks above.
            let value = unsafe { from.add(i).read_volatile() };
            word.copy_from_slice(&value.to_ne_bytes());
        }
    }

    /// Copies in; both lengths are multiples of 8.
    pub(crate) fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset % 8 == 0 && data.len() % 8 == 0);
        let to = self.at(offset, data.len()).cast::<u64>();
        for (i, word) in data.chunks_exact(8).enumerate() {
            let mut value = [0; 8];
            value.copy_from_slice(word);
            // SAFETY: In bounds and aligned by the checks above.
            unsafe { to.add(i).write_volatile(u64::from_ne_bytes(value)) };
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let ptr = self.ptr.as_ptr().cast();
        // SAFETY: The mapping is this value's own; no reference to it is left. A failure of either
        // call leaves nothing to be done.
        unsafe {
            bindings::ibv_dofork_range(ptr, self.len);
            libc::munmap(ptr, self.len);
        }
    }
}

/// A page of doorbell slots of the device.
///
/// # Invariants
///
/// `ptr` is the start of a mapping of one page that this value owns.
pub(crate) struct DoorbellPage {
    ptr: NonNull<u8>,
}

// SAFETY: The mapping belongs to the process, not to a thread.
unsafe impl Send for DoorbellPage {}
// SAFETY: Slots are accessed atomically.
unsafe impl Sync for DoorbellPage {}

impl DoorbellPage {
    /// Maps the page at `offset` of the uverbs file.
    pub(crate) fn map(fd: i32, offset: u64) -> Result<Self, Errno> {
        let offset = libc::off_t::try_from(offset).map_err(|_| libc::EINVAL)?;
        let ptr = map(page_size(), libc::PROT_WRITE, Some((fd, offset)))?;
        Ok(Self { ptr })
    }
}

#[cfg(test)]
impl DoorbellPage {
    /// Maps memory in place of a device.
    pub(crate) fn anonymous() -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let ptr = map(page_size(), protection, None).expect("no memory");
        Self { ptr }
    }
}

#[cfg(test)]
impl Slot {
    /// Returns what was written last; what follows is not read before it.
    pub(crate) fn value(&self) -> u64 {
        u64::from_le(self.atomic().load(Ordering::Acquire))
    }
}

impl Drop for DoorbellPage {
    fn drop(&mut self) {
        // SAFETY: The mapping is this value's own. A failure leaves nothing to be done.
        unsafe { libc::munmap(self.ptr.as_ptr().cast(), page_size()) };
    }
}

/// A doorbell slot.
pub(crate) struct Slot {
    page: Arc<DoorbellPage>,
    offset: usize,
}

impl Slot {
    /// Names the slot at `offset` bytes in `page`; [`None`] if it does not lie in it.
    pub(crate) fn new(page: Arc<DoorbellPage>, offset: u32) -> Option<Self> {
        let offset = usize::try_from(offset).ok()?;
        let fits = offset % 8 == 0 && offset.checked_add(8)? <= page_size();
        fits.then_some(Self { page, offset })
    }

    /// Writes the slot, after all writes to memory that precede.
    pub(crate) fn ring(&self, value: u64) {
        device_write_barrier();
        self.atomic().store(value.to_le(), Ordering::Relaxed);
    }

    fn atomic(&self) -> &AtomicU64 {
        // SAFETY: In bounds and aligned by `Slot::new`; the mapping lives as long as `page`.
        unsafe { &*self.page.ptr.as_ptr().add(self.offset).cast::<AtomicU64>() }
    }
}

/// Orders writes to memory before a write to the device.
#[inline]
fn device_write_barrier() {
    #[cfg(target_arch = "x86_64")]
    // Stores are ordered, those to uncached memory too: only the compiler must not move them.
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: A barrier has no operands and no effect on registers or memory contents.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    compile_error!("the barrier between memory and doorbells is not known for this architecture");
}

fn page_size() -> usize {
    // SAFETY: No requirements.
    let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(size).unwrap_or(4096)
}

/// Maps memory: anonymous, or a place in a file.
fn map(
    len: usize,
    protection: i32,
    file: Option<(i32, libc::off_t)>,
) -> Result<NonNull<u8>, Errno> {
    let (flags, fd, offset) = match file {
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        Some((fd, offset)) => (libc::MAP_SHARED, fd, offset),
    };
    // SAFETY: A new mapping at an address of the kernel's choice replaces nothing.
    let ptr = unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, fd, offset) };
    if ptr == libc::MAP_FAILED {
        return Err(super::last_errno());
    }
    NonNull::new(ptr.cast()).ok_or(libc::ENOMEM)
}
