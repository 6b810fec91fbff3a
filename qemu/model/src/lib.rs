// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A host channel adapter of the Qiao interface in user space, attached to a stock QEMU by
//! vfio-user.

pub mod function;
pub mod hca;
pub mod mem;
pub mod pci;
pub mod shared;
pub mod transport;
pub mod vfio;
