// SPDX-License-Identifier: GPL-2.0

//! RDMA devices of PCI functions.

use super::{
    Anchored,
    Binding, //
};
use crate::{
    DeviceInfo,
    Driver,
    Registration,
    UnregisteredDevice, //
};
use kernel::prelude::*;

impl<'bound> Binding<'bound> {
    /// Registers an RDMA device as a child of the PCI function, until the result is dropped.
    ///
    /// # Errors
    ///
    /// Those of [`Registration::new`].
    pub fn register<T: Driver>(
        self,
        dev: UnregisteredDevice<T>,
        info: DeviceInfo,
        data: T::Data<'bound>,
    ) -> Result<Anchored<'bound, Registration<'bound, T>>> {
        self.anchor(pin_init::pin_init_scope(move || {
            // SAFETY: `anchor` drops it at the latest when the function is unbound, until when, by
            // the invariants of `Binding`, all that is `'bound` is valid.
            Ok::<_, Error>(unsafe {
                Registration::new(self.device().as_ref(), dev, info, Ok::<_, Error>(data))
            })
        }))
    }
}
