// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Protection domains and memory regions.

use super::bindings::*;
use super::object::Object;
use super::{check, pointer, status};
use std::ffi::{c_int, c_void};
use std::mem::{size_of, zeroed};

type Pd = Object<ibv_pd, ()>;
type Mr = Object<verbs_mr, ()>;

#[repr(C)]
struct AllocResponse {
    core: ib_uverbs_alloc_pd_resp,
    driver: qiao_alloc_pd_resp,
}

pub(super) unsafe extern "C" fn alloc(context: *mut ibv_context) -> *mut ibv_pd {
    pointer(Pd::create(|base| {
        // SAFETY: Plain integers.
        let (mut command, mut response): (ibv_alloc_pd, AllocResponse) =
            unsafe { (zeroed(), zeroed()) };
        // SAFETY: The context is libibverbs', `base` is the new object's, the sizes are those of the
        // structures.
        check(unsafe {
            ibv_cmd_alloc_pd(
                context,
                base,
                &mut command,
                size_of::<ibv_alloc_pd>(),
                (&raw mut response).cast(),
                size_of::<AllocResponse>(),
            )
        })
    }))
}

pub(super) unsafe extern "C" fn dealloc(pd: *mut ibv_pd) -> c_int {
    // SAFETY: `pd` is an object of `alloc`.
    let result = check(unsafe { ibv_cmd_dealloc_pd(pd) });
    if result.is_ok() {
        // SAFETY: The kernel's object is gone, and libibverbs gives up this one.
        unsafe { Pd::destroy(pd) };
    }
    status(result)
}

pub(super) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    hca_va: u64,
    access: c_int,
) -> *mut ibv_mr {
    let mr = Mr::create(|base| {
        // SAFETY: Plain integers.
        let (mut command, mut response): (ibv_reg_mr, ib_uverbs_reg_mr_resp) =
            unsafe { (zeroed(), zeroed()) };
        // SAFETY: `pd` is libibverbs', `base` is the new object's, the sizes are those of the structures.
        // The kernel checks the range.
        check(unsafe {
            ibv_cmd_reg_mr(
                pd,
                addr,
                length,
                hca_va,
                access,
                base,
                &mut command,
                size_of::<ibv_reg_mr>(),
                &mut response,
                size_of::<ib_uverbs_reg_mr_resp>(),
            )
        })
    });
    // The ibv_mr is the first member of the verbs_mr.
    const _: () = assert!(std::mem::offset_of!(verbs_mr, ibv_mr) == 0);
    pointer(mr).cast()
}

pub(super) unsafe extern "C" fn dereg_mr(mr: *mut verbs_mr) -> c_int {
    // SAFETY: `mr` is an object of `reg_mr`.
    let result = check(unsafe { ibv_cmd_dereg_mr(mr) });
    if result.is_ok() {
        // SAFETY: The kernel's object is gone, and libibverbs gives up this one.
        unsafe { Mr::destroy(mr) };
    }
    status(result)
}
