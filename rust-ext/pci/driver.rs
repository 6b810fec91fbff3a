// SPDX-License-Identifier: GPL-2.0

//! PCI drivers with error recovery, resets and shutdown.

use super::Binding;
use crate::bindings;
use core::marker::PhantomData;
use kernel::{
    device::{
        Core,
        CoreInternal, //
    },
    dma::{
        Device as _,
        DmaMask, //
    },
    driver,
    pci,
    prelude::*,
    types::Opaque, //
};

/// A PCI driver.
///
/// As [`pci::Driver`], with the callbacks that it does not have. All callbacks of a device are
/// serialised by its device lock.
pub trait Driver {
    /// What the driver knows about each entry of the table of ids.
    type IdInfo: 'static;

    /// What the driver has for a device while it is bound.
    type Data<'bound>: Send + Sync + 'bound;

    /// The devices that the driver supports.
    const ID_TABLE: pci::IdTable<Self::IdInfo>;

    /// What the device can address by DMA.
    const DMA_MASK: DmaMask;

    /// Bytes of the largest piece of memory that may be mapped to the device as one.
    const DMA_MAX_SEGMENT: u32;

    /// Starts to drive a device.
    fn probe<'bound>(
        dev: &'bound pci::Device<Core<'_>>,
        binding: Binding<'bound>,
        info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound;

    /// The device is about to be unbound; then the data is dropped.
    fn unbind<'bound>(dev: &'bound pci::Device<Core<'_>>, data: Pin<&Self::Data<'bound>>);

    /// The system is about to halt or to start another kernel: no DMA after this.
    fn shutdown<'bound>(dev: &'bound pci::Device<Core<'_>>, data: Pin<&Self::Data<'bound>>);

    /// The bus has had an error at or above the device.
    fn error_detected<'bound>(
        dev: &'bound pci::Device<Core<'_>>,
        data: Pin<&Self::Data<'bound>>,
        state: ChannelState,
    ) -> Recovery;

    /// The bus has been reset after an error, and the configuration space restored.
    ///
    /// An error means that the device is lost.
    fn slot_reset<'bound>(
        dev: &'bound pci::Device<Core<'_>>,
        data: Pin<&Self::Data<'bound>>,
    ) -> Result;

    /// The function is about to be reset by request of the administrator.
    fn reset_prepare<'bound>(dev: &'bound pci::Device<Core<'_>>, data: Pin<&Self::Data<'bound>>);

    /// The function has been reset, and its configuration space restored.
    fn reset_done<'bound>(dev: &'bound pci::Device<Core<'_>>, data: Pin<&Self::Data<'bound>>);
}

/// What an error of the bus has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChannelState {
    /// The bus works.
    Normal,
    /// The bus is blocked until it is reset.
    Frozen,
    /// The device is lost.
    PermanentFailure,
}

impl ChannelState {
    fn from_raw(state: bindings::pci_channel_state_t) -> Self {
        // From `include/linux/pci.h`; bindgen does not export them, as their type is checked.
        match state {
            1 => Self::Normal,
            2 => Self::Frozen,
            _ => Self::PermanentFailure,
        }
    }
}

/// What a driver wants after an error of the bus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Recovery {
    /// To go on.
    CanRecover = bindings::pci_ers_result_PCI_ERS_RESULT_CAN_RECOVER,
    /// A reset.
    NeedReset = bindings::pci_ers_result_PCI_ERS_RESULT_NEED_RESET,
    /// Nothing: the device is lost.
    Disconnect = bindings::pci_ers_result_PCI_ERS_RESULT_DISCONNECT,
}

/// The registration of a [`Driver`]; to be used with `kernel::module_driver!`.
pub struct Adapter<T: Driver>(PhantomData<T>);

/// The [`Driver`] as the kernel crate knows it.
struct Bridge<T: Driver>(PhantomData<T>);

impl<T: Driver> pci::Driver for Bridge<T> {
    type IdInfo = T::IdInfo;
    type Data<'bound> = T::Data<'bound>;

    const ID_TABLE: pci::IdTable<Self::IdInfo> = T::ID_TABLE;

    fn probe<'bound>(
        dev: &'bound pci::Device<Core<'_>>,
        info: Option<&'bound Self::IdInfo>,
    ) -> impl PinInit<Self::Data<'bound>, Error> + 'bound {
        // SAFETY: The device is just being probed: nobody maps memory for it.
        let masked = unsafe {
            dev.dma_set_max_seg_size(T::DMA_MAX_SEGMENT);
            dev.dma_set_mask_and_coherent(T::DMA_MASK)
        };
        // SAFETY: The device is bound during `'bound`, and `T::probe` is generic over it.
        let binding = unsafe { Binding::new(dev) };
        pin_init::pin_init_scope(move || {
            masked?;
            Ok(T::probe(dev, binding, info))
        })
    }

    fn unbind<'bound>(dev: &'bound pci::Device<Core<'_>>, data: Pin<&Self::Data<'bound>>) {
        T::unbind(dev, data);
    }
}

