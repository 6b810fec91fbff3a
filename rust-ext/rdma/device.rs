// SPDX-License-Identifier: GPL-2.0

//! RDMA devices and their registration.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    attr::FW_TEXT_LEN,
    gate::Gate,
    Ah,
    AhOps,
    Cq,
    CqOps,
    DeviceAttr,
    DeviceEvent,
    DeviceHandle,
    FwVersion,
    Gid,
    Guid,
    Mad,
    MadRequest,
    MrOps,
    Pd,
    PdOps,
    PortAttr,
    PortCounter,
    PortEvent,
    PortImmutable,
    PortModify,
    Qp,
    QpOps,
    Srq,
    SrqOps,
    Ucontext,
    UcontextOps,
    Udata, //
};
use crate::{
    bindings,
    raw, //
};
use core::{
    alloc::Layout,
    cell::UnsafeCell,
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    device,
    error::{
        from_result,
        to_result, //
    },
    module::{
        this_module,
        ModuleMetadata, //
    },
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// A driver of RDMA devices.
pub trait Driver: Sized + Send + Sync + 'static {
    /// What the driver has for one device, while that is registered.
    ///
    /// It may borrow what is bound to the parent device, for as long as that is bound.
    type Data<'a>: Send + Sync + 'a
    where
        Self: 'a;

    /// Contexts of user space.
    type Ucontext: UcontextOps<Driver = Self>;
    /// Protection domains.
    type Pd: PdOps<Driver = Self>;
    /// Address handles.
    type Ah: AhOps<Driver = Self>;
    /// Completion queues.
    type Cq: CqOps<Driver = Self>;
    /// Queue pairs.
    type Qp: QpOps<Driver = Self>;
    /// Shared receive queues.
    type Srq: SrqOps<Driver = Self>;
    /// Memory regions.
    type Mr: MrOps<Driver = Self>;

    /// The module of the driver: `crate::LocalModule`.
    type OwnerModule: ModuleMetadata;

    /// Pattern for names of devices, `%d` being a number that the core chooses.
    const NAME: &'static CStr;

    /// Version of what the driver and its library in user space tell each other.
    const UVERBS_ABI_VER: u32;

    /// The counters of each port; at least one.
    const PORT_COUNTERS: &'static [PortCounter];

    /// Returns what the device has. Called before all others, by the registration.
    fn query_device(cx: &Cx<'_, Self>) -> Result<DeviceAttr>;

    /// Returns the version of the firmware, for people.
    fn fw_version(cx: &Cx<'_, Self>) -> FwVersion;

    /// Returns what the port number `port`, which exists, is at the moment.
    fn query_port(cx: &Cx<'_, Self>, port: u32) -> Result<PortAttr>;

    /// Returns what the port number `port`, which exists, will always be.
    fn port_immutable(cx: &Cx<'_, Self>, port: u32) -> Result<PortImmutable>;

    /// Returns an entry of the GID table of the port number `port`, which exists.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the table has no such entry.
    fn query_gid(cx: &Cx<'_, Self>, port: u32, index: u32) -> Result<Gid>;

    /// Returns an entry of the P_Key table of the port number `port`, which exists.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the table has no such entry.
    fn query_pkey(cx: &Cx<'_, Self>, port: u32, index: u16) -> Result<u16>;

    /// Writes the values of [`PORT_COUNTERS`](Self::PORT_COUNTERS) of the port number `port`, which
    /// exists, in their order: all of them or, with an error, none. May sleep.
    fn query_port_counters(cx: &Cx<'_, Self>, port: u32, values: &mut [u64]) -> Result;

    /// Changes the port number `port`, which exists.
    fn modify_port(cx: &Cx<'_, Self>, port: u32, modify: &PortModify) -> Result;

    /// Has an agent of the device answer a management datagram, as if it had come in by the port
    /// number `port`, which exists; [`None`] if it is for an agent of the host. May sleep.
    ///
    /// Called only if [`UnregisteredDevice::set_mads`] was.
    fn process_mad(cx: &Cx<'_, Self>, port: u32, request: &MadRequest) -> Result<Option<Mad>>;
}

/// A registered device with what its driver has for it.
///
/// Only operations of the device get this, hence the parent device is bound, and nothing of
/// [`Driver::Data`] is gone.
pub struct Cx<'a, T: Driver> {
    device: &'a Device<T>,
    data: &'a T::Data<'a>,
}

impl<'a, T: Driver> Cx<'a, T> {
    /// Returns the device.
    pub fn device(&self) -> &'a Device<T> {
        self.device
    }

    /// Returns what the driver has for the device.
    pub fn data(&self) -> &'a T::Data<'a> {
        self.data
    }
}

/// A `struct ib_device` with what belongs to its driver.
///
/// # Invariants
///
/// - `dev` is at offset 0 and initialised by the core, which also owns the memory.
/// - `data` is dangling, or points to the data of the [`Registration`].
/// - `events` and `lifeline` are initialised from [`UnregisteredDevice::new`] until the device is
///   given back to the core.
#[repr(C)]
pub struct Device<T: Driver> {
    dev: Opaque<bindings::ib_device>,
    data: UnsafeCell<NonNull<T::Data<'static>>>,
    events: DeviceHandle,
    lifeline: Arc<Gate<bindings::ib_device>>,
}

// SAFETY: The core lets any thread use a device; the handles are `Send`.
unsafe impl<T: Driver> Send for Device<T> {}

// SAFETY: As for `Send`; `data` is only written while no operation can run.
unsafe impl<T: Driver> Sync for Device<T> {}

impl<T: Driver> Device<T> {
    const SIZE: usize = {
        assert!(core::mem::offset_of!(Self, dev) == 0);
        assert!(align_of::<Self>() <= kernel::bindings::ARCH_KMALLOC_MINALIGN);
        Layout::new::<Self>().pad_to_align().size()
    };

    #[inline]
    pub(super) fn as_raw(&self) -> *mut bindings::ib_device {
        self.dev.get()
    }

    /// What is open for as long as the device may be used for DMA.
    pub(super) fn lifeline(&self) -> &Arc<Gate<bindings::ib_device>> {
        &self.lifeline
    }
}

/// What a device is, besides what its operations say.
#[derive(Clone, Copy, Debug)]
pub struct DeviceInfo {
    /// GUID of the node.
    pub node_guid: Guid,
    /// Number of ports.
    pub ports: u8,
    /// Number of completion vectors.
    pub comp_vectors: u16,
}

/// A device that is not registered.
///
/// # Invariants
///
/// Owns the device.
pub struct UnregisteredDevice<T: Driver>(NonNull<Device<T>>);

// SAFETY: As for `Device`.
unsafe impl<T: Driver> Send for UnregisteredDevice<T> {}

// SAFETY: As for `Device`.
unsafe impl<T: Driver> Sync for UnregisteredDevice<T> {}

impl<T: Driver> UnregisteredDevice<T> {
    /// Allocates a device.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new() -> Result<Self> {
        // SAFETY: `SIZE` is that of a struct that starts with a `struct ib_device`; the initial
        // namespace is where devices start.
        let raw =
            unsafe { bindings::_ib_alloc_device(Device::<T>::SIZE, &raw mut bindings::init_net) };
        let dev = NonNull::new(raw).ok_or(ENOMEM)?;
        let this: NonNull<Device<T>> = dev.cast();
        let handles = || Ok::<_, Error>((DeviceHandle::new_closed(dev)?, Gate::new_closed(dev)?));
        let (events, lifeline) = handles().inspect_err(|_| {
            // SAFETY: Allocated above, and nobody else knows it.
            unsafe { bindings::ib_dealloc_device(raw) }
        })?;
        // INVARIANT: Here all fields are initialised.
        //
        // SAFETY: The memory is valid for `SIZE` bytes, and nobody else knows it.
        unsafe {
            (&raw mut (*this.as_ptr()).data).write(UnsafeCell::new(NonNull::dangling()));
            (&raw mut (*this.as_ptr()).events).write(events);
            (&raw mut (*this.as_ptr()).lifeline).write(lifeline);
        }
        // SAFETY: The device is valid, and nobody else knows it. The table is copied.
        unsafe {
            bindings::ib_set_device_ops(raw, &Shims::<T>::OPS);
            // The constructor of bit fields is not const.
            (*raw).ops.set_uverbs_robust_udata(1);
        }
        // INVARIANT: From the core to us.
        Ok(Self(this))
    }

    /// Says that agents of the device answer management datagrams.
    pub fn set_mads(&mut self) {
        // SAFETY: The device is valid and not registered. The table is copied.
        unsafe { bindings::ib_set_device_ops(self.as_raw(), &Shims::<T>::MAD_OPS) };
    }

    /// Says that the device has shared receive queues.
    pub fn set_srqs(&mut self) {
        // SAFETY: The device is valid and not registered. The table is copied.
        unsafe { bindings::ib_set_device_ops(self.as_raw(), &Shims::<T>::SRQ_OPS) };
    }

    /// Returns what raises the events of the device. They go nowhere until it is registered.
    pub fn handle(&self) -> DeviceHandle {
        self.device().events.clone()
    }

    fn device(&self) -> &Device<T> {
        // SAFETY: By the type invariants.
        unsafe { self.0.as_ref() }
    }

    fn as_raw(&self) -> *mut bindings::ib_device {
        self.0.as_ptr().cast()
    }
}

impl<T: Driver> Drop for UnregisteredDevice<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants. The memory may stay longer, by references to the
        // embedded `struct device`, but nobody reads these fields any more.
        unsafe {
            core::ptr::drop_in_place(&raw mut (*self.0.as_ptr()).events);
            core::ptr::drop_in_place(&raw mut (*self.0.as_ptr()).lifeline);
        }
        // SAFETY: By the type invariants, and the device is not registered.
        unsafe { bindings::ib_dealloc_device(self.as_raw()) };
    }
}

/// The registration of a device.
///
/// Dropping it is the fence: all users are cut off, their objects destroyed and their mappings
/// replaced, and no operation runs or will run. Then the device is freed, and then
/// [`Driver::Data`].
///
/// There is no `dealloc_driver` operation: it is for devices that unregister themselves, and a
/// device of a bus is unregistered by its parent.
///
/// # Invariants
///
/// The device is registered.
pub struct Registration<'a, T: Driver> {
    // Dropped in this order.
    dev: UnregisteredDevice<T>,
    _data: Pin<KBox<T::Data<'a>>>,
}

impl<'a, T: Driver> Registration<'a, T> {
    /// Registers a device, as a child of `parent`, which also does the DMA.
    ///
    /// # Errors
    ///
    /// That of `data`, of the operations that the core calls meanwhile, or `ENOMEM`.
    ///
    /// # Safety
    ///
    /// The result must be dropped before `'a` ends: neither forgotten nor leaked.
    pub unsafe fn new<E>(
        parent: &'a device::Device<device::Bound>,
        dev: UnregisteredDevice<T>,
        info: DeviceInfo,
        data: impl PinInit<T::Data<'a>, E>,
    ) -> Result<Self>
    where
        Error: From<E>,
    {
        let data: Pin<KBox<T::Data<'a>>> = KBox::pin_init(data, GFP_KERNEL)?;
        let parent = raw::device(parent);
        let raw = dev.as_raw();

        // The operations run during the registration already. The lifetime is erased here, and made
        // up again by `with_cx`.
        //
        // SAFETY: The device is not registered, so nobody else uses it.
        unsafe {
            *dev.device().data.get() = NonNull::from(Pin::get_ref(data.as_ref())).cast();
            (*raw).__bindgen_anon_1.dev.as_mut().parent = parent;
            // CAST: Small constants.
            (*raw).node_type = bindings::RDMA_NODE_IB_CA as u8;
            (*raw).node_guid = info.node_guid.0.to_be();
            (*raw).phys_port_cnt = u32::from(info.ports);
            (*raw).num_comp_vectors = c_int::from(info.comp_vectors);
        }
        // SAFETY: The device is valid. It stays so, with its parent bound, until the gate is
        // revoked, which waits for all that use it.
        unsafe { dev.device().lifeline.open() };

        // SAFETY: The device is complete and not registered, and `parent` is bound for `'a`, in
        // which it is unregistered by the safety requirements.
        let ret = unsafe { bindings::ib_register_device(raw, T::NAME.as_char_ptr(), parent) };
        if let Err(e) = to_result(ret) {
            // SAFETY: Opened above, and not revoked before.
            unsafe { dev.device().lifeline.revoke() };
            return Err(e);
        }
        // INVARIANT: Just registered.
        let this = Self { dev, _data: data };
        this.open_events();
        Ok(this)
    }

    /// Lets events through from now on.
    ///
    /// What happened at a port since the core asked for its state is lost; an event makes the core
    /// ask again.
    fn open_events(&self) {
        let events = &self.dev.device().events;
        // SAFETY: Called once, for a device that is registered, and stays so until the events are
        // revoked.
        unsafe { events.open() };
        // SAFETY: The number of ports does not change from before the registration on.
        for port in 1..=unsafe { (*self.dev.as_raw()).phys_port_cnt } {
            events.dispatch(DeviceEvent::Port(port, PortEvent::LidChange));
        }
    }
}

impl<T: Driver> Drop for Registration<'_, T> {
    fn drop(&mut self) {
        let device = self.dev.device();
        // Before, since events touch what the core is about to take down.
        //
        // SAFETY: Opened by `new`, and revoked only here.
        unsafe { device.events.revoke() };
        // SAFETY: Registered by the type invariants. After this no operation runs or will run.
        unsafe { bindings::ib_unregister_device(self.dev.as_raw()) };
        // SAFETY: Opened by `new`, and revoked only here.
        unsafe { device.lifeline.revoke() };
        // SAFETY: No operation can run.
        unsafe { *device.data.get() = NonNull::dangling() };
    }
}

/// The operations of a device as the core calls them.
pub(super) struct Shims<T: Driver>(PhantomData<T>);

impl<T: Driver> Shims<T> {
    const OPS: bindings::ib_device_ops = bindings::ib_device_ops {
        owner: this_module::<T::OwnerModule>().as_ptr(),
        // Out of tree there is no other; libraries find the device by its PCI class.
        driver_id: bindings::rdma_driver_id_RDMA_DRIVER_UNKNOWN,
        uverbs_abi_ver: T::UVERBS_ABI_VER,

        get_dev_fw_str: Some(Self::get_dev_fw_str),
        get_port_immutable: Some(Self::get_port_immutable),
        modify_port: Some(Self::modify_port),
        query_device: Some(Self::query_device),
        query_gid: Some(Self::query_gid),
        query_pkey: Some(Self::query_pkey),
        query_port: Some(Self::query_port),

        alloc_hw_port_stats: Some(Self::alloc_hw_port_stats),
        get_hw_stats: Some(Self::get_hw_stats),

        alloc_ucontext: Some(Self::alloc_ucontext),
        dealloc_ucontext: Some(Self::dealloc_ucontext),
        disassociate_ucontext: Some(Self::disassociate_ucontext),
        mmap: Some(Self::mmap),
        mmap_free: Some(Self::mmap_free),

        alloc_pd: Some(Self::alloc_pd),
        dealloc_pd: Some(Self::dealloc_pd),

        create_ah: Some(Self::create_ah),
        create_user_ah: Some(Self::create_ah),
        destroy_ah: Some(Self::destroy_ah),
        query_ah: Some(Self::query_ah),

        create_cq: Some(Self::create_cq),
        create_user_cq: Some(Self::create_user_cq),
        destroy_cq: Some(Self::destroy_cq),
        poll_cq: Some(Self::poll_cq),
        req_notify_cq: Some(Self::req_notify_cq),
        resize_user_cq: Some(Self::resize_user_cq),

        create_qp: Some(Self::create_qp),
        destroy_qp: Some(Self::destroy_qp),
        modify_qp: Some(Self::modify_qp),
        post_recv: Some(Self::post_recv),
        post_send: Some(Self::post_send),
        query_qp: Some(Self::query_qp),

        dereg_mr: Some(Self::dereg_mr),
        get_dma_mr: Some(Self::get_dma_mr),
        reg_user_mr: Some(Self::reg_user_mr),

        size_ib_ah: Ah::<T>::SIZE,
        size_ib_cq: Cq::<T>::SIZE,
        size_ib_pd: Pd::<T>::SIZE,
        size_ib_qp: Qp::<T>::SIZE,
        size_ib_ucontext: Ucontext::<T>::SIZE,

        ..pin_init::zeroed()
    };

    /// What devices have whose agents answer management datagrams.
    const MAD_OPS: bindings::ib_device_ops = bindings::ib_device_ops {
        process_mad: Some(Self::process_mad),
        ..pin_init::zeroed()
    };

    /// What devices have with shared receive queues.
    const SRQ_OPS: bindings::ib_device_ops = bindings::ib_device_ops {
        create_srq: Some(Self::create_srq),
        destroy_srq: Some(Self::destroy_srq),
        modify_srq: Some(Self::modify_srq),
        post_srq_recv: Some(Self::post_srq_recv),
        query_srq: Some(Self::query_srq),

        size_ib_srq: Srq::<T>::SIZE,

        ..pin_init::zeroed()
    };

    /// Calls `f` with the device and the data of its registration.
    ///
    /// That `f` takes any lifetime keeps it from letting anything escape, and lets the data be
    /// invariant in it.
    ///
    /// # Safety
    ///
    /// Must be called by an operation of the device `raw`, which is embedded in a [`Device<T>`].
    #[inline]
    pub(super) unsafe fn with_cx<R>(
        raw: *mut bindings::ib_device,
        f: impl for<'a> FnOnce(&Cx<'a, T>) -> R,
    ) -> R {
        // SAFETY: By the safety requirements, and operations run from within the registration to
        // within the unregistration, during which the device is valid.
        let device = unsafe { &*raw.cast::<Device<T>>() };
        // SAFETY: As before; `data` is not written meanwhile, and points to the data of the
        // registration. Lifetimes do not affect the layout, and `f` can not choose this one.
        let data = unsafe { (*device.data.get()).cast::<T::Data<'_>>().as_ref() };
        f(&Cx { device, data })
    }

    /// [`with_cx`](Self::with_cx) with a port, if it exists.
    ///
    /// # Safety
    ///
    /// As for [`with_cx`](Self::with_cx).
    pub(super) unsafe fn with_port<R>(
        raw: *mut bindings::ib_device,
        port: u32,
        f: impl for<'a> FnOnce(&Cx<'a, T>) -> Result<R>,
    ) -> Result<R> {
        // SAFETY: The number of ports does not change from before the registration on.
        if !(1..=unsafe { (*raw).phys_port_cnt }).contains(&port) {
            return Err(EINVAL);
        }
        // SAFETY: By the safety requirements.
        unsafe { Self::with_cx(raw, f) }
    }

    /// # Safety
    ///
    /// As the device operation `query_device`.
    unsafe extern "C" fn query_device(
        raw: *mut bindings::ib_device,
        attr: *mut bindings::ib_device_attr,
        udata: *mut bindings::ib_udata,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core passes null, or the udata of the running system call.
            if let Some(udata) = unsafe { Udata::from_raw(udata) } {
                udata.no_io()?;
            }
            // SAFETY: A device operation is running.
            let out = unsafe { Self::with_cx(raw, T::query_device) }?;
            // SAFETY: The core passes cleared attributes for this call to write.
            out.write_to(unsafe { &mut *attr });
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `get_dev_fw_str`.
    unsafe extern "C" fn get_dev_fw_str(raw: *mut bindings::ib_device, str: *mut c_char) {
        // SAFETY: A device operation is running.
        let text = unsafe { Self::with_cx(raw, T::fw_version) }.text();
        // SAFETY: The core passes a place of this length for this call to write.
        unsafe { str.cast::<[u8; FW_TEXT_LEN]>().write(text) };
    }

    /// # Safety
    ///
    /// As the device operation `query_port`.
    unsafe extern "C" fn query_port(
        raw: *mut bindings::ib_device,
        port: u32,
        attr: *mut bindings::ib_port_attr,
    ) -> c_int {
        from_result(|| {
            // SAFETY: A device operation is running.
            let out = unsafe { Self::with_port(raw, port, |cx| T::query_port(cx, port)) }?;
            // SAFETY: The core passes cleared attributes for this call to write.
            out.write_to(unsafe { &mut *attr });
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `get_port_immutable`.
    unsafe extern "C" fn get_port_immutable(
        raw: *mut bindings::ib_device,
        port: u32,
        immutable: *mut bindings::ib_port_immutable,
    ) -> c_int {
        from_result(|| {
            // SAFETY: A device operation is running.
            let out = unsafe { Self::with_port(raw, port, |cx| T::port_immutable(cx, port)) }?;
            // SAFETY: The core passes a cleared struct for this call to write.
            out.write_to(unsafe { &mut *immutable });
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `query_gid`.
    unsafe extern "C" fn query_gid(
        raw: *mut bindings::ib_device,
        port: u32,
        index: c_int,
        gid: *mut bindings::ib_gid,
    ) -> c_int {
        from_result(|| {
            let index = u32::try_from(index)?;
            // SAFETY: A device operation is running.
            let out = unsafe { Self::with_port(raw, port, |cx| T::query_gid(cx, port, index)) }?;
            // SAFETY: The core passes a place for this call to write.
            unsafe { gid.write(out.to_raw()) };
            Ok(0)
        })
    }

    /// # Safety
    ///
    /// As the device operation `query_pkey`.
    unsafe extern "C" fn query_pkey(
        raw: *mut bindings::ib_device,
        port: u32,
        index: u16,
        pkey: *mut u16,
    ) -> c_int {
        from_result(|| {
            // SAFETY: A device operation is running.
            let out = unsafe { Self::with_port(raw, port, |cx| T::query_pkey(cx, port, index)) }?;
            // SAFETY: The core passes a place for this call to write.
            unsafe { pkey.write(out) };
            Ok(0)
        })
    }
}
