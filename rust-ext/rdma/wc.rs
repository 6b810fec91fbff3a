// SPDX-License-Identifier: GPL-2.0

//! Completions for consumers in the kernel.
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::Shims,
    Cq,
    CqOps,
    Driver,
    QpHandle, //
};
use crate::bindings;
use core::mem::MaybeUninit;
use kernel::prelude::*;

/// How a request ended (`enum ib_wc_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WcStatus {
    /// Done.
    Success = bindings::ib_wc_status_IB_WC_SUCCESS,
    /// The data did not fit, or a message is too long.
    LocalLength = bindings::ib_wc_status_IB_WC_LOC_LEN_ERR,
    /// The request is malformed.
    LocalQpOperation = bindings::ib_wc_status_IB_WC_LOC_QP_OP_ERR,
    /// A local key, address or right is wrong.
    LocalProtection = bindings::ib_wc_status_IB_WC_LOC_PROT_ERR,
    /// The request was flushed because its queue pair is in error.
    WrFlush = bindings::ib_wc_status_IB_WC_WR_FLUSH_ERR,
    /// Memory window bind failed.
    MwBind = bindings::ib_wc_status_IB_WC_MW_BIND_ERR,
    /// The responder sent something unexpected.
    BadResponse = bindings::ib_wc_status_IB_WC_BAD_RESP_ERR,
    /// The rights of the receive buffer were violated.
    LocalAccess = bindings::ib_wc_status_IB_WC_LOC_ACCESS_ERR,
    /// The responder refused the request as invalid.
    RemoteInvalidRequest = bindings::ib_wc_status_IB_WC_REM_INV_REQ_ERR,
    /// The responder found a remote key, address or right wrong.
    RemoteAccess = bindings::ib_wc_status_IB_WC_REM_ACCESS_ERR,
    /// The responder failed.
    RemoteOperation = bindings::ib_wc_status_IB_WC_REM_OP_ERR,
    /// No answer after all retries.
    RetryExceeded = bindings::ib_wc_status_IB_WC_RETRY_EXC_ERR,
    /// The receiver was not ready after all retries.
    RnrRetryExceeded = bindings::ib_wc_status_IB_WC_RNR_RETRY_EXC_ERR,
    /// Aborted by the responder.
    RemoteAborted = bindings::ib_wc_status_IB_WC_REM_ABORT_ERR,
    /// The device failed.
    Fatal = bindings::ib_wc_status_IB_WC_FATAL_ERR,
    /// A response took too long.
    ResponseTimeout = bindings::ib_wc_status_IB_WC_RESP_TIMEOUT_ERR,
    /// Any other error.
    General = bindings::ib_wc_status_IB_WC_GENERAL_ERR,
}

/// What completed (`enum ib_wc_opcode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WcOpcode {
    /// Send of any kind.
    Send = bindings::ib_wc_opcode_IB_WC_SEND,
    /// RDMA write of any kind.
    RdmaWrite = bindings::ib_wc_opcode_IB_WC_RDMA_WRITE,
    /// RDMA read.
    RdmaRead = bindings::ib_wc_opcode_IB_WC_RDMA_READ,
    /// Compare-and-swap.
    CompareSwap = bindings::ib_wc_opcode_IB_WC_COMP_SWAP,
    /// Fetch-and-add.
    FetchAdd = bindings::ib_wc_opcode_IB_WC_FETCH_ADD,
    /// Receive of a send.
    Recv = bindings::ib_wc_opcode_IB_WC_RECV,
    /// Receive that an RDMA write with immediate data consumed.
    RecvRdmaWithImm = bindings::ib_wc_opcode_IB_WC_RECV_RDMA_WITH_IMM,
}

/// What a datagram says of its sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WcSource {
    /// Number of the sending queue pair.
    pub qpn: u32,
    /// LID of the sender.
    pub lid: u32,
    /// Service level.
    pub sl: u8,
    /// Path bits of the LID that it was sent to.
    pub path_bits: u8,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// Whether a global route header stands before the data.
    pub grh: bool,
}

/// A completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wc {
    /// What the consumer knows the request by.
    pub id: u64,
    /// How it ended.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// A vendor's number for a failed request.
    pub vendor_error: u32,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data in wire order.
    pub imm: Option<[u8; 4]>,
    /// Of a datagram.
    pub source: WcSource,
}

/// The place for the completions of one call.
///
/// # Invariants
///
/// The first `len` of `places` are initialised.
pub struct Wcs<'a> {
    places: &'a mut [MaybeUninit<bindings::ib_wc>],
    len: usize,
}

