// SPDX-License-Identifier: GPL-2.0

//! Safe Rust over the RDMA core, and what the `kernel` crate lacks for a host channel adapter.
//!
//! The folder `rdma/` is the RDMA core; it becomes a crate of its own upstream, since `ib_core` is
//! a module in every distribution and the `kernel` crate can not call into modules. The other
//! folders are named after the modules of `kernel` that they extend.

use rdma_bindings as bindings;

mod raw;
mod rdma {
    mod event;
    mod gate;

    pub use self::event::{
        CqEvent,
        CqHandle,
        DeviceEvent,
        DeviceHandle,
        EventCx,
        PortEvent,
        QpEvent,
        QpHandle, //
    };
}

pub use self::rdma::*;

// What `pr_*!` of this crate prints in front.
#[allow(dead_code)]
const __LOG_PREFIX: &[u8] = b"rdma\0";
