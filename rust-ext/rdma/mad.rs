// SPDX-License-Identifier: GPL-2.0

//! Management datagrams, and changes of a port.
//!
//! C headers: [`include/rdma/ib_mad.h`](srctree/include/rdma/ib_mad.h),
//! [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::Shims,
    Driver, //
};
use crate::bindings;
use kernel::{
    error::from_result,
    prelude::*, //
};

/// A management datagram (IBTA vol. 1, 13.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mad(pub [u8; Self::SIZE]);

impl Mad {
    /// Bytes of a datagram.
    pub const SIZE: usize = bindings::IB_MGMT_MAD_SIZE as usize;

    // CAST: All of these are bytes of the header.

    /// Class of subnet management, routed by LID.
    pub const CLASS_SUBN_LID_ROUTED: u8 = bindings::IB_MGMT_CLASS_SUBN_LID_ROUTED as u8;
    /// Class of subnet management with a directed route.
    pub const CLASS_SUBN_DIRECTED: u8 = bindings::IB_MGMT_CLASS_SUBN_DIRECTED_ROUTE as u8;
    /// Class of performance management.
    pub const CLASS_PERFORMANCE: u8 = bindings::IB_MGMT_CLASS_PERF_MGMT as u8;
    /// Method that reads an attribute.
    pub const METHOD_GET: u8 = bindings::IB_MGMT_METHOD_GET as u8;
    /// Method that sets an attribute.
    pub const METHOD_SET: u8 = bindings::IB_MGMT_METHOD_SET as u8;

    /// Returns the class.
    pub fn class(&self) -> u8 {
        self.0[1]
    }

    /// Returns the method.
    pub fn method(&self) -> u8 {
        self.0[3]
    }

    /// Returns the attribute.
    pub fn attribute(&self) -> u16 {
        u16::from_be_bytes([self.0[16], self.0[17]])
    }

    /// Marks a datagram with a directed route as one on its way back (IBTA vol. 1, 14.2.1.2).
    pub fn set_returning(&mut self) {
        self.0[4] |= 0x80;
    }
}

/// A datagram that an agent of the device is to answer.
#[derive(Clone, Copy, Debug)]
pub struct MadRequest {
    /// The datagram.
    pub mad: Mad,
    /// LID of the sender; [`None`] if the host itself asks.
    pub slid: Option<u32>,
    /// Whether the host asks, so that no M_Key is needed.
    pub ignore_mkey: bool,
    /// Whether the host asks, so that no B_Key is needed.
    pub ignore_bkey: bool,
}

/// A change of a port (IBTA vol. 1, 11.2.1.4).
#[derive(Clone, Copy, Debug)]
pub struct PortModify {
    /// Bits of PortInfo.CapabilityMask to set.
    pub set_caps: u32,
    /// Bits of PortInfo.CapabilityMask to clear.
    pub clear_caps: u32,
    /// Whether the counter of Q_Key violations starts at zero again.
    pub reset_qkey_violations: bool,
}

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operation `process_mad`.
    pub(super) unsafe extern "C" fn process_mad(
        raw: *mut bindings::ib_device,
        flags: c_int,
        port: u32,
        in_wc: *const bindings::ib_wc,
        _in_grh: *const bindings::ib_grh,
        in_mad: *const bindings::ib_mad,
        out_mad: *mut bindings::ib_mad,
        _out_mad_size: *mut usize,
        _out_mad_pkey_index: *mut u16,
    ) -> c_int {
        // CAST: A set of flags.
        let flags = flags as u32;
        let request = MadRequest {
            // SAFETY: The core passes a datagram of this size.
            mad: Mad(unsafe { in_mad.cast::<[u8; Mad::SIZE]>().read() }),
            // SAFETY: The core passes null, or how the datagram was received.
            slid: unsafe { in_wc.as_ref() }.map(|wc| wc.slid),
            ignore_mkey: flags & bindings::ib_process_mad_flags_IB_MAD_IGNORE_MKEY != 0,
            ignore_bkey: flags & bindings::ib_process_mad_flags_IB_MAD_IGNORE_BKEY != 0,
        };
        // SAFETY: A device operation is running.
        let answer = unsafe { Self::with_port(raw, port, |cx| T::process_mad(cx, port, &request)) };
        let result = match answer {
            Ok(Some(answer)) => {
                // SAFETY: The core passes a place for a datagram of this size.
                unsafe { out_mad.cast::<[u8; Mad::SIZE]>().write(answer.0) };
                bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS
                    | bindings::ib_mad_result_IB_MAD_RESULT_REPLY
            }
            Ok(None) => bindings::ib_mad_result_IB_MAD_RESULT_SUCCESS,
            Err(_) => bindings::ib_mad_result_IB_MAD_RESULT_FAILURE,
        };
        // CAST: A small set of flags.
        result as c_int
    }

    /// # Safety
    ///
    /// As the device operation `modify_port`.
    pub(super) unsafe extern "C" fn modify_port(
        raw: *mut bindings::ib_device,
        port: u32,
        mask: c_int,
        modify: *mut bindings::ib_port_modify,
    ) -> c_int {
        from_result(|| {
            const QKEY: u32 = bindings::ib_port_modify_flags_IB_PORT_RESET_QKEY_CNTR;

            // CAST: A set of flags.
            let mask = mask as u32;
            if mask & !QKEY != 0 {
                return Err(EOPNOTSUPP);
            }
            // SAFETY: The core passes a valid change, which does not change meanwhile.
            let modify = unsafe { &*modify };
            let modify = PortModify {
                set_caps: modify.set_port_cap_mask,
                clear_caps: modify.clr_port_cap_mask,
                reset_qkey_violations: mask & QKEY != 0,
            };
            // SAFETY: A device operation is running.
            unsafe { Self::with_port(raw, port, |cx| T::modify_port(cx, port, &modify)) }?;
            Ok(0)
        })
    }
}
