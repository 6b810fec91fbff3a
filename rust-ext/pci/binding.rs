// SPDX-License-Identifier: GPL-2.0

//! Values that live as long as a device is bound to its driver.

use crate::{
    bindings,
    raw, //
};
use core::{
    marker::PhantomData,
    ops::Deref,
    ptr::NonNull, //
};
use kernel::{
    device::{
        Bound,
        Core, //
    },
    devres::Devres,
    pci,
    prelude::*, //
};

/// The time in which a device is bound to its driver.
///
/// Only the adapter of the driver makes one, with a lifetime that the driver can not choose, and
/// that is invariant here: what is `'bound` in the type system is so in fact, until the device's
/// managed resources have been released. This is what makes [`anchor`](Self::anchor) safe, and with
/// it registrations that must not outlive what they borrow.
///
/// # Invariants
///
/// `dev` is bound to the driver during `'bound`; so is it when its managed resources are released,
/// and whatever is borrowed for `'bound` is valid then.
#[derive(Clone, Copy)]
pub struct Binding<'bound> {
    dev: &'bound pci::Device<Bound>,
    _invariant: PhantomData<fn(&'bound ()) -> &'bound ()>,
}

impl<'bound> Binding<'bound> {
    /// # Safety
    ///
    /// - `dev` must be bound to a driver during `'bound`.
    /// - The code that gets the result must be generic over `'bound`, so that it has nothing that
    ///   is borrowed for just as long, other than by way of `dev`.
    pub(super) unsafe fn new(dev: &'bound pci::Device<Bound>) -> Self {
        // INVARIANT: By the safety requirements.
        Self {
            dev,
            _invariant: PhantomData,
        }
    }

    /// Returns the device.
    #[inline]
    pub fn device(self) -> &'bound pci::Device<Bound> {
        self.dev
    }

    /// Makes a value that is dropped with the result, and at the latest when the device is unbound,
    /// even if the result is leaked.
    ///
    /// # Errors
    ///
    /// That of `init`, `ENOMEM`.
    pub fn anchor<T, E>(self, init: impl PinInit<T, E>) -> Result<Anchored<'bound, T>>
    where
        T: Send + 'bound,
        Error: From<E>,
    {
        let value: Pin<KBox<T>> = KBox::pin_init(init, GFP_KERNEL)?;
        // SAFETY: The value stays pinned: it is only dropped in place, by `Erased`.
        let value = KBox::into_raw(unsafe { Pin::into_inner_unchecked(value) });
        // INVARIANT: From `into_raw`, with the function that drops it.
        let erased = Erased {
            value: value.cast(),
            drop: drop_value::<T>,
        };
        // On error this drops `erased`, and thereby the value.
        let devres = Devres::new::<Error>(self.dev.as_ref(), Ok(erased))?;
        Ok(Anchored {
            // SAFETY: `into_raw` never returns null.
            value: unsafe { NonNull::new_unchecked(value) },
            _devres: devres,
            _value: PhantomData,
            _invariant: PhantomData,
        })
    }
}

/// A value of [`Binding::anchor`].
///
/// # Invariants
///
/// `value` is what `_devres` keeps; it is valid and pinned until that is dropped or `'bound` ends.
pub struct Anchored<'bound, T: 'bound> {
    value: NonNull<T>,
    _devres: Devres<Erased>,
    _value: PhantomData<T>,
    _invariant: PhantomData<fn(&'bound ()) -> &'bound ()>,
}

// SAFETY: Owns a `T`.
unsafe impl<T: Send> Send for Anchored<'_, T> {}

// SAFETY: Gives out `&T`, and nothing else of `T`.
unsafe impl<T: Sync> Sync for Anchored<'_, T> {}

// Moving an `Anchored` does not move the value.
impl<T> Unpin for Anchored<'_, T> {}

impl<T> Deref for Anchored<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariants, and `self` lives.
        unsafe { self.value.as_ref() }
    }
}

/// A value whose type, and the lifetimes in it, are forgotten.
///
/// # Invariants
///
/// `value` came from [`KBox::into_raw`], is pinned, may be sent, and is dropped by `drop` once.
struct Erased {
    value: *mut c_void,
    drop: unsafe fn(*mut c_void),
}

// SAFETY: By the type invariants.
unsafe impl Send for Erased {}

impl Drop for Erased {
    fn drop(&mut self) {
        // SAFETY: By the type invariants. By those of `Binding` what the value borrows is valid, as
        // this runs before the device's managed resources are all released.
        unsafe { (self.drop)(self.value) };
    }
}

/// # Safety
///
/// `value` must be a `T` from [`KBox::into_raw`], which nobody uses any more.
unsafe fn drop_value<T>(value: *mut c_void) {
    // SAFETY: By the safety requirements; the value is dropped where it is.
    drop(unsafe { Pin::new_unchecked(KBox::<T>::from_raw(value.cast())) });
}

/// The memory space of a device answers.
pub struct Enabled<'bound>(&'bound pci::Device<Bound>);

impl<'bound> Enabled<'bound> {
    /// Makes the memory space of the device answer, until the result is dropped.
    ///
    /// # Errors
    ///
    /// That of the PCI core.
    pub fn new(dev: &pci::Device<Core<'_>>, binding: Binding<'bound>) -> Result<Self> {
        dev.enable_device_mem()?;
        Ok(Self(binding.dev))
    }
}

impl Drop for Enabled<'_> {
    fn drop(&mut self) {
        // SAFETY: The device is valid, and was enabled by `new`.
        unsafe { bindings::pci_disable_device(raw::pci_dev(self.0)) };
    }
}

/// The device may write to memory, and thereby raise interrupts.
pub struct BusMaster<'bound>(&'bound pci::Device<Bound>);

impl<'bound> BusMaster<'bound> {
    /// Lets the device access memory, until the result is dropped or [`stop`](Self::stop) is
    /// called.
    pub fn new(dev: &pci::Device<Core<'_>>, binding: Binding<'bound>) -> Self {
        dev.set_master();
        Self(binding.dev)
    }

    /// Ends all access of the device to memory.
    ///
    /// The command register is read back, which a bridge answers only after it has passed on what
    /// the device wrote before. Callable from any context.
    pub fn stop(&self) {
        let dev = raw::pci_dev(self.0);
        let mut command = 0u16;
        // SAFETY: The device is valid. The accessors of the configuration space take a raw spinlock
        // with interrupts off.
        unsafe {
            bindings::pci_clear_master(dev);
            // What it reads does not matter, nor does that a device that is gone does not answer.
            let _ =
                bindings::pci_read_config_word(dev, bindings::PCI_COMMAND as c_int, &mut command);
        }
    }
}

impl Drop for BusMaster<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}
