// SPDX-License-Identifier: GPL-2.0

//! Queue pairs.

use super::{
    device::Shims,
    udata::no_io,
    Cq,
    Cx,
    Driver,
    Obj,
    Pd,
    QpAttr,
    QpCap,
    QpHandle,
    QpModify,
    QpType,
    RecvWrs,
    SendWrs,
    Srq,
    Ucontext,
    Udata, //
};
use crate::bindings;
use core::ptr::NonNull;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A queue pair.
pub type Qp<T> = Obj<bindings::ib_qp, <T as Driver>::Qp>;

/// The driver's part of a [`Qp`].
pub trait QpOps: Sized + Send + Sync + 'static {
    /// The driver.
    type Driver: Driver<Qp = Self>;

    /// Creates a queue pair of user space, in the state Reset.
    ///
    /// `handle` is for the driver's table of queue pairs. If this fails then the handle is revoked,
    /// so it does no harm there. The consumer gets the sizes that it asked for, or nothing.
    fn create_user(
        cx: &Cx<'_, Self::Driver>,
        attr: &QpInitAttr<'_, Self::Driver>,
        handle: &QpHandle,
        ctx: &Ucontext<Self::Driver>,
        udata: &mut Udata,
    ) -> impl PinInit<Self, Error>;

    /// Creates a queue pair of the kernel. The rest is as for [`create_user`](Self::create_user).
    fn create_kernel(
        cx: &Cx<'_, Self::Driver>,
        attr: &QpInitAttr<'_, Self::Driver>,
        handle: &QpHandle,
    ) -> impl PinInit<Self, Error>;

    /// Posts send requests to a queue pair of the kernel, up to the first that can not be.
    ///
    /// May be called from any context, and for one queue pair by several CPUs at a time.
    fn post_send(
        qp: &Qp<Self::Driver>,
        cx: &Cx<'_, Self::Driver>,
        wrs: &mut SendWrs<'_, Self::Driver>,
    ) -> Result;

    /// Posts receive requests. The rest is as for [`post_send`](Self::post_send).
    fn post_recv(qp: &Qp<Self::Driver>, cx: &Cx<'_, Self::Driver>, wrs: &mut RecvWrs<'_>)
        -> Result;

    /// Returns the number of the queue pair, by which the device knows it.
    fn qpn(&self) -> u32;

    /// Changes attributes, all or none of them.
    fn modify(qp: &Qp<Self::Driver>, cx: &Cx<'_, Self::Driver>, modify: &QpModify) -> Result;

    /// Returns the attributes.
    fn query(qp: &Qp<Self::Driver>, cx: &Cx<'_, Self::Driver>) -> Result<QpQuery>;

    /// Destroys the queue pair; then it is dropped.
    ///
    /// The driver takes the handle out of its table first. When this has returned, the device
    /// neither reads the queues nor writes completions of them, or their memory is
    /// [abandoned](super::Lent::abandon).
    fn destroy(qp: &Qp<Self::Driver>, cx: &Cx<'_, Self::Driver>);
}

/// What a consumer asks for. All of it may be user input.
pub struct QpInitAttr<'a, T: Driver> {
    raw: &'a bindings::ib_qp_init_attr,
    ty: QpType,
    pd: &'a Pd<T>,
}

impl<T: Driver> QpInitAttr<'_, T> {
    /// Returns the transport.
    pub fn ty(&self) -> QpType {
        self.ty
    }

    /// Returns the protection domain.
    pub fn pd(&self) -> &Pd<T> {
        self.pd
    }

    /// Returns the completion queue for send requests.
    pub fn send_cq(&self) -> Result<&Cq<T>> {
        Self::cq(self.raw.send_cq)
    }

    /// Returns the completion queue for receive requests.
    pub fn recv_cq(&self) -> Result<&Cq<T>> {
        Self::cq(self.raw.recv_cq)
    }

    fn cq<'b>(cq: *mut bindings::ib_cq) -> Result<&'b Cq<T>> {
        if cq.is_null() {
            return Err(EINVAL);
        }
        // SAFETY: The core passes what `create_cq` or `create_user_cq` made, for there is nothing
        // else, and keeps it during the call that the attributes are valid for.
        Ok(unsafe { Cq::<T>::from_raw(cq) })
    }

    /// Returns the number of the port of a special queue pair, from 1.
    pub fn port(&self) -> u32 {
        self.raw.port_num
    }

    /// Returns the shared queue that receive requests are to come from.
    pub fn srq(&self) -> Option<&Srq<T>> {
        // SAFETY: The core passes null, or what `create_srq` made, for there is nothing else, and
        // keeps it during the call that the attributes are valid for.
        (!self.raw.srq.is_null()).then(|| unsafe { Srq::<T>::from_raw(self.raw.srq) })
    }

    /// Returns whether all send requests are to be reported, whatever their flags.
    pub fn signal_all(&self) -> bool {
        self.raw.sq_sig_type == bindings::ib_sig_type_IB_SIGNAL_ALL_WR
    }

    /// Returns `enum ib_qp_create_flags`.
    pub fn create_flags(&self) -> u32 {
        self.raw.create_flags
    }

    /// Returns the sizes that the consumer needs.
    pub fn cap(&self) -> QpCap {
        QpCap::from_raw(&self.raw.cap)
    }
}

