// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A Qiao HCA in user space, attached to a stock QEMU by vfio-user.

pub mod mem;
pub mod pci;
pub mod vfio;
