// SPDX-License-Identifier: GPL-2.0

//! Asynchronous events and completion events.
//!
//! The handles of this module are what a driver keeps in its tables by object number. Each leads
//! to a C object of the RDMA core for as long as that exists: the destroy op of the object, or the
//! unregistration of the device, returns only after all calls through its handles have returned,
//! and later calls do nothing. A clone that a driver forgets in a table is harmless.
//!
//! All methods may be called from hard interrupt context. No driver lock that a verb takes may be
//! held: the consumer's handler may call verbs that do not sleep (see
//! `Documentation/infiniband/core_locking.rst`).
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::gate::Gate;
use crate::{
    bindings,
    sync::Job, //
};
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    prelude::*,
    sync::Arc, //
};

/// Proof of being in the handler of a device's event queue, or in a work item.
///
/// A completion handler may poll, post and arm. If a verb called it, the consumer would meet
/// itself, with its locks held; hence completions can only be raised with this token. Event queue
/// handlers make one when they are entered and pass it down. What a verb finds out is left to a
/// work item, see the [`Job`] of a [`CqHandle`]. Nothing else makes one.
pub struct EventCx<'a>(PhantomData<&'a ()>);

impl EventCx<'_> {
    /// Calls `f` with the token. Only for handlers of event queues, with no lock held.
    #[inline]
    pub fn enter<R>(f: impl for<'a> FnOnce(&EventCx<'a>) -> R) -> R {
        f(&EventCx(PhantomData))
    }
}

/// An asynchronous event of a queue pair (IBTA vol. 1, 11.6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QpEvent {
    /// The queue pair went into the error state because of a fault of the device or of the queue.
    Fatal = bindings::ib_event_type_IB_EVENT_QP_FATAL,
    /// The transport saw an invalid request from the peer.
    RequestError = bindings::ib_event_type_IB_EVENT_QP_REQ_ERR,
    /// The transport saw an access violation by the peer.
    AccessError = bindings::ib_event_type_IB_EVENT_QP_ACCESS_ERR,
    /// The first packet arrived in the state RTR.
    CommunicationEstablished = bindings::ib_event_type_IB_EVENT_COMM_EST,
    /// The send queue is drained, in the state SQD.
    SqDrained = bindings::ib_event_type_IB_EVENT_SQ_DRAINED,
    /// The path migrated.
    PathMigrated = bindings::ib_event_type_IB_EVENT_PATH_MIG,
    /// The path failed to migrate.
    PathMigrationError = bindings::ib_event_type_IB_EVENT_PATH_MIG_ERR,
    /// The last work request of a shared receive queue that this queue pair took is done.
    LastWqeReached = bindings::ib_event_type_IB_EVENT_QP_LAST_WQE_REACHED,
}

/// An asynchronous event of a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum CqEvent {
    /// The queue overran, or the device could not write to it.
    Error = bindings::ib_event_type_IB_EVENT_CQ_ERR,
}

/// An asynchronous event of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SrqEvent {
    /// The queue failed.
    Error = bindings::ib_event_type_IB_EVENT_SRQ_ERR,
    /// There are fewer requests than the limit that was set.
    LimitReached = bindings::ib_event_type_IB_EVENT_SRQ_LIMIT_REACHED,
}

/// An asynchronous event of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum PortEvent {
    /// The port went into the state Active.
    Active = bindings::ib_event_type_IB_EVENT_PORT_ACTIVE,
    /// The port left the state Active.
    Error = bindings::ib_event_type_IB_EVENT_PORT_ERR,
    /// The LID of the port changed.
    LidChange = bindings::ib_event_type_IB_EVENT_LID_CHANGE,
    /// The P_Key table of the port changed.
    PkeyChange = bindings::ib_event_type_IB_EVENT_PKEY_CHANGE,
    /// The subnet manager that the port knows changed.
    SmChange = bindings::ib_event_type_IB_EVENT_SM_CHANGE,
    /// The subnet manager asks for all subscriptions again.
    ClientReregister = bindings::ib_event_type_IB_EVENT_CLIENT_REREGISTER,
    /// The GID table of the port changed.
    GidChange = bindings::ib_event_type_IB_EVENT_GID_CHANGE,
}

