// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The boundary to C: the provider interface of libibverbs, and memory shared with the device.
//!
//! libibverbs guarantees, and every entry point here relies on, that a pointer to an object that
//! it passes is one that this provider returned and that has not been destroyed, and that pointers
//! to requests and attributes are valid for the call (ibv_* manual pages).
#![allow(unsafe_code)]

mod ah;
mod bindings;
mod context;
mod cq;
mod cq_ex;
mod device;
pub(crate) mod memory;
mod object;
mod pd;
mod qp;
mod qp_ex;
mod register {
    include!(concat!(env!("OUT_DIR"), "/register.rs"));
}
mod srq;
mod wr;

use crate::Errno;

/// Returns the error of the last libibverbs call that reports by errno.
fn last_errno() -> Errno {
    std::io::Error::last_os_error()
        .raw_os_error()
        .unwrap_or(libc::EIO)
}

/// Sets errno, as verbs that return a pointer report errors.
fn set_errno(errno: Errno) {
    // SAFETY: The location is valid for the calling thread.
    unsafe { *libc::__errno_location() = errno };
}

/// Turns the result of a verb that returns a pointer into C.
fn pointer<T>(result: Result<*mut T, Errno>) -> *mut T {
    result.unwrap_or_else(|errno| {
        set_errno(errno);
        std::ptr::null_mut()
    })
}

/// Turns the result of a verb that returns an errno into C.
fn status(result: Result<(), Errno>) -> i32 {
    result.err().unwrap_or(0)
}

/// Turns what a libibverbs command returns, zero or an errno, into a result.
fn check(ret: i32) -> Result<(), Errno> {
    if ret != 0 {
        return Err(ret.abs());
    }
    Ok(())
}
