// SPDX-License-Identifier: GPL-2.0

//! Counters of ports, as `rdma statistic` and `hw_counters/` in sysfs show them.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::Shims,
    Driver, //
};
use crate::bindings;
use core::slice;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// What a counter of a port is called.
///
/// # Invariants
///
/// The name is that of a `'static` C string.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct PortCounter(bindings::rdma_stat_desc);

impl PortCounter {
    /// Describes a counter that is always on.
    pub const fn new(name: &'static CStr) -> Self {
        // INVARIANT: By the type of the argument.
        Self(bindings::rdma_stat_desc {
            name: name.to_bytes_with_nul().as_ptr(),
            flags: 0,
            priv_: core::ptr::null(),
        })
    }
}

impl<T: Driver> Shims<T> {
    /// Number of counters of a port.
    const COUNTERS: c_int = {
        let len = T::PORT_COUNTERS.len();
        // The core takes a port without counters for a lack of memory.
        assert!(len > 0 && len <= c_int::MAX as usize);
        // CAST: As just checked.
        len as c_int
    };

    /// # Safety
    ///
    /// As the device operation `alloc_hw_port_stats`.
    pub(super) unsafe extern "C" fn alloc_hw_port_stats(
        _raw: *mut bindings::ib_device,
        _port: u32,
    ) -> *mut bindings::rdma_hw_stats {
        // SAFETY: So many descriptions are there, and by their invariants and type they stay as
        // long as the module, whose device the core gives up before.
        unsafe {
            bindings::rdma_alloc_hw_stats_struct(
                T::PORT_COUNTERS.as_ptr().cast(),
                Self::COUNTERS,
                // CAST: A small constant.
                bindings::RDMA_HW_STATS_DEFAULT_LIFESPAN as c_ulong,
            )
        }
    }

    /// # Safety
    ///
    /// As the device operation `get_hw_stats`.
    pub(super) unsafe extern "C" fn get_hw_stats(
        raw: *mut bindings::ib_device,
        stats: *mut bindings::rdma_hw_stats,
        port: u32,
        _index: c_int,
    ) -> c_int {
        from_result(|| {
            // SAFETY: The core passes what `alloc_hw_port_stats` has returned, which has so many
            // values, all of them initialised, and keeps others from it meanwhile by its lock, or
            // since the port is not visible yet.
            let values = unsafe {
                slice::from_raw_parts_mut(
                    (&raw mut (*stats).value).cast::<u64>(),
                    T::PORT_COUNTERS.len(),
                )
            };
            // SAFETY: A device operation is running.
            unsafe { Self::with_port(raw, port, |cx| T::query_port_counters(cx, port, values)) }?;
            Ok(Self::COUNTERS)
        })
    }
}
