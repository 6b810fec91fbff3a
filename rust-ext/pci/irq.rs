// SPDX-License-Identifier: GPL-2.0

//! MSI-X vectors, spread over the CPUs near the device.
//!
//! C headers: [`include/linux/pci.h`](srctree/include/linux/pci.h),
//! [`include/linux/interrupt.h`](srctree/include/linux/interrupt.h)

use super::{
    Anchored,
    Binding, //
};
use crate::{
    bindings,
    raw, //
};
use core::marker::PhantomPinned;
use kernel::{
    error::to_result,
    irq::Handler,
    prelude::*,
    str::CString,
    sync::Arc, //
};

/// The MSI-X vectors of a device.
///
/// Unlike [`kernel::pci::IrqVectorRegistration`] this is counted: each [`Irq`] keeps it.
///
/// # Invariants
///
/// The device has `count` vectors, which this owns.
pub struct Vectors<'bound> {
    binding: Binding<'bound>,
    count: u32,
}

impl<'bound> Vectors<'bound> {
    /// Allocates `min` to `max` vectors.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the device or the system has less than `min`, or that of the PCI core.
    pub fn new(binding: Binding<'bound>, min: u32, max: u32) -> Result<Arc<Self>> {
        // SAFETY: The device is valid and bound; the core checks the rest.
        let count = unsafe {
            bindings::pci_alloc_irq_vectors(
                raw::pci_dev(binding.device()),
                min,
                max,
                bindings::PCI_IRQ_MSIX,
            )
        };
        to_result(count)?;
        // INVARIANT: Just allocated. Dropping this on error frees them.
        let this = Self {
            binding,
            count: u32::try_from(count)?,
        };
        Ok(Arc::new(this, GFP_KERNEL)?)
    }

    /// Returns how many there are, 1 or more.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Lets `handler` handle the interrupts of the vector `index`, until the result is dropped.
    ///
    /// `name` is what `/proc/interrupts` shows. With `spread`, vectors of different numbers prefer
    /// different CPUs, the nearest first; the administrator may move them.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there is no such vector, `EBUSY` if it has a handler, `ENOMEM`.
    pub fn request<H, E>(
        self: &Arc<Self>,
        index: u32,
        name: CString,
        spread: Option<u32>,
        handler: impl PinInit<H, E>,
    ) -> Result<Anchored<'bound, Irq<'bound, H>>>
    where
        H: Handler + Send + 'bound,
        Error: From<E>,
    {
        if index >= self.count {
            return Err(EINVAL);
        }
        // SAFETY: The device is valid and has this vector.
        let irq = unsafe { bindings::pci_irq_vector(raw::pci_dev(self.binding.device()), index) };
        let irq = u32::try_from(irq)?;
        let irq: Anchored<'bound, Irq<'bound, H>> =
            self.binding
                .anchor::<_, Error>(Irq::new(irq, name, self.clone(), handler))?;
        if let Some(n) = spread {
            irq.prefer(n);
        }
        Ok(irq)
    }
}

impl Drop for Vectors<'_> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants; handlers keep `self`, so there are none.
        unsafe { bindings::pci_free_irq_vectors(raw::pci_dev(self.binding.device())) };
    }
}

/// A handler of the interrupts of one vector.
///
/// Dropping it waits until the handler does not run.
///
/// # Invariants
///
/// `irq` is a vector of `vectors`, and has a handler whose cookie is the address of this.
#[pin_data(PinnedDrop)]
pub struct Irq<'bound, H: Handler> {
    irq: u32,
    #[pin]
    handler: H,
    name: CString,
    vectors: Arc<Vectors<'bound>>,
    #[pin]
    _pin: PhantomPinned,
}

impl<'bound, H: Handler> Irq<'bound, H> {
    fn new<E>(
        irq: u32,
        name: CString,
        vectors: Arc<Vectors<'bound>>,
        handler: impl PinInit<H, E>,
    ) -> impl PinInit<Self, Error>
    where
        Error: From<E>,
    {
        // INVARIANT: The last step requests the interrupt with this cookie.
        try_pin_init!(&this in Self {
            irq,
            handler <- handler,
            name,
            vectors,
            _pin: PhantomPinned,
            _: {
                // SAFETY: The function takes this cookie, which is complete, pinned, and valid
                // until `drop` has freed the interrupt; so is the name.
                to_result(unsafe {
                    bindings::request_irq(
                        *irq,
                        Some(handle_irq::<H>),
                        0,
                        name.as_char_ptr(),
                        this.as_ptr().cast(),
                    )
                })?;
            },
        })
    }

    /// Returns the handler.
    pub fn handler(&self) -> &H {
        &self.handler
    }

    /// Waits until the handler, if it runs on another CPU, has returned. May sleep.
    pub fn synchronize(&self) {
        // SAFETY: By the type invariants the interrupt has a handler.
        unsafe { bindings::synchronize_irq(self.irq) };
    }

    /// Makes the `n`th nearest CPU the place of this interrupt, as far as the core follows.
    fn prefer(&self, n: u32) {
        let dev = self.vectors.binding.device().as_ref();
        // SAFETY: The device is valid; any number has its CPU; masks of single CPUs are static; and
        // the interrupt is valid by the type invariants. It works as well where it does not fire.
        unsafe {
            let node = bindings::dev_to_node(raw::device(dev));
            let cpus = bindings::cpumask_of(bindings::cpumask_local_spread(n, node));
            let _ = bindings::irq_set_affinity_and_hint(self.irq, cpus);
        }
    }
}

#[pinned_drop]
impl<H: Handler> PinnedDrop for Irq<'_, H> {
    fn drop(self: Pin<&mut Self>) {
        let cookie = core::ptr::from_ref(&*self).cast_mut().cast();
        // SAFETY: By the type invariants. The hint has to go first. No handler runs after this.
        unsafe {
            let _ = bindings::irq_update_affinity_hint(self.irq, core::ptr::null());
            bindings::free_irq(self.irq, cookie);
        }
    }
}

/// # Safety
///
/// `cookie` must be that of an [`Irq<H>`] whose interrupt is not freed.
unsafe extern "C" fn handle_irq<H: Handler>(
    _irq: c_int,
    cookie: *mut c_void,
) -> bindings::irqreturn_t {
    // SAFETY: By the safety requirements; lifetimes do not affect the layout.
    let this = unsafe { &*cookie.cast::<Irq<'_, H>>() };
    // CAST: The return values of handlers are the C ones.
    bindings::irqreturn_t(this.handler.handle() as c_uint)
}
