// SPDX-License-Identifier: GPL-2.0

//! Completion queues.

use super::{
    device::Shims,
    CqHandle,
    Cx,
    Driver,
    Notify,
    Obj,
    Ucontext,
    Udata,
    Wcs, //
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A completion queue.
pub type Cq<T> = Obj<bindings::ib_cq, <T as Driver>::Cq>;

/// The driver's part of a [`Cq`].
pub trait CqOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver<Cq = Self>;

    /// Creates a completion queue of user space.
    ///
    /// `handle` is for the driver's table of completion queues. If this fails then the handle is
    /// revoked, so it does no harm there.
    fn create_user(
        cx: &Cx<'_, Self::Driver>,
        attr: &CqInitAttr,
        handle: &CqHandle,
        ctx: &Ucontext<Self::Driver>,
        udata: &mut Udata,
    ) -> impl PinInit<Self, Error>;

    /// Creates a completion queue of the kernel. The rest is as for
    /// [`create_user`](Self::create_user).
    fn create_kernel(
        cx: &Cx<'_, Self::Driver>,
        attr: &CqInitAttr,
        handle: &CqHandle,
    ) -> impl PinInit<Self, Error>;

    /// Takes completions out of a queue of the kernel, as many as are there and have room.
    ///
    /// May be called from any context, and for one queue by several CPUs at a time.
    fn poll(cq: &Cq<Self::Driver>, cx: &Cx<'_, Self::Driver>, wcs: &mut Wcs<'_>);

    /// Asks for one call of the completion handler of a queue of the kernel; true if there are
    /// completions already.
    ///
    /// May be called from any context.
    fn notify(cq: &Cq<Self::Driver>, cx: &Cx<'_, Self::Driver>, what: Notify) -> bool;

    /// Returns the number of entries that the queue has when it is created.
    fn entries(&self) -> u32;

    /// Moves a queue of user space to another buffer, of at least `entries` entries (not 0), and
    /// returns how many it has. Several calls for one queue may run at a time.
    fn resize(
        cq: &Cq<Self::Driver>,
        cx: &Cx<'_, Self::Driver>,
        entries: u32,
        udata: &mut Udata,
    ) -> Result<u32>;

    /// Destroys the queue, which no queue pair uses any more; then it is dropped.
    ///
    /// The driver takes the handle out of its table first. When this has returned, the device
    /// writes to the queue no more, or its memory is [abandoned](super::Lent::abandon).
    fn destroy(cq: &Cq<Self::Driver>, cx: &Cx<'_, Self::Driver>);
}

/// What a consumer asks for. All of it may be user input.
#[derive(Clone, Copy, Debug)]
pub struct CqInitAttr {
    /// Entries, at least 1.
    pub entries: u32,
    /// Completion vector, less than the number that the device registered.
    pub comp_vector: u32,
    /// `enum ib_uverbs_ex_create_cq_flags`.
    pub flags: u32,
}

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operation `create_user_cq`.
    pub(super) unsafe extern "C" fn create_user_cq(
        raw: *mut bindings::ib_cq,
        attr: *const bindings::ib_cq_init_attr,
        bundle: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core passes null, or the bundle of the running system call.
            let udata = unsafe { Udata::from_bundle(bundle) }.ok_or(EINVAL)?;
            // SAFETY: The context of a system call that creates a queue is one that
            // `alloc_ucontext` made, and stays during the call.
            let ctx = unsafe { Ucontext::<T>::from_raw(udata.ucontext()) };
            // SAFETY: By the safety requirements of this function.
            unsafe {
                Self::create_cq_with(raw, attr, |cx, attr, handle| {
                    Cq::<T>::init(
                        raw,
                        handle.clone(),
                        T::Cq::create_user(cx, attr, handle, ctx, udata),
                    )
                })
            }
        })
    }

    /// # Safety
    ///
    /// As the device operation `create_cq`, which the core calls for consumers in the kernel only
    /// since there is `create_user_cq`.
    pub(super) unsafe extern "C" fn create_cq(
        raw: *mut bindings::ib_cq,
        attr: *const bindings::ib_cq_init_attr,
        _bundle: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        // SAFETY: By the safety requirements of this function.
        from_result(|| unsafe {
            Self::create_cq_with(raw, attr, |cx, attr, handle| {
                Cq::<T>::init(raw, handle.clone(), T::Cq::create_kernel(cx, attr, handle))
            })
        })
    }

    /// Creates a queue by `create`, which initialises all but the core's part.
    ///
    /// # Safety
    ///
    /// As the device operation `create_cq`.
    unsafe fn create_cq_with(
        raw: *mut bindings::ib_cq,
        attr: *const bindings::ib_cq_init_attr,
        create: impl FnOnce(&Cx<'_, T>, &CqInitAttr, &CqHandle) -> Result,
    ) -> Result<c_int> {
        // SAFETY: The core passes valid attributes, which it does not change meanwhile.
        let attr = unsafe { &*attr };
        let attr = CqInitAttr {
            entries: attr.cqe,
            comp_vector: attr.comp_vector,
            flags: attr.flags,
        };
        // SAFETY: The core keeps the queue until `destroy_cq` has succeeded, or until this has
        // failed; both revoke the handle.
        let handle = unsafe { CqHandle::new(NonNull::new(raw).ok_or(EINVAL)?) }?;
        // SAFETY: The core sets the device before it calls this.
        let device = unsafe { (*raw).device };
        // SAFETY: A device operation is running.
        let ret = unsafe { Self::with_cx(device, |cx| create(cx, &attr, &handle)) };
        if let Err(e) = ret {
            // SAFETY: Opened above, and not revoked before.
            unsafe { handle.revoke() };
            return Err(e);
        }
        // SAFETY: Initialised above.
        let cq = unsafe { Cq::<T>::from_raw(raw) };
        // CAST: Not more than the `int` that the attributes of the device say.
        //
        // SAFETY: The core reads this when the create operation has returned.
        unsafe { (*raw).cqe = cq.entries() as c_int };
        Ok(0)
    }

    /// # Safety
    ///
    /// As the device operation `resize_user_cq`.
    pub(super) unsafe extern "C" fn resize_user_cq(
        raw: *mut bindings::ib_cq,
        entries: c_uint,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core passes null, or the udata of the running system call.
            let udata = unsafe { Udata::from_raw(udata) }.ok_or(EINVAL)?;
            // SAFETY: The core sets the device before `create_user_cq`.
            let device = unsafe { (*raw).device };
            // SAFETY: The core passes what `create_user_cq` made, which stays during the call.
            let cq = unsafe { Cq::<T>::from_raw(raw) };
            let resize = |cx: &Cx<'_, T>| T::Cq::resize(cq, cx, entries, udata);
            // SAFETY: A device operation is running.
            let entries = unsafe { Self::with_cx(device, resize) }?;
            // CAST: Not more than the `int` that the attributes of the device say.
            //
            // SAFETY: The core reads this for user space and for diagnosis. Resizes may run at the
            // same time, hence the volatile write, as by `WRITE_ONCE`.
            unsafe { (&raw mut (*raw).cqe).write_volatile(entries as c_int) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `destroy_cq`.
    pub(super) unsafe extern "C" fn destroy_cq(
        raw: *mut bindings::ib_cq,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core sets the device before `create_user_cq`.
            let device = unsafe { (*raw).device };
            // SAFETY: The core destroys what `create_user_cq` made, until this returns 0.
            let cq = unsafe { Cq::<T>::from_raw(raw) };
            // SAFETY: A device operation is running.
            unsafe { Self::with_cx(device, |cx| T::Cq::destroy(cq, cx)) };
            // SAFETY: Opened by `create_user_cq`; this operation succeeds now, so it is not
            // repeated.
            unsafe { cq.handle().revoke() };
            // SAFETY: This is the last operation on the object.
            unsafe { Cq::<T>::drop_in_place(raw) };
            Ok(0)
        })
    }
}
