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

#[kunit_tests(rdma_id_table)]
mod tests {
    use super::*;
    use crate::sync::Completion;
    use kernel::{
        sync::atomic::{
            Atomic,
            Relaxed, //
        },
        time::msecs_to_jiffies,
        workqueue, //
    };

    /// Rounds of the test with two tasks.
    const ROUNDS: u32 = 2_000;

    /// A guard against hangs.
    const PATIENCE_MS: u32 = 120_000;

    fn table(range: RangeInclusive<u32>) -> Result<Arc<IdTable<Arc<u32>>>> {
        IdTable::new(range)
    }

    fn value(n: u32) -> Result<Arc<u32>> {
        Ok(Arc::new(n, GFP_KERNEL)?)
    }

    #[test]
    fn an_empty_range_has_no_table() {
        assert!(table(RangeInclusive::new(5, 4)).is_err());
    }

    #[test]
    fn lookups_find_what_is_published() -> Result {
        let table = table(3..=9)?;
        let id = table.reserve()?;
        assert_eq!(id.get(), 3);
        assert!(table.get(3).is_none());
        id.publish(value(33)?)?;
        assert!(table.get(3).is_some_and(|found| *found == 33));
        assert!(table.get(4).is_none());
        assert!(table.get(u32::MAX).is_none());
        id.unpublish();
        assert!(table.get(3).is_none());
        Ok(())
    }

    #[test]
    fn a_number_stays_taken_until_it_is_dropped() -> Result {
        let table = table(0..=0)?;
        let id = table.reserve()?;
        id.publish(value(1)?)?;
        id.unpublish();
        assert!(table.reserve().is_err_and(|e| e == ENOSPC));
        drop(id);
        assert_eq!(table.reserve()?.get(), 0);
        Ok(())
    }

    #[test]
    fn freed_numbers_come_back_late() -> Result {
        let table = table(10..=12)?;
        for expected in [10, 11, 12, 10] {
            assert_eq!(table.reserve()?.get(), expected);
        }
        Ok(())
    }

    #[test]
    fn each_number_is_dealt_out_once() -> Result {
        let table = table(1..=64)?;
        let mut ids = KVec::new();
        let mut seen = 0u64;
        for _ in 0..64 {
            let id = table.reserve()?;
            assert!((1..=64).contains(&id.get()));
            let bit = 1 << (id.get() - 1);
            assert_eq!(seen & bit, 0);
            seen |= bit;
            ids.push(id, GFP_KERNEL)?;
        }
        assert!(table.reserve().is_err_and(|e| e == ENOSPC));
        Ok(())
    }

    #[test]
    fn the_table_drops_what_it_holds() -> Result {
        let table = table(0..=3)?;
        let held = value(7)?;
        let id = table.reserve()?;
        id.publish(held.clone())?;
        id.publish(held.clone())?;
        id.unpublish();
        id.publish(held.clone())?;
        drop(id);
        // This is the last reference, or it is none.
        assert!(Arc::into_unique_or_drop(held).is_some());
        Ok(())
    }

    /// One task publishes and takes away, another looks up: it finds the number's own value, or
    /// none.
    #[test]
    fn lookups_race_with_publishing() -> Result {
        let table = table(0..=1)?;
        let wrong = Arc::new(Atomic::new(0u32), GFP_KERNEL)?;
        let done = Arc::pin_init(Completion::new(), GFP_KERNEL)?;
        let (looked_up, found_wrong, ended) = (table.clone(), wrong.clone(), done.clone());
        workqueue::system_unbound().try_spawn(GFP_KERNEL, move || {
            for n in 0..ROUNDS {
                let number = n % 2;
                if looked_up.get(number).is_some_and(|found| *found != number) {
                    found_wrong.store(n + 1, Relaxed);
                }
            }
            ended.complete();
        })?;
        for _ in 0..ROUNDS {
            let id = table.reserve()?;
            id.publish(value(id.get())?)?;
            id.unpublish();
        }
        done.wait_timeout(msecs_to_jiffies(PATIENCE_MS))?;
        assert_eq!(wrong.load(Relaxed), 0);
        Ok(())
    }
}
