// SPDX-License-Identifier: GPL-2.0

//! Shared receive queues.

use super::{
    device::Shims,
    udata::no_io,
    Cx,
    Driver,
    Obj,
    Pd,
    RecvWrs,
    SrqHandle,
    Ucontext,
    Udata, //
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A shared receive queue.
pub type Srq<T> = Obj<bindings::ib_srq, <T as Driver>::Srq>;

/// The driver's part of an [`Srq`].
pub trait SrqOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver<Srq = Self>;

    /// Creates a shared receive queue of user space.
    ///
    /// `handle` is for the driver's table of shared receive queues. If this fails then the handle
    /// is revoked, so it does no harm there.
    fn create_user(
        cx: &Cx<'_, Self::Driver>,
        pd: &Pd<Self::Driver>,
        attr: &SrqAttr,
        handle: &SrqHandle,
        ctx: &Ucontext<Self::Driver>,
        udata: &mut Udata,
    ) -> impl PinInit<Self, Error>;

    /// Creates a shared receive queue of the kernel. The rest is as for
    /// [`create_user`](Self::create_user).
    fn create_kernel(
        cx: &Cx<'_, Self::Driver>,
        pd: &Pd<Self::Driver>,
        attr: &SrqAttr,
        handle: &SrqHandle,
    ) -> impl PinInit<Self, Error>;

    /// Posts receive requests to a queue of the kernel, up to the first that can not be.
    ///
    /// May be called from any context, and for one queue by several CPUs at a time.
    fn post_recv(
        srq: &Srq<Self::Driver>,
        cx: &Cx<'_, Self::Driver>,
        wrs: &mut RecvWrs<'_>,
    ) -> Result;

    /// Returns how many requests the queue holds, and of how many pieces of memory each.
    fn size(&self) -> (u32, u32);

    /// Asks for an event when there are fewer requests than `limit`, once; 0 asks for none.
    fn set_limit(srq: &Srq<Self::Driver>, cx: &Cx<'_, Self::Driver>, limit: u32) -> Result;

    /// Returns the limit, 0 if the event was raised.
    fn limit(srq: &Srq<Self::Driver>, cx: &Cx<'_, Self::Driver>) -> Result<u32>;

    /// Destroys the queue, which no queue pair uses any more; then it is dropped.
    ///
    /// The driver takes the handle out of its table first. When this has returned, the device does
    /// not read the queue, or its memory is [abandoned](super::Lent::abandon).
    fn destroy(srq: &Srq<Self::Driver>, cx: &Cx<'_, Self::Driver>);
}

/// What a consumer asks for. All of it may be user input.
#[derive(Clone, Copy, Debug)]
pub struct SrqAttr {
    /// Requests.
    pub max_wr: u32,
    /// Pieces of memory of each.
    pub max_sge: u32,
}

/// The only type that is supported: others belong to XRC and to tag matching.
const BASIC: bindings::ib_srq_type = bindings::ib_srq_type_IB_SRQT_BASIC;

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operation `create_srq`.
    pub(super) unsafe extern "C" fn create_srq(
        raw: *mut bindings::ib_srq,
        init: *mut bindings::ib_srq_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core passes valid attributes, which nobody else uses meanwhile.
            let init = unsafe { &mut *init };
            if init.srq_type != BASIC {
                return Err(EOPNOTSUPP);
            }
            let attr = SrqAttr {
                max_wr: init.attr.max_wr,
                max_sge: init.attr.max_sge,
            };
            // SAFETY: The core sets these before it calls this.
            let (device, pd) = unsafe { ((*raw).device, (*raw).pd) };
            // SAFETY: The core passes what `alloc_pd` made, and keeps it for as long as the queue.
            let pd = unsafe { Pd::<T>::from_raw(pd) };
            // SAFETY: The core passes null, or the udata of the running system call.
            let udata = unsafe { Udata::from_raw(udata) };
            // SAFETY: The core keeps the queue until `destroy_srq` has succeeded, or until this has
            // failed; both revoke the handle.
            let handle = unsafe { SrqHandle::new(NonNull::new(raw).ok_or(EINVAL)?) }?;
            let create = |cx: &Cx<'_, T>| {
                let Some(udata) = udata else {
                    let data = T::Srq::create_kernel(cx, pd, &attr, &handle);
                    // SAFETY: The core allocated `size_ib_srq` bytes for this call.
                    return unsafe { Srq::<T>::init(raw, handle.clone(), data) };
                };
                // SAFETY: The context of a system call that creates a queue is one that
                // `alloc_ucontext` made, and stays during the call.
                let ctx = unsafe { Ucontext::<T>::from_raw(udata.ucontext()) };
                let data = T::Srq::create_user(cx, pd, &attr, &handle, ctx, udata);
                // SAFETY: The core allocated `size_ib_srq` bytes for this call.
                unsafe { Srq::<T>::init(raw, handle.clone(), data) }
            };
            // SAFETY: A device operation is running.
            let ret = unsafe { Self::with_cx(device, create) };
            if let Err(e) = ret {
                // SAFETY: Opened above, and not revoked before.
                unsafe { handle.revoke() };
                return Err(e);
            }
            // SAFETY: Initialised above.
            let srq = unsafe { Srq::<T>::from_raw(raw) };
            (init.attr.max_wr, init.attr.max_sge) = srq.size();
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `modify_srq`.
    pub(super) unsafe extern "C" fn modify_srq(
        raw: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
        mask: bindings::ib_srq_attr_mask,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core passes null, or the udata of the running system call.
            unsafe { no_io(udata) }?;
            if mask & !bindings::ib_srq_attr_mask_IB_SRQ_LIMIT != 0 {
                // A device need not resize (IBTA vol. 1, 10.2.9).
                return Err(EOPNOTSUPP);
            }
            if mask == 0 {
                return Ok(0);
            }
            // SAFETY: The core passes valid attributes, which it does not change meanwhile.
            let limit = unsafe { (*attr).srq_limit };
            // SAFETY: The core sets the device before `create_srq`.
            let device = unsafe { (*raw).device };
            // SAFETY: The core passes what `create_srq` made, and keeps it during the call.
            let srq = unsafe { Srq::<T>::from_raw(raw) };
            // SAFETY: A device operation is running.
            unsafe { Self::with_cx(device, |cx| T::Srq::set_limit(srq, cx, limit)) }?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `query_srq`.
    pub(super) unsafe extern "C" fn query_srq(
        raw: *mut bindings::ib_srq,
        attr: *mut bindings::ib_srq_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core sets the device before `create_srq`.
            let device = unsafe { (*raw).device };
            // SAFETY: The core passes what `create_srq` made, and keeps it during the call.
            let srq = unsafe { Srq::<T>::from_raw(raw) };
            // SAFETY: A device operation is running.
            let srq_limit = unsafe { Self::with_cx(device, |cx| T::Srq::limit(srq, cx)) }?;
            let (max_wr, max_sge) = srq.size();
            // SAFETY: The core passes attributes for this call to write.
            unsafe {
                attr.write(bindings::ib_srq_attr {
                    max_wr,
                    max_sge,
                    srq_limit,
                })
            };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `destroy_srq`.
    pub(super) unsafe extern "C" fn destroy_srq(
        raw: *mut bindings::ib_srq,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core sets the device before `create_srq`.
            let device = unsafe { (*raw).device };
            // SAFETY: The core destroys what `create_srq` made, until this returns 0.
            let srq = unsafe { Srq::<T>::from_raw(raw) };
            // SAFETY: A device operation is running.
            unsafe { Self::with_cx(device, |cx| T::Srq::destroy(srq, cx)) };
            // SAFETY: Opened by `create_srq`; this operation succeeds now, so it is not repeated.
            unsafe { srq.handle().revoke() };
            // SAFETY: This is the last operation on the object.
            unsafe { Srq::<T>::drop_in_place(raw) };
            Ok(0)
        })
    }
}
