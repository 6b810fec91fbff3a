// SPDX-License-Identifier: GPL-2.0

//! The life of an object of the device.
//!
//! What an object holds (its number, memory that the device reads and writes, doorbell slots) may
//! only be given up when the device has forgotten the object. This module is the one place that
//! sees to it.

use crate::hca::Hca;
use kernel::prelude::*;
use qiao_hw::cmd::Command;
use rdma::Lent;

/// What the driver holds for an object of the device.
pub(crate) trait Object {
    /// The command that destroys the object.
    type Destroy: Command;

    /// Returns the command that destroys the object.
    fn destroy_command(&self) -> Self::Destroy;

    /// Takes the object out of the table that events are looked up in.
    fn unpublish(&self) {}
}

/// Creates an object at the device by `command`, then calls `finish`.
///
/// `object` is what the device gets until the object is destroyed, `tables` what it gets until the
/// command is done.
///
/// # Errors
///
/// That of the command or that of `finish`. Either way the device does not have the object: it said
/// so, or it is fenced.
pub(crate) fn create<T: Object, C: Command>(
    hca: &Hca<'_>,
    command: &C,
    object: T,
    tables: impl Sized,
    finish: impl FnOnce(&T) -> Result,
) -> Result<Lent<T>> {
    hca.cmd().exec(command)?;
    drop(tables);
    let object = Lent::new(object);
    finish(&object).inspect_err(|_| destroy(hca, &object))?;
    Ok(object)
}

/// Destroys `object` at the device, which then raises no event for it.
pub(crate) fn destroy<T: Object>(hca: &Hca<'_>, object: &Lent<T>) {
    object.unpublish();
    let done = hca.cmd().exec(&object.destroy_command()).is_ok();
    // A device that is given up is fenced before anybody learns of it: it does no DMA.
    if !done && hca.is_alive() {
        object.abandon();
    }
}
