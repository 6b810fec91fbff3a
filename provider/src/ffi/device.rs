// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Registration with libibverbs.

use super::bindings::*;
use super::{context, register};
use std::ffi::CStr;
use std::ptr::null;

/// Matches PCI functions by the class of the interface: 02 07 51.
const MODALIAS: &CStr = c"pci:v*d*sv*sd*bc02sc07i51*";

const _: () = assert!(qiao_hw::bar::pci::CLASS == 0x02_07_51);

/// Shared with C, which only reads it.
#[repr(transparent)]
struct Static<T>(T);

// SAFETY: The tables below hold pointers to other static data and are never written.
unsafe impl<T> Sync for Static<T> {}

static MATCH: Static<[verbs_match_ent; 2]> = Static([
    verbs_match_ent {
        driver_data: std::ptr::null_mut(),
        u: verbs_match_ent__bindgen_ty_1 {
            modalias: MODALIAS.as_ptr(),
        },
        vendor: 0,
        device: 0,
        // CAST: The constant is 2.
        kind: VERBS_MATCH_MODALIAS as u8,
    },
    verbs_match_ent {
        driver_data: std::ptr::null_mut(),
        u: verbs_match_ent__bindgen_ty_1 { modalias: null() },
        vendor: 0,
        device: 0,
        // CAST: The constant is 0.
        kind: VERBS_MATCH_SENTINEL as u8,
    },
]);

static OPS: Static<verbs_device_ops> = Static(verbs_device_ops {
    name: c"qiao".as_ptr(),
    match_min_abi_version: QIAO_ABI_VERSION,
    match_max_abi_version: QIAO_ABI_VERSION,
    match_table: MATCH.0.as_ptr(),
    static_providers: std::ptr::null_mut(),
    match_device: None,
    alloc_context: Some(context::alloc),
    import_context: None,
    alloc_device: Some(alloc),
    uninit_device: Some(uninit),
});

#[used]
#[link_section = ".init_array"]
static INIT: extern "C" fn() = init;

extern "C" fn init() {
    // SAFETY: The table and all it points to are static.
    unsafe { register::verbs_register_driver(&OPS.0) };
}

extern "C" fn alloc(_sysfs: *mut verbs_sysfs_dev) -> *mut verbs_device {
    // SAFETY: A verbs_device is made of integers and pointers, and libibverbs fills in a zeroed one.
    let device: verbs_device = unsafe { std::mem::zeroed() };
    Box::into_raw(Box::new(device))
}

unsafe extern "C" fn uninit(device: *mut verbs_device) {
    // SAFETY: It comes from `alloc` and libibverbs gives up the last reference.
    drop(unsafe { Box::from_raw(device) });
}
