// SPDX-License-Identifier: GPL-2.0

//! Bindings of the RDMA headers.
//!
//! What `bindings` of the kernel would have if its `bindings_helper.h` included `rdma/*.h`, and
//! the helpers of `rust-ext/helpers`. Types that the kernel's bindings have are those.
//!
//! Only the crate `rdma` may use this crate.

#![allow(
    clippy::all,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    improper_ctypes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

#[allow(
    dead_code,
    clippy::as_underscore,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::undocumented_unsafe_blocks
)]
#[cfg_attr(
    not(CONFIG_RUSTC_HAS_UNNECESSARY_TRANSMUTES),
    allow(
        unknown_lints,
        reason = "the next lint is newer than the oldest compiler"
    )
)]
#[allow(unnecessary_transmutes)]
mod generated {
    use kernel::ffi;
    use pin_init::{
        MaybeZeroable,
        Zeroable, //
    };

    // Names in this module take precedence over the glob import.
    pub use kernel::bindings::*;

    // `bindgen` does not do this: <https://github.com/rust-lang/rust-bindgen/issues/3196>.
    //
    // SAFETY: `__BindgenBitfieldUnit<Storage>` is a newtype around `Storage`, for which all zeroes
    // is a valid bit pattern.
    unsafe impl<Storage> Zeroable for __BindgenBitfieldUnit<Storage> where Storage: Zeroable {}

    include!(concat!(
        env!("QIAO_OBJ"),
        "/rust-ext/rdma_bindings_generated.rs"
    ));
}

pub use generated::*;