// SAFETY: As for `pci::Adapter`, of which this has the types.
unsafe impl<T: Driver> driver::DriverLayout for Adapter<T> {
    type DriverType = bindings::pci_driver;
    type DriverData<'bound> = T::Data<'bound>;
    const DEVICE_DRIVER_OFFSET: usize = core::mem::offset_of!(bindings::pci_driver, driver);
}

// SAFETY: As for `pci::Adapter`, to which both are passed on.
unsafe impl<T: Driver> driver::RegistrationOps for Adapter<T> {
    unsafe fn register(
        drv: &Opaque<Self::DriverType>,
        name: &'static CStr,
        module: &'static ThisModule,
    ) -> Result {
        // SAFETY: The driver is not registered yet, so nobody else uses it.
        unsafe {
            (*drv.get()).shutdown = Some(Self::shutdown);
            (*drv.get()).err_handler = &Self::ERROR_HANDLERS;
        }
        // SAFETY: By the safety requirements of this function.
        unsafe { <pci::Adapter<Bridge<T>> as driver::RegistrationOps>::register(drv, name, module) }
    }

    unsafe fn unregister(drv: &Opaque<Self::DriverType>) {
        // SAFETY: By the safety requirements of this function.
        unsafe { <pci::Adapter<Bridge<T>> as driver::RegistrationOps>::unregister(drv) }
    }
}

impl<T: Driver> Adapter<T> {
    const ERROR_HANDLERS: bindings::pci_error_handlers = bindings::pci_error_handlers {
        error_detected: Some(Self::error_detected),
        slot_reset: Some(Self::slot_reset),
        reset_prepare: Some(Self::reset_prepare),
        reset_done: Some(Self::reset_done),
        ..pin_init::zeroed()
    };

    /// Calls `f` with the device and the data of its driver.
    ///
    /// That `f` takes any lifetime is what [`Binding`] asks for.
    ///
    /// # Safety
    ///
    /// Must be called from a callback of the PCI core for a device that is bound to this driver,
    /// with the device lock held.
    unsafe fn with<R>(
        dev: *mut bindings::pci_dev,
        f: impl for<'a> FnOnce(&'a pci::Device<Core<'_>>, Pin<&T::Data<'a>>) -> R,
    ) -> R {
        // SAFETY: By the safety requirements.
        let dev = unsafe { &*dev.cast::<pci::Device<CoreInternal<'_>>>() };
        // SAFETY: The device is bound, so `probe` has succeeded and left the data; it is dropped
        // after the device lock is taken for the unbinding.
        let data = unsafe { dev.as_ref().drvdata_borrow::<T::Data<'_>>() };
        f(dev, data)
    }

    /// # Safety
    ///
    /// As [`with`](Self::with).
    unsafe extern "C" fn shutdown(dev: *mut bindings::pci_dev) {
        // SAFETY: By the safety requirements.
        unsafe { Self::with(dev, |dev, data| T::shutdown(dev, data)) }
    }

    /// # Safety
    ///
    /// As [`with`](Self::with).
    unsafe extern "C" fn error_detected(
        dev: *mut bindings::pci_dev,
        state: bindings::pci_channel_state_t,
    ) -> bindings::pci_ers_result_t {
        let state = ChannelState::from_raw(state);
        // SAFETY: By the safety requirements.
        unsafe { Self::with(dev, |dev, data| T::error_detected(dev, data, state)) as u32 }
    }

    /// # Safety
    ///
    /// As [`with`](Self::with).
    unsafe extern "C" fn slot_reset(dev: *mut bindings::pci_dev) -> bindings::pci_ers_result_t {
        // SAFETY: The device is valid.
        unsafe { bindings::pci_restore_state(dev) };
        // SAFETY: By the safety requirements.
        match unsafe { Self::with(dev, |dev, data| T::slot_reset(dev, data)) } {
            Ok(()) => bindings::pci_ers_result_PCI_ERS_RESULT_RECOVERED,
            Err(_) => bindings::pci_ers_result_PCI_ERS_RESULT_DISCONNECT,
        }
    }

    /// # Safety
    ///
    /// As [`with`](Self::with).
    unsafe extern "C" fn reset_prepare(dev: *mut bindings::pci_dev) {
        // SAFETY: By the safety requirements.
        unsafe { Self::with(dev, |dev, data| T::reset_prepare(dev, data)) }
    }

    /// # Safety
    ///
    /// As [`with`](Self::with).
    unsafe extern "C" fn reset_done(dev: *mut bindings::pci_dev) {
        // SAFETY: By the safety requirements.
        unsafe { Self::with(dev, |dev, data| T::reset_done(dev, data)) }
    }
}
