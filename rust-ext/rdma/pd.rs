// SPDX-License-Identifier: GPL-2.0

//! Protection domains.

use super::{
    device::Shims,
    Cx,
    Driver,
    Obj,
    Udata, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A protection domain.
pub type Pd<T> = Obj<bindings::ib_pd, <T as Driver>::Pd>;

/// The driver's part of a [`Pd`].
pub trait PdOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver<Pd = Self>;

    /// Creates a protection domain; for the kernel if there is no `udata`.
    fn alloc(cx: &Cx<'_, Self::Driver>, udata: Option<&mut Udata>) -> impl PinInit<Self, Error>;

    /// Destroys the domain, which nothing uses any more; then it is dropped.
    fn dealloc(pd: &Pd<Self::Driver>, cx: &Cx<'_, Self::Driver>);
}

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operation `alloc_pd`.
    pub(super) unsafe extern "C" fn alloc_pd(
        raw: *mut bindings::ib_pd,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        // SAFETY: The core sets the device before it calls this.
        let device = unsafe { (*raw).device };
        // SAFETY: The core passes null, or the udata of the running system call.
        let udata = unsafe { Udata::from_raw(udata) };
        let create = |cx: &Cx<'_, T>| {
            // SAFETY: The core allocated `size_ib_pd` bytes for this call.
            unsafe { Pd::<T>::init(raw, (), T::Pd::alloc(cx, udata)) }
        };
        // SAFETY: A device operation is running.
        from_result(|| unsafe { Self::with_cx(device, create) }.map(|()| 0))
    }

    /// # Safety
    ///
    /// As the device operation `dealloc_pd`.
    pub(super) unsafe extern "C" fn dealloc_pd(
        raw: *mut bindings::ib_pd,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core sets the device before `alloc_pd`.
            let device = unsafe { (*raw).device };
            // SAFETY: The core destroys what `alloc_pd` made, until this returns 0.
            let pd = unsafe { Pd::<T>::from_raw(raw) };
            // SAFETY: A device operation is running.
            unsafe { Self::with_cx(device, |cx| T::Pd::dealloc(pd, cx)) };
            // SAFETY: This is the last operation on the object.
            unsafe { Pd::<T>::drop_in_place(raw) };
            Ok(0)
        })
    }
}
