// SPDX-License-Identifier: GPL-2.0

//! Numbers that a device knows objects by.
//!
//! C header: [`include/linux/xarray.h`](srctree/include/linux/xarray.h)

use crate::bindings;
use core::{
    marker::PhantomData,
    ops::RangeInclusive,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// A table of values by number, which hard interrupts may look up.
///
/// A number goes through four steps, so that an event of the device never meets an object that is
/// half built, half gone, or another one:
///
/// 1. [`reserve`](Self::reserve) takes a free number; lookups find nothing.
/// 2. [`Id::publish`] puts the value there, when the object is complete.
/// 3. [`Id::unpublish`] takes it away, before the object is destroyed at the device. The number
///    stays taken.
/// 4. Dropping the [`Id`], after the device has forgotten the number, frees it.
///
/// [`get`](Self::get) clones the value under the lock of the table, so `T` is a counted reference.
/// If nothing looks objects up, `T` is [`Infallible`](core::convert::Infallible).
///
/// # Invariants
///
/// - `xa` is initialised, and its lock is taken with interrupts off only.
/// - Each entry of `xa` is reserved, or a pointer of [`KBox::into_raw`] that the table owns.
#[pin_data(PinnedDrop)]
pub struct IdTable<T: Clone + Send + Sync> {
    #[pin]
    xa: Opaque<bindings::xarray>,
    /// Written by `reserve` only, under the lock of `xa`.
    next: Opaque<u32>,
    first: u32,
    last: u32,
    _values: PhantomData<KBox<T>>,
}

// SAFETY: The table owns its values, which are `Send`.
unsafe impl<T: Clone + Send + Sync> Send for IdTable<T> {}

// SAFETY: All access is serialised by the lock of `xa`; values are used (`clone`) and dropped by
// any thread, and are `Send` and `Sync`.
unsafe impl<T: Clone + Send + Sync> Sync for IdTable<T> {}

impl<T: Clone + Send + Sync> IdTable<T> {
    /// Creates a table of the numbers in `range`.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `range` is empty, `ENOMEM`.
    pub fn new(range: RangeInclusive<u32>) -> Result<Arc<Self>> {
        let (first, last) = range.into_inner();
        if first > last {
            return Err(EINVAL);
        }
        Arc::pin_init(
            pin_init!(Self {
                // INVARIANT: Initialised for a lock with interrupts off, and empty.
                xa <- Opaque::ffi_init(|xa| {
                    // SAFETY: `xa` is valid for writes.
                    unsafe { bindings::xa_init_alloc_irq(xa) };
                }),
                next: Opaque::new(first),
                first,
                last,
                _values: PhantomData,
            }),
            GFP_KERNEL,
        )
    }

    /// Takes a free number. Freed numbers come back late: the search goes around. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if all numbers are taken, `ENOMEM`.
    pub fn reserve(self: &Arc<Self>) -> Result<Id<T>> {
        let limit = bindings::xa_limit {
            min: self.first,
            max: self.last,
        };
        let mut id = 0;
        // SAFETY: By the type invariants `xa` is initialised and takes its lock so; `id` is valid
        // for writes, and `next` is only used here, under the lock that this takes. Null reserves.
        let ret = unsafe {
            bindings::xa_alloc_cyclic_irq(
                self.xa.get(),
                &mut id,
                core::ptr::null_mut(),
                limit,
                self.next.get(),
                bindings::GFP_KERNEL,
            )
        };
        match ret {
            // 1: the search has gone around.
            0 | 1 => Ok(Id {
                table: self.clone(),
                id,
            }),
            _ if ret == bindings::EBUSY.wrapping_neg() as c_int => Err(ENOSPC),
            _ => Err(Error::from_errno(ret)),
        }
    }

    /// Returns the published value of `id`. Callable from any context.
    #[inline]
    pub fn get(&self, id: u32) -> Option<T> {
        self.locked(|xa| {
            // SAFETY: `xa` is initialised.
            let entry = unsafe { bindings::xa_load(xa, id as usize) };
            // SAFETY: By the type invariants; a reserved entry loads as null. The table owns the
            // value, and frees it only after it has taken it out under the lock.
            unsafe { entry.cast::<T>().as_ref() }.cloned()
        })
    }

    /// Calls `f` with the lock held and interrupts off.
    #[inline]
    fn locked<R>(&self, f: impl FnOnce(*mut bindings::xarray) -> R) -> R {
        let xa = self.xa.get();
        // SAFETY: By the type invariants `xa` is initialised.
        let flags = unsafe { bindings::xa_lock_irqsave(xa) };
        let ret = f(xa);
        // SAFETY: Locked above, on this CPU, with these flags.
        unsafe { bindings::xa_unlock_irqrestore(xa, flags) };
        ret
    }

    /// Replaces the entry of a number that is taken.
    fn replace(&self, id: u32, value: Option<KBox<T>>) -> Option<KBox<T>> {
        let new = value.map_or(core::ptr::null_mut(), |v| KBox::into_raw(v).cast());
        // INVARIANT: From `into_raw`, or null, which an allocating array stores as reserved.
        //
        // SAFETY: `xa` is initialised and locked. The number is taken, hence has its slot, and
        // nothing is allocated, nor can this fail.
        let old = self.locked(|xa| unsafe { bindings::__xa_store(xa, id as usize, new, 0) });
        Self::own(old)
    }

    /// Frees a number.
    fn erase(&self, id: u32) -> Option<KBox<T>> {
        // SAFETY: `xa` is initialised and locked.
        Self::own(self.locked(|xa| unsafe { bindings::__xa_erase(xa, id as usize) }))
    }

    /// Takes over what was an entry.
    fn own(entry: *mut c_void) -> Option<KBox<T>> {
        let entry = NonNull::new(entry)?;
        // SAFETY: By the type invariants, and the caller has just taken it out of the table.
        Some(unsafe { KBox::from_raw(entry.as_ptr().cast()) })
    }
}

#[pinned_drop]
impl<T: Clone + Send + Sync> PinnedDrop for IdTable<T> {
    fn drop(self: Pin<&mut Self>) {
        // Each taken number has an `Id` that holds the table, unless that was forgotten; then its
        // value is leaked.
        //
        // SAFETY: `xa` is initialised, and nobody else can use it.
        unsafe { bindings::xa_destroy(self.xa.get()) };
    }
}

/// A number that is taken in an [`IdTable`].
pub struct Id<T: Clone + Send + Sync> {
    table: Arc<IdTable<T>>,
    id: u32,
}

impl<T: Clone + Send + Sync> Id<T> {
    /// Returns the number.
    #[inline]
    pub fn get(&self) -> u32 {
        self.id
    }

    /// Lets lookups find `value`. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn publish(&self, value: T) -> Result {
        // The XArray uses the two low bits of an entry.
        const { assert!(size_of::<T>() > 0 && align_of::<T>() >= 4) };
        let value = KBox::new(value, GFP_KERNEL)?;
        drop(self.table.replace(self.id, Some(value)));
        Ok(())
    }

    /// Lets lookups find nothing again. What lookups have found stays with them.
    pub fn unpublish(&self) {
        drop(self.table.replace(self.id, None));
    }
}

impl<T: Clone + Send + Sync> Drop for Id<T> {
    fn drop(&mut self) {
        drop(self.table.erase(self.id));
    }
}
