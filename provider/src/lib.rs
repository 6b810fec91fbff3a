// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The libibverbs provider for HCAs of the Qiao interface.
//!
//! libibverbs loads this library for a device whose modalias has the class of the interface. All
//! that is unsafe is in [`ffi`]: the C entry points, the memory that is shared with the device, and
//! reading what the caller's pointers point to. Queues are plain Rust on top.

mod batch;
mod cq;
mod ffi;
mod lock;
mod qp;
mod srq;
#[cfg(test)]
mod tests;
mod tracker;
mod wr;

/// An errno, positive.
pub(crate) type Errno = i32;
