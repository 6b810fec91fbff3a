// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Address handles.
//!
//! Requests carry the address, so that the device has no handles. The kernel has: it checks the
//! address, and keeps the protection domain from being freed.

use super::bindings::*;
use super::object::Object;
use super::{check, pointer, status};
use qiao_hw::qp::{path_flag, Path};
use std::ffi::c_int;
use std::mem::{size_of, zeroed};

type Ah = Object<ibv_ah, Path>;

/// Returns an address that the kernel has checked as requests carry it.
fn to_path(attr: &ibv_ah_attr) -> Path {
    let mut path = Path::zeroed();
    path.dlid.set(attr.dlid.into());
    path.sl = attr.sl;
    path.src_path_bits = attr.src_path_bits;
    path.static_rate = attr.static_rate;
    path.port = attr.port_num;
    if attr.is_global != 0 {
        let grh = &attr.grh;
        path.flags = path_flag::GRH;
        path.flow_label.set(grh.flow_label);
        path.sgid_index.set(grh.sgid_index.into());
        path.hop_limit = grh.hop_limit;
        path.traffic_class = grh.traffic_class;
        // SAFETY: Both members of the union are the same sixteen bytes.
        path.dgid = unsafe { grh.dgid.raw };
    }
    path
}

pub(super) unsafe extern "C" fn create(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah {
    pointer(Ah::create(|base| {
        // SAFETY: Plain integers.
        let mut response: ib_uverbs_create_ah_resp = unsafe { zeroed() };
        // SAFETY: `pd` and `attr` are libibverbs', `base` is the new object's, the size is that of the
        // structure.
        check(unsafe {
            ibv_cmd_create_ah(
                pd,
                base,
                attr,
                &mut response,
                size_of::<ib_uverbs_create_ah_resp>(),
            )
        })?;
        // SAFETY: As above.
        Ok(to_path(unsafe { &*attr }))
    }))
}

pub(super) unsafe extern "C" fn destroy(ah: *mut ibv_ah) -> c_int {
    // SAFETY: `ah` is an object of `create`.
    let result = check(unsafe { ibv_cmd_destroy_ah(ah) });
    if result.is_ok() {
        // SAFETY: The kernel's object is gone, and libibverbs gives up this one.
        unsafe { Ah::destroy(ah) };
    }
    status(result)
}

/// Returns the address of a handle.
///
/// # Safety
///
/// `ah` must be one that [`create`] returned, not destroyed.
pub(super) unsafe fn path(ah: *mut ibv_ah) -> Path {
    // SAFETY: By the safety requirements.
    *unsafe { Ah::inner(ah) }
}