impl Wcs<'_> {
    /// Returns how many completions have room.
    pub fn room(&self) -> usize {
        self.places.len() - self.len
    }

    /// Adds a completion of the queue pair of `qp`, unless that is gone or there is no room.
    pub fn push(&mut self, qp: &QpHandle, wc: &Wc) {
        let Some(place) = self.places.get_mut(self.len) else {
            return;
        };
        let Some(raw) = qp.with_raw(|qp| wc.to_raw(qp)) else {
            return;
        };
        place.write(raw);
        // INVARIANT: Now one more is initialised.
        self.len += 1;
    }
}

impl Wc {
    /// Makes a completion that says no more than this.
    pub fn new(id: u64, status: WcStatus, opcode: WcOpcode) -> Self {
        Self {
            id,
            status,
            opcode,
            vendor_error: 0,
            byte_len: 0,
            imm: None,
            source: WcSource::default(),
        }
    }

    fn to_raw(self, qp: *mut bindings::ib_qp) -> bindings::ib_wc {
        let mut raw = bindings::ib_wc::default();
        raw.__bindgen_anon_1.wr_id = self.id;
        raw.status = self.status as u32;
        raw.opcode = self.opcode as u32;
        raw.vendor_err = self.vendor_error;
        raw.byte_len = self.byte_len;
        raw.qp = qp;
        raw.src_qp = self.source.qpn;
        raw.slid = self.source.lid;
        raw.sl = self.source.sl;
        raw.dlid_path_bits = self.source.path_bits;
        raw.pkey_index = self.source.pkey_index;
        let mut flags = 0;
        if let Some(imm) = self.imm {
            raw.ex.imm_data = u32::from_ne_bytes(imm);
            flags |= bindings::ib_wc_flags_IB_WC_WITH_IMM;
        }
        if self.source.grh {
            flags |= bindings::ib_wc_flags_IB_WC_GRH;
        }
        // CAST: A small set of flags.
        raw.wc_flags = flags as c_int;
        raw
    }
}

/// What a consumer asks to be notified of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next completion that is solicited, or that is an error.
    Solicited,
    /// The next completion.
    Next,
}

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operation `poll_cq`.
    pub(super) unsafe extern "C" fn poll_cq(
        raw: *mut bindings::ib_cq,
        num_entries: c_int,
        wc: *mut bindings::ib_wc,
    ) -> c_int {
        let Ok(count) = usize::try_from(num_entries) else {
            return EINVAL.to_errno();
        };
        if count == 0 {
            return 0;
        }
        // SAFETY: The consumer passes a queue of the kernel, which it keeps during the call.
        let device = unsafe { (*raw).device };
        // SAFETY: The consumer passes what `create_cq` made.
        let cq = unsafe { Cq::<T>::from_raw(raw) };
        // INVARIANT: None is.
        let mut wcs = Wcs {
            // SAFETY: The consumer passes a place for as many completions, for this call to write.
            places: unsafe { core::slice::from_raw_parts_mut(wc.cast(), count) },
            len: 0,
        };
        // SAFETY: A device operation is running.
        unsafe { Self::with_cx(device, |cx| T::Cq::poll(cq, cx, &mut wcs)) };
        // CAST: Not more than `num_entries`.
        wcs.len as c_int
    }

    /// # Safety
    ///
    /// As the device operation `req_notify_cq`.
    pub(super) unsafe extern "C" fn req_notify_cq(
        raw: *mut bindings::ib_cq,
        flags: bindings::ib_cq_notify_flags,
    ) -> c_int {
        let what = match flags & bindings::ib_cq_notify_flags_IB_CQ_SOLICITED_MASK {
            bindings::ib_cq_notify_flags_IB_CQ_SOLICITED => Notify::Solicited,
            _ => Notify::Next,
        };
        // SAFETY: The consumer passes a queue of the kernel, which it keeps during the call.
        let device = unsafe { (*raw).device };
        // SAFETY: The consumer passes what `create_cq` made.
        let cq = unsafe { Cq::<T>::from_raw(raw) };
        // SAFETY: A device operation is running.
        let waiting = unsafe { Self::with_cx(device, |cx| T::Cq::notify(cq, cx, what)) };
        let report = flags & bindings::ib_cq_notify_flags_IB_CQ_REPORT_MISSED_EVENTS != 0;
        c_int::from(waiting && report)
    }
}
