// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Entry points of completions that are read field by field (ibv_create_cq_ex(3)).
//!
//! A program calls the functions that read only between ibv_start_poll() and ibv_end_poll(), from one
//! thread, and only those that it asked for when it created the queue.

use super::bindings::*;
use super::cq::{extended, to_wc_opcode, wc_flags};
use crate::wr::Completion;
use crate::Errno;
use qiao_hw::cqe::Cqe;
use std::ffi::c_int;

/// Fields that completions of the device have.
const FIELDS: u64 = IBV_WC_STANDARD_FLAGS as u64;

/// Checks that completions have all that a program asks for.
///
/// A program that promises to use the queue from one thread gets no less than others: it never waits
/// for the lock.
///
/// # Errors
///
/// EOPNOTSUPP.
pub(super) fn check(attr: &ibv_cq_init_attr_ex) -> Result<(), Errno> {
    let flags = if attr.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS != 0 {
        attr.flags
    } else {
        0
    };
    if attr.wc_flags & !FIELDS != 0
        || attr.comp_mask & !IBV_CQ_INIT_ATTR_MASK_FLAGS != 0
        || flags & !IBV_CREATE_CQ_ATTR_SINGLE_THREADED != 0
    {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(())
}

/// Fills in the entry points of the fields that were asked for, and of those that each has.
pub(super) fn fill(cq: &mut ibv_cq_ex, asked: u64) {
    let has = |flag: ibv_create_cq_wc_flags| asked & u64::from(flag) != 0;
    cq.start_poll = Some(start);
    cq.next_poll = Some(next);
    cq.end_poll = Some(end);
    cq.read_opcode = Some(opcode);
    cq.read_vendor_err = Some(vendor_error);
    cq.read_wc_flags = Some(flags);
    cq.read_byte_len = has(IBV_WC_EX_WITH_BYTE_LEN).then_some(byte_len);
    cq.read_imm_data = has(IBV_WC_EX_WITH_IMM).then_some(imm);
    cq.read_qp_num = has(IBV_WC_EX_WITH_QP_NUM).then_some(qpn);
    cq.read_src_qp = has(IBV_WC_EX_WITH_SRC_QP).then_some(src_qpn);
    cq.read_slid = has(IBV_WC_EX_WITH_SLID).then_some(slid);
    cq.read_sl = has(IBV_WC_EX_WITH_SL).then_some(sl);
    cq.read_dlid_path_bits = has(IBV_WC_EX_WITH_DLID_PATH_BITS).then_some(path_bits);
}

/// Makes a completion the current one.
///
/// # Safety
///
/// `cq` must be one of this provider, which the calling thread is polling.
unsafe fn take(cq: *mut ibv_cq_ex, completion: Option<Completion>) -> c_int {
    let Some(Completion { id, cqe }) = completion else {
        return libc::ENOENT;
    };
    // SAFETY: By the safety requirements: meanwhile these fields are the calling thread's.
    unsafe {
        (*cq).wr_id = id;
        (*cq).status = u32::from(cqe.status);
        extended(cq).1.set(cqe);
    }
    0
}

unsafe extern "C" fn start(cq: *mut ibv_cq_ex, attr: *mut ibv_poll_cq_attr) -> c_int {
    // SAFETY: libibverbs passes the caller's attributes.
    if unsafe { (*attr).comp_mask } != 0 {
        return libc::EINVAL;
    }
    // SAFETY: `cq` is one of `create_ex`, and polled by this thread from here on.
    unsafe { take(cq, extended(cq).0.start()) }
}

unsafe extern "C" fn next(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: `cq` is one of `create_ex`, which this thread is polling.
    unsafe { take(cq, extended(cq).0.advance()) }
}

unsafe extern "C" fn end(cq: *mut ibv_cq_ex) {
    // SAFETY: As in `next`.
    unsafe { extended(cq) }.0.end();
}

/// Returns what the device wrote of the current completion.
///
/// # Safety
///
/// As [`take`].
unsafe fn current(cq: *mut ibv_cq_ex) -> Cqe {
    // SAFETY: By the safety requirements.
    unsafe { extended(cq).1.get() }
}

unsafe extern "C" fn opcode(cq: *mut ibv_cq_ex) -> ibv_wc_opcode {
    // SAFETY: As in `next`.
    to_wc_opcode(unsafe { current(cq) }.opcode)
}

unsafe extern "C" fn vendor_error(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: As in `next`.
    unsafe { current(cq) }.vendor_error.into()
}

unsafe extern "C" fn flags(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: As in `next`.
    wc_flags(&unsafe { current(cq) })
}

unsafe extern "C" fn byte_len(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: As in `next`.
    unsafe { current(cq) }.byte_len.get()
}

unsafe extern "C" fn imm(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: As in `next`.
    u32::from_ne_bytes(unsafe { current(cq) }.imm_or_rkey)
}

unsafe extern "C" fn qpn(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: As in `next`.
    unsafe { current(cq) }.qpn.get()
}

unsafe extern "C" fn src_qpn(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: As in `next`.
    unsafe { current(cq) }.src_qpn.get()
}

unsafe extern "C" fn slid(cq: *mut ibv_cq_ex) -> u32 {
    // SAFETY: As in `next`.
    unsafe { current(cq) }.slid.get()
}

unsafe extern "C" fn sl(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: As in `next`.
    unsafe { current(cq) }.sl
}

unsafe extern "C" fn path_bits(cq: *mut ibv_cq_ex) -> u8 {
    // SAFETY: As in `next`.
    unsafe { current(cq) }.path_bits
}
