// SPDX-License-Identifier: GPL-2.0

//! What the driver and its library in user space exchange: `uapi/rdma/qiao-abi.h` as Rust.
//!
//! `bindgen` makes the types, and assertions that they are what a C compiler makes of the header.
//! The derives of zerocopy assert that no structure has padding.

#![allow(missing_docs, non_camel_case_types)]

use kernel::ffi;
use zerocopy_derive::{
    FromBytes,
    Immutable,
    IntoBytes,
    KnownLayout, //
};

include!(concat!(
    env!("QIAO_OBJ"),
    "/drivers/infiniband/hw/qiao/abi/qiao_abi_generated.rs"
));
