// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A host channel adapter of the Qiao interface in user space, attached to a stock QEMU by
//! vfio-user.
//!
//! Each HCA has a thread that serves its PCI [`function`] over [`vfio`]; one thread runs the
//! [`engine`], which is all [`hca`]s and the links between them. What they share is in [`shared`].

pub mod backoff;
pub mod config;
pub mod control;
pub mod coverage;
pub mod engine;
pub mod fabric;
pub mod function;
pub mod hca;
pub mod mem;
pub mod model;
pub mod pci;
pub mod shared;
pub mod topology;
pub mod transport;
pub mod vfio;
