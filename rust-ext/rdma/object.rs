// SPDX-License-Identifier: GPL-2.0

//! Objects that the RDMA core allocates, with the driver's part behind the core's.

use crate::bindings;
use core::{
    alloc::Layout,
    mem::ManuallyDrop,
    ops::Deref, //
};
use kernel::{
    prelude::*,
    sync::atomic::{
        AtomicFlag,
        Relaxed, //
    },
    types::Opaque, //
};

/// A C struct that is the core's part of an object.
///
/// # Safety
///
/// The implementing type must be the struct that the RDMA core hands to the device operations of
/// that object, with the whole size that the operations table asks for (`size_*`) allocated
/// zeroed, or that a driver allocates and hands to the core.
pub unsafe trait RawObject {
    /// What leads to the object from contexts that may outlive it; `()` if nothing does.
    type Handle: Send + Sync;
}

// SAFETY: `size_ib_ucontext`.
unsafe impl RawObject for bindings::ib_ucontext {
    type Handle = super::UcontextHandle;
}

// SAFETY: `size_ib_pd`.
unsafe impl RawObject for bindings::ib_pd {
    type Handle = ();
}

// SAFETY: `size_ib_ah`.
unsafe impl RawObject for bindings::ib_ah {
    type Handle = ();
}

// SAFETY: `size_ib_cq`.
unsafe impl RawObject for bindings::ib_cq {
    type Handle = super::CqHandle;
}

// SAFETY: `size_ib_qp`.
unsafe impl RawObject for bindings::ib_qp {
    type Handle = super::QpHandle;
}

// SAFETY: `size_ib_srq`.
unsafe impl RawObject for bindings::ib_srq {
    type Handle = super::SrqHandle;
}

// SAFETY: Allocated by the driver, see `Mr`.
unsafe impl RawObject for bindings::ib_mr {
    type Handle = ();
}

/// An object of the RDMA core with the driver's data `T`.
///
/// Dereferences to the driver's data.
///
/// # Invariants
///
/// - `raw` is at offset 0, is valid, and belongs to the core.
/// - `handle` and `data` are initialised when a reference to the object exists, that is from the
///   success of the create operation to the success of the destroy operation.
/// - The object does not move.
#[repr(C)]
#[pin_data]
pub struct Obj<R: RawObject, T> {
    raw: Opaque<R>,
    handle: R::Handle,
    #[pin]
    data: T,
}

// SAFETY: The core's part may be used from any thread; the driver's part says so itself.
unsafe impl<R: RawObject, T: Send> Send for Obj<R, T> {}

// SAFETY: As for `Send`. All operations of the core are reentrant, and this type only reads fields
// of the core's part that do not change.
unsafe impl<R: RawObject, T: Sync> Sync for Obj<R, T> {}

impl<R: RawObject, T> Obj<R, T> {
    /// What the core must allocate.
    pub(super) const SIZE: usize = {
        assert!(core::mem::offset_of!(Self, raw) == 0);
        assert!(align_of::<Self>() <= kernel::bindings::ARCH_KMALLOC_MINALIGN);
        Layout::new::<Self>().pad_to_align().size()
    };

    /// Initialises all but the core's part.
    ///
    /// # Safety
    ///
    /// `raw` must point to `SIZE` bytes that the core allocated, whose driver part is not
    /// initialised, and that stay where they are until [`drop_in_place`](Self::drop_in_place), or
    /// until they are freed if this function fails.
    pub(super) unsafe fn init(
        raw: *mut R,
        handle: R::Handle,
        data: impl PinInit<T, Error>,
    ) -> Result {
        let this: *mut Self = raw.cast();
        // SAFETY: By the safety requirements `data` is valid for writes, and pinned. On error the
        // initializer has left nothing in it.
        unsafe { pin_init::raw_try_init(&raw mut (*this).data, data) }?;
        // INVARIANT: Now both are initialised.
        //
        // SAFETY: By the safety requirements `handle` is valid for writes.
        unsafe { (&raw mut (*this).handle).write(handle) };
        Ok(())
    }

    /// Creates an object that the driver allocates.
    pub(super) fn new(
        handle: R::Handle,
        data: impl PinInit<T, Error>,
    ) -> impl PinInit<Self, Error> {
        // INVARIANT: The core takes zeroed memory for its part.
        try_pin_init!(Self {
            raw: Opaque::zeroed(),
            handle,
            data <- data,
        })
    }

    /// # Safety
    ///
    /// `raw` must be the core's part of an `Obj<R, T>` that stays initialised during `'a`.
    #[inline]
    pub(super) unsafe fn from_raw<'a>(raw: *mut R) -> &'a Self {
        // SAFETY: By the safety requirements, and `raw` is at offset 0.
        unsafe { &*raw.cast() }
    }

    #[inline]
    pub(super) fn as_raw(&self) -> *mut R {
        self.raw.get()
    }

    #[inline]
    pub(super) fn handle(&self) -> &R::Handle {
        &self.handle
    }

    /// Drops all but the core's part.
    ///
    /// # Safety
    ///
    /// `raw` must be the core's part of an initialised `Obj<R, T>`, to which no references exist
    /// and to which none will be made.
    pub(super) unsafe fn drop_in_place(raw: *mut R) {
        let this: *mut Self = raw.cast();
        // SAFETY: By the safety requirements, both are initialised, and nobody uses them.
        unsafe {
            core::ptr::drop_in_place(&raw mut (*this).data);
            core::ptr::drop_in_place(&raw mut (*this).handle);
        }
    }
}

impl<R: RawObject, T> Deref for Obj<R, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.data
    }
}

/// What a device has been given, such as memory that it reads and writes.
///
/// To a consumer an object is gone when it is destroyed, whatever the device says. If the device
/// does not confirm, it may go on to use what it was given, which then must not get another use:
/// the driver [`abandon`](Self::abandon)s it.
pub struct Lent<T> {
    value: ManuallyDrop<T>,
    abandoned: AtomicFlag,
}

impl<T> Lent<T> {
    /// Lends `value`.
    pub fn new(value: T) -> Self {
        Self {
            value: ManuallyDrop::new(value),
            abandoned: AtomicFlag::new(false),
        }
    }

    /// Leaks the value when `self` is dropped.
    pub fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
    }
}

impl<T> Deref for Lent<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // Ordered by whatever made this thread the owner.
        if !self.abandoned.load(Relaxed) {
            // SAFETY: The value is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}