/// An asynchronous event that belongs to no object of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceEvent {
    /// The device is lost to its users, who must close it.
    Fatal,
    /// Something happened at the port of this number (from 1).
    Port(u32, PortEvent),
}

/// Raises the events of one queue pair.
#[derive(Clone)]
pub struct QpHandle(Arc<Gate<bindings::ib_qp>>);

impl QpHandle {
    /// # Safety
    ///
    /// As for [`Gate::new`].
    pub(super) unsafe fn new(qp: NonNull<bindings::ib_qp>) -> Result<Self> {
        // SAFETY: By the safety requirements of this function.
        unsafe { Gate::new(qp) }.map(Self)
    }

    /// # Safety
    ///
    /// As for [`Gate::revoke`].
    pub(super) unsafe fn revoke(&self) {
        // SAFETY: By the safety requirements of this function.
        unsafe { self.0.revoke() }
    }

    /// Calls `f` with the queue pair, which exists meanwhile, unless it is gone.
    #[inline]
    pub(super) fn with_raw<R>(&self, f: impl FnOnce(*mut bindings::ib_qp) -> R) -> Option<R> {
        self.0.with(|qp| f(qp.as_ptr()))
    }

    /// Tells the consumer of the queue pair.
    pub fn event(&self, event: QpEvent) {
        self.0.with(|qp| {
            let qp = qp.as_ptr();
            // SAFETY: `with` keeps `qp` valid. The core sets these fields before it calls the
            // create op, and leaves them.
            let (device, handler, context) =
                unsafe { ((*qp).device, (*qp).event_handler, (*qp).qp_context) };
            let mut event = bindings::ib_event {
                device,
                element: bindings::ib_event__bindgen_ty_1 { qp },
                event: event as u32,
            };
            if let Some(handler) = handler {
                // SAFETY: The handler takes an event that it does not keep, and the context that
                // was given with it, from any context.
                unsafe { handler(&mut event, context) };
            }
        });
    }
}

/// Raises the events of one completion queue.
#[derive(Clone)]
pub struct CqHandle(Arc<Gate<bindings::ib_cq>>);

impl CqHandle {
    /// # Safety
    ///
    /// As for [`Gate::new`].
    pub(super) unsafe fn new(cq: NonNull<bindings::ib_cq>) -> Result<Self> {
        // SAFETY: By the safety requirements of this function.
        unsafe { Gate::new(cq) }.map(Self)
    }

    /// # Safety
    ///
    /// As for [`Gate::revoke`].
    pub(super) unsafe fn revoke(&self) {
        // SAFETY: By the safety requirements of this function.
        unsafe { self.0.revoke() }
    }

    /// Calls the completion handler of the queue.
    ///
    /// The core allows one call at a time for a queue; others wait here.
    pub fn complete(&self, _cx: &EventCx<'_>) {
        self.0.with_alone(|cq| {
            let cq = cq.as_ptr();
            // SAFETY: `with` keeps `cq` valid. For queues of the kernel the core sets the handler
            // after the create op has returned, hence the volatile read: the driver sees it or
            // not, and no completion is asked for before it is set.
            let handler = unsafe { (&raw const (*cq).comp_handler).read_volatile() };
            // SAFETY: As before; the context is set before the create op is called.
            let context = unsafe { (*cq).cq_context };
            if let Some(handler) = handler {
                // SAFETY: The handler takes the queue and the context that was given with it, from
                // any context.
                unsafe { handler(cq, context) };
            }
        });
    }

