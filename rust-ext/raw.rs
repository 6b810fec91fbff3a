// SPDX-License-Identifier: GPL-2.0

//! Raw pointers of `kernel` types whose accessors are private to that crate.
//!
//! Only needed out of tree. Upstream `pub(crate)` becomes `pub` and this file goes away.

use crate::bindings;
use kernel::{
    device,
    pci,
    workqueue, //
};

/// Returns the `struct device` behind `dev`.
#[inline]
pub(crate) fn device<Ctx: device::DeviceContext>(
    dev: &device::Device<Ctx>,
) -> *mut bindings::device {
    // `device::Device` is a transparent wrapper of `Opaque<struct device>`.
    core::ptr::from_ref(dev).cast_mut().cast()
}

/// Returns the `struct pci_dev` behind `dev`.
#[inline]
pub(crate) fn pci_dev<Ctx: device::DeviceContext>(
    dev: &pci::Device<Ctx>,
) -> *mut bindings::pci_dev {
    // `pci::Device` is a transparent wrapper of `Opaque<struct pci_dev>`.
    core::ptr::from_ref(dev).cast_mut().cast()
}

/// Returns the `struct workqueue_struct` behind `queue`.
#[inline]
pub(crate) fn workqueue(queue: &workqueue::Queue) -> *mut kernel::bindings::workqueue_struct {
    // `workqueue::Queue` is a transparent wrapper of `Opaque<struct workqueue_struct>`.
    core::ptr::from_ref(queue).cast_mut().cast()
}
