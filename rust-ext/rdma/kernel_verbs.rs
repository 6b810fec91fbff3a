// SPDX-License-Identifier: GPL-2.0

//! Verbs of consumers in the kernel, which have no abstraction yet.
//!
//! The core offers a device to consumers in the kernel only if it has all mandatory verbs, and
//! some of these are for the kernel alone. They say that they are not supported; hence no queue
//! that they could be called on exists.

use super::{
    device::Shims,
    Driver, //
};
use crate::bindings;
use kernel::prelude::*;

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operation `create_cq`, for a consumer in the kernel.
    pub(super) unsafe extern "C" fn create_cq(
        _cq: *mut bindings::ib_cq,
        _attr: *const bindings::ib_cq_init_attr,
        _bundle: *mut bindings::uverbs_attr_bundle,
    ) -> c_int {
        EOPNOTSUPP.to_errno()
    }

    /// # Safety
    ///
    /// As the device operation `poll_cq`.
    pub(super) unsafe extern "C" fn poll_cq(
        _cq: *mut bindings::ib_cq,
        _num_entries: c_int,
        _wc: *mut bindings::ib_wc,
    ) -> c_int {
        EOPNOTSUPP.to_errno()
    }

    /// # Safety
    ///
    /// As the device operation `req_notify_cq`.
    pub(super) unsafe extern "C" fn req_notify_cq(
        _cq: *mut bindings::ib_cq,
        _flags: bindings::ib_cq_notify_flags,
    ) -> c_int {
        EOPNOTSUPP.to_errno()
    }

    /// # Safety
    ///
    /// As the device operation `post_send`.
    pub(super) unsafe extern "C" fn post_send(
        _qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_send_wr,
        bad_wr: *mut *const bindings::ib_send_wr,
    ) -> c_int {
        // SAFETY: The caller passes a place for the request that failed.
        unsafe { *bad_wr = wr };
        EOPNOTSUPP.to_errno()
    }

    /// # Safety
    ///
    /// As the device operation `post_recv`.
    pub(super) unsafe extern "C" fn post_recv(
        _qp: *mut bindings::ib_qp,
        wr: *const bindings::ib_recv_wr,
        bad_wr: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: The caller passes a place for the request that failed.
        unsafe { *bad_wr = wr };
        EOPNOTSUPP.to_errno()
    }

    /// # Safety
    ///
    /// As the device operation `get_dma_mr`.
    pub(super) unsafe extern "C" fn get_dma_mr(
        _pd: *mut bindings::ib_pd,
        _access: c_int,
    ) -> *mut bindings::ib_mr {
        EOPNOTSUPP.to_ptr()
    }
}
