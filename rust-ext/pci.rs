// SPDX-License-Identifier: GPL-2.0

//! PCI: what [`kernel::pci`] lacks.
//!
//! C header: [`include/linux/pci.h`](srctree/include/linux/pci.h)

mod binding;
mod driver;
mod irq;
mod registration;

pub use self::{
    binding::{
        Anchored,
        Binding,
        BusMaster,
        Enabled, //
    },
    driver::{
        Adapter,
        ChannelState,
        Driver,
        Recovery, //
    },
    irq::{
        Irq,
        Vectors, //
    }, //
};