    /// Tells the consumer of the queue.
    pub fn event(&self, event: CqEvent) {
        self.0.with(|cq| {
            let cq = cq.as_ptr();
            // SAFETY: `with` keeps `cq` valid. The core sets these fields before it calls the
            // create op, and leaves them.
            let (device, handler, context) =
                unsafe { ((*cq).device, (*cq).event_handler, (*cq).cq_context) };
            let mut event = bindings::ib_event {
                device,
                element: bindings::ib_event__bindgen_ty_1 { cq },
                event: event as u32,
            };
            if let Some(handler) = handler {
                // SAFETY: The handler takes an event that it does not keep, and the context that
                // was given with it, from any context.
                unsafe { handler(&mut event, context) };
            }
        });
    }
}

/// Calls the completion handler of the queue: for what no interrupt tells of. Any work queue will
/// do.
impl Job for CqHandle {
    fn run(&self) {
        EventCx::enter(|cx| self.complete(cx));
    }
}

/// Raises the events of one shared receive queue.
#[derive(Clone)]
pub struct SrqHandle(Arc<Gate<bindings::ib_srq>>);

impl SrqHandle {
    /// # Safety
    ///
    /// As for [`Gate::new`].
    pub(super) unsafe fn new(srq: NonNull<bindings::ib_srq>) -> Result<Self> {
        // SAFETY: By the safety requirements of this function.
        unsafe { Gate::new(srq) }.map(Self)
    }

    /// # Safety
    ///
    /// As for [`Gate::revoke`].
    pub(super) unsafe fn revoke(&self) {
        // SAFETY: By the safety requirements of this function.
        unsafe { self.0.revoke() }
    }

    /// Tells the consumer of the queue.
    pub fn event(&self, event: SrqEvent) {
        self.0.with(|srq| {
            let srq = srq.as_ptr();
            // SAFETY: `with` keeps `srq` valid. The core sets these fields before it calls the
            // create op, and leaves them.
            let (device, handler, context) =
                unsafe { ((*srq).device, (*srq).event_handler, (*srq).srq_context) };
            let mut event = bindings::ib_event {
                device,
                element: bindings::ib_event__bindgen_ty_1 { srq },
                event: event as u32,
            };
            if let Some(handler) = handler {
                // SAFETY: The handler takes an event that it does not keep, and the context that
                // was given with it, from any context.
                unsafe { handler(&mut event, context) };
            }
        });
    }
}

/// Raises the events of a device.
///
/// Events before the device is registered, and after it has begun to be unregistered, go nowhere:
/// nobody is there to hear them.
#[derive(Clone)]
pub struct DeviceHandle(Arc<Gate<bindings::ib_device>>);

impl DeviceHandle {
    /// Creates a handle whose events go nowhere until [`open`](Self::open).
    pub(super) fn new_closed(dev: NonNull<bindings::ib_device>) -> Result<Self> {
        Gate::new_closed(dev).map(Self)
    }

    /// # Safety
    ///
    /// As for [`Gate::open`], and the device must be registered until the handle is revoked.
    pub(super) unsafe fn open(&self) {
        // SAFETY: By the safety requirements of this function.
        unsafe { self.0.open() }
    }

    /// # Safety
    ///
    /// As for [`Gate::revoke`].
    pub(super) unsafe fn revoke(&self) {
        // SAFETY: By the safety requirements of this function.
        unsafe { self.0.revoke() }
    }

    /// Tells all clients and users of the device.
    ///
    /// The core drops the event if it has no memory for it.
    pub fn dispatch(&self, event: DeviceEvent) {
        self.0.with(|device| {
            let (event, port_num) = match event {
                DeviceEvent::Fatal => (bindings::ib_event_type_IB_EVENT_DEVICE_FATAL, 0),
                DeviceEvent::Port(port, event) => (event as u32, port),
            };
            let event = bindings::ib_event {
                device: device.as_ptr(),
                element: bindings::ib_event__bindgen_ty_1 { port_num },
                event,
            };
            // SAFETY: `with` keeps the device valid, and it is registered by the safety
            // requirements of `open`. The core copies the event. Any context will do.
            unsafe { bindings::ib_dispatch_event(&event) };
        });
    }
}
