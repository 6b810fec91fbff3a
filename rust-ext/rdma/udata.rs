// SPDX-License-Identifier: GPL-2.0

//! What a user space driver sends along with a verb, and gets back.
//!
//! Verbs that destroy an object have none: no system call passes any. What the core hands over with
//! them is empty, or it is that of the verb that created the object, if the core itself could not
//! write its response. To refuse it would keep an object that nobody knows of.
//!
//! C header: [`include/rdma/uverbs_ioctl.h`](srctree/include/rdma/uverbs_ioctl.h)

use crate::bindings;
use kernel::{
    container_of,
    error::to_result,
    prelude::*,
    types::Opaque, //
};
use zerocopy::Immutable;

/// The driver's private part of one system call.
///
/// All access goes through the helpers of the core, which check sizes and unknown content in both
/// directions. That is what `uverbs_robust_udata` promises to user space.
///
/// # Invariants
///
/// Is the `driver_udata` of a valid `struct uverbs_attr_bundle` whose `context` is that of the
/// caller, once it has one. The system call that it belongs to is running on this thread.
#[repr(transparent)]
pub struct Udata(Opaque<bindings::ib_udata>);

impl Udata {
    /// Returns [`None`] for calls from the kernel, which pass a null pointer.
    ///
    /// # Safety
    ///
    /// `udata` must be null, or be what the core passed to the running device operation, and
    /// nobody else may use it during `'a`.
    #[inline]
    pub(super) unsafe fn from_raw<'a>(udata: *mut bindings::ib_udata) -> Option<&'a mut Self> {
        // INVARIANT: The core embeds what it passes to device operations in the bundle of the
        // system call.
        //
        // SAFETY: By the safety requirements.
        unsafe { udata.cast::<Self>().as_mut() }
    }

    /// # Safety
    ///
    /// As for [`from_raw`](Self::from_raw).
    #[inline]
    pub(super) unsafe fn from_bundle<'a>(
        bundle: *mut bindings::uverbs_attr_bundle,
    ) -> Option<&'a mut Self> {
        if bundle.is_null() {
            return None;
        }
        // SAFETY: `bundle` is valid by the safety requirements, which also cover the call.
        unsafe { Self::from_raw(&raw mut (*bundle).__bindgen_anon_1.__bindgen_anon_1.driver_udata) }
    }

    pub(super) fn bundle(&self) -> *mut bindings::uverbs_attr_bundle {
        // SAFETY: By the type invariants.
        unsafe {
            container_of!(
                self.0.get(),
                bindings::uverbs_attr_bundle,
                __bindgen_anon_1.__bindgen_anon_1.driver_udata
            )
        }
    }

    /// Returns the context of the calling process; null before there is one.
    pub(super) fn ucontext(&self) -> *mut bindings::ib_ucontext {
        // SAFETY: By the type invariants.
        unsafe { (*self.bundle()).__bindgen_anon_1.__bindgen_anon_1.context }
    }

    /// Reads the request.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if the user sent less than a `T`.
    /// - `EOPNOTSUPP` if the user sent more, and what is there is not zero: a newer user that asks
    ///   for what this kernel does not know.
    /// - `EFAULT` if the memory can not be read.
    pub fn read<T: FromBytes>(&mut self) -> Result<T> {
        let mut request = T::new_zeroed();
        // SAFETY: The udata is valid by the type invariants; `request` is valid for writes of its
        // size, and any bytes are a valid `T`.
        to_result(unsafe {
            bindings::_ib_copy_validate_udata_in(
                self.0.get(),
                (&raw mut request).cast(),
                size_of::<T>(),
                size_of::<T>(),
            )
        })?;
        Ok(request)
    }

    /// Refuses any request: for verbs that have no private part.
    ///
    /// # Errors
    ///
    /// As for [`read`](Self::read).
    pub fn no_request(&mut self) -> Result {
        // SAFETY: The udata is valid by the type invariants.
        to_result(unsafe { bindings::ib_is_udata_in_empty(self.0.get()) })
    }

    /// Writes the response: the last thing that can fail in a verb which creates something, which
    /// must be undone if this fails.
    ///
    /// The core shortens the response if the user expects less, and fills up with zeroes if it
    /// expects more.
    ///
    /// # Errors
    ///
    /// `EFAULT` if the memory can not be written.
    pub fn respond<T: IntoBytes + Immutable>(&mut self, response: &T) -> Result {
        let bytes = response.as_bytes();
        // SAFETY: The udata is valid by the type invariants; `bytes` is valid for reads, and as
        // `T: IntoBytes` has no padding with content of the kernel's stack.
        to_result(unsafe {
            bindings::_ib_respond_udata(self.0.get(), bytes.as_ptr().cast(), bytes.len())
        })
    }

    /// Refuses any request and clears the response: for verbs that have no private part at all.
    ///
    /// # Errors
    ///
    /// As for [`no_request`](Self::no_request) and [`respond`](Self::respond).
    pub fn no_io(&mut self) -> Result {
        // SAFETY: The udata is valid by the type invariants.
        to_result(unsafe { bindings::ib_no_udata_io(self.0.get()) })
    }
}

/// [`Udata::no_io`] on what the core passed; a caller in the kernel has none.
///
/// # Safety
///
/// As for [`Udata::from_raw`].
pub(super) unsafe fn no_io(udata: *mut bindings::ib_udata) -> Result {
    // SAFETY: By the safety requirements.
    match unsafe { Udata::from_raw(udata) } {
        Some(udata) => udata.no_io(),
        None => Ok(()),
    }
}