/// Result of [`QpOps::query`].
#[derive(Clone, Copy, Debug)]
pub struct QpQuery {
    /// Attributes.
    pub attr: QpAttr,
    /// Sizes.
    pub cap: QpCap,
    /// Whether all send requests are reported.
    pub signal_all: bool,
    /// Whether the send queue has still to be drained, in the state SQD.
    pub sq_draining: bool,
}

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operation `create_qp`.
    pub(super) unsafe extern "C" fn create_qp(
        raw: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_init_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core passes valid attributes, which it does not change meanwhile.
            let attr = unsafe { &*attr };
            let ty = QpType::try_from(attr.qp_type)?;
            // SAFETY: The core sets this before it calls this.
            let (device, pd) = unsafe { ((*raw).device, (*raw).pd) };
            let attr = QpInitAttr {
                raw: attr,
                ty,
                // SAFETY: For these types of queue pairs the core passes what `alloc_pd` made, and
                // keeps it for as long as the queue pair.
                pd: unsafe { Pd::<T>::from_raw(pd) },
            };
            // SAFETY: The core passes null, or the udata of the running system call.
            let udata = unsafe { Udata::from_raw(udata) };
            // SAFETY: The core keeps the queue pair until `destroy_qp` has succeeded, or until this
            // has failed; both revoke the handle.
            let handle = unsafe { QpHandle::new(NonNull::new(raw).ok_or(EINVAL)?) }?;
            let create = |cx: &Cx<'_, T>| {
                let Some(udata) = udata else {
                    let init = T::Qp::create_kernel(cx, &attr, &handle);
                    // SAFETY: The core allocated `size_ib_qp` bytes for this call.
                    return unsafe { Qp::<T>::init(raw, handle.clone(), init) };
                };
                // SAFETY: The context of a system call that creates a queue pair is one that
                // `alloc_ucontext` made, and stays during the call.
                let ctx = unsafe { Ucontext::<T>::from_raw(udata.ucontext()) };
                let init = T::Qp::create_user(cx, &attr, &handle, ctx, udata);
                // SAFETY: The core allocated `size_ib_qp` bytes for this call.
                unsafe { Qp::<T>::init(raw, handle.clone(), init) }
            };
            // SAFETY: A device operation is running.
            let ret = unsafe { Self::with_cx(device, create) };
            if let Err(e) = ret {
                // SAFETY: Opened above, and not revoked before.
                unsafe { handle.revoke() };
                return Err(e);
            }
            // SAFETY: Initialised above.
            let qp = unsafe { Qp::<T>::from_raw(raw) };
            // SAFETY: The core reads this when the create operation has returned.
            unsafe { (*raw).qp_num = ty.special_number().unwrap_or_else(|| qp.qpn()) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `modify_qp`.
    pub(super) unsafe extern "C" fn modify_qp(
        raw: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        mask: c_int,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core passes null, or the udata of the running system call.
            unsafe { no_io(udata) }?;
            // CAST: A set of flags.
            //
            // SAFETY: The core passes valid attributes, which it does not change meanwhile.
            let modify = QpModify::from_raw(unsafe { &*attr }, mask as u32)?;
            // SAFETY: The core sets the device before `create_qp`.
            let device = unsafe { (*raw).device };
            // SAFETY: The core passes what `create_qp` made, and keeps it during the call.
            let qp = unsafe { Qp::<T>::from_raw(raw) };
            // SAFETY: A device operation is running.
            unsafe { Self::with_cx(device, |cx| T::Qp::modify(qp, cx, &modify)) }?;
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `query_qp`.
    pub(super) unsafe extern "C" fn query_qp(
        raw: *mut bindings::ib_qp,
        attr: *mut bindings::ib_qp_attr,
        _mask: c_int,
        init_attr: *mut bindings::ib_qp_init_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core sets the device before `create_qp`.
            let device = unsafe { (*raw).device };
            // SAFETY: The core passes what `create_qp` made, and keeps it during the call.
            let qp = unsafe { Qp::<T>::from_raw(raw) };
            // SAFETY: A device operation is running.
            let query = unsafe { Self::with_cx(device, |cx| T::Qp::query(qp, cx)) }?;
            let mut out = bindings::ib_qp_attr::default();
            query.attr.write_to(&mut out);
            query.cap.write_to(&mut out.cap);
            out.sq_draining = u8::from(query.sq_draining);
            let mut init_out = bindings::ib_qp_init_attr {
                // SAFETY: These do not change from before the create operation on.
                qp_type: unsafe { (*raw).qp_type },
                sq_sig_type: if query.signal_all {
                    bindings::ib_sig_type_IB_SIGNAL_ALL_WR
                } else {
                    bindings::ib_sig_type_IB_SIGNAL_REQ_WR
                },
                ..Default::default()
            };
            query.cap.write_to(&mut init_out.cap);
            // SAFETY: As before.
            unsafe {
                init_out.event_handler = (*raw).registered_event_handler;
                init_out.qp_context = (*raw).qp_context;
                init_out.send_cq = (*raw).send_cq;
                init_out.recv_cq = (*raw).recv_cq;
                init_out.srq = (*raw).srq;
            }
            // SAFETY: The core passes attributes for this call to write.
            unsafe {
                attr.write(out);
                init_attr.write(init_out);
            }
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `destroy_qp`.
    pub(super) unsafe extern "C" fn destroy_qp(
        raw: *mut bindings::ib_qp,
        _udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core sets the device before `create_qp`.
            let device = unsafe { (*raw).device };
            // SAFETY: The core destroys what `create_qp` made, until this returns 0.
            let qp = unsafe { Qp::<T>::from_raw(raw) };
            // SAFETY: A device operation is running.
            unsafe { Self::with_cx(device, |cx| T::Qp::destroy(qp, cx)) };
            // SAFETY: Opened by `create_qp`; this operation succeeds now, so it is not repeated.
            unsafe { qp.handle().revoke() };
            // SAFETY: This is the last operation on the object.
            unsafe { Qp::<T>::drop_in_place(raw) };
            Ok(0)
        })
    }
}
