// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Entry points of requests that are built call by call (ibv_wr_post(3)).
//!
//! A program calls only those that it asked for when it created the queue pair, and all of a batch
//! from one thread.

use super::bindings::*;
use super::qp;
use super::wr::{datagram, flags, segment};
use crate::qp::Qp;
use crate::wr::SendWr;
use crate::Errno;
use qiao_hw::qp::QpType;
use qiao_hw::wqe::{send_flag, AtomicSeg, FlushSeg, RemoteSeg, SendHead, SendOpcode};
use std::ffi::{c_int, c_void};
use std::ptr;

/// Bytes of an atomic's operand.
const ATOMIC_SIZE: u32 = 8;

/// Operations by the flag that a program asks for them with.
const OPERATIONS: [(ibv_qp_create_send_ops_flags, SendOpcode); 9] = [
    (IBV_QP_EX_WITH_RDMA_WRITE, SendOpcode::RdmaWrite),
    (IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, SendOpcode::RdmaWriteImm),
    (IBV_QP_EX_WITH_SEND, SendOpcode::Send),
    (IBV_QP_EX_WITH_SEND_WITH_IMM, SendOpcode::SendImm),
    (IBV_QP_EX_WITH_RDMA_READ, SendOpcode::RdmaRead),
    (IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, SendOpcode::CompareSwap),
    (IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, SendOpcode::FetchAdd),
    (IBV_QP_EX_WITH_ATOMIC_WRITE, SendOpcode::AtomicWrite),
    (IBV_QP_EX_WITH_FLUSH, SendOpcode::Flush),
];

/// Checks that a queue pair of this type, of a device with these features, has all operations that a
/// program asks for.
///
/// # Errors
///
/// EOPNOTSUPP.
pub(super) fn check(asked: u64, ty: QpType, features: u64) -> Result<(), Errno> {
    let has = OPERATIONS
        .iter()
        .filter(|(_, opcode)| opcode.is_for(ty) && opcode.needs() & !features == 0)
        .fold(0, |all, (flag, _)| all | u64::from(*flag));
    if asked & !has != 0 {
        return Err(libc::EOPNOTSUPP);
    }
    Ok(())
}

/// Returns the inline data that the operations themselves need.
pub(super) fn inline_needs(asked: u64) -> u32 {
    // `wr_atomic_write` copies its operand when it is called.
    if asked & u64::from(IBV_QP_EX_WITH_ATOMIC_WRITE) != 0 {
        ATOMIC_SIZE
    } else {
        0
    }
}

/// Fills in the entry points of the operations that were asked for.
pub(super) fn fill(qp: &mut ibv_qp_ex, asked: u64, ty: QpType) {
    qp.wr_start = Some(start);
    qp.wr_complete = Some(complete);
    qp.wr_abort = Some(abort);
    qp.wr_set_sge = Some(set_sge);
    qp.wr_set_sge_list = Some(set_sge_list);
    qp.wr_set_inline_data = Some(set_inline_data);
    qp.wr_set_inline_data_list = Some(set_inline_data_list);
    if ty.is_datagram() {
        qp.wr_set_ud_addr = Some(set_ud_addr);
    }
    for (_, opcode) in OPERATIONS
        .iter()
        .filter(|(flag, _)| asked & u64::from(*flag) != 0)
    {
        match opcode {
            SendOpcode::RdmaWrite => qp.wr_rdma_write = Some(rdma_write),
            SendOpcode::RdmaWriteImm => qp.wr_rdma_write_imm = Some(rdma_write_imm),
            SendOpcode::Send => qp.wr_send = Some(send),
            SendOpcode::SendImm => qp.wr_send_imm = Some(send_imm),
            SendOpcode::RdmaRead => qp.wr_rdma_read = Some(rdma_read),
            SendOpcode::CompareSwap => qp.wr_atomic_cmp_swp = Some(atomic_cmp_swp),
            SendOpcode::FetchAdd => qp.wr_atomic_fetch_add = Some(atomic_fetch_add),
            SendOpcode::AtomicWrite => qp.wr_atomic_write = Some(atomic_write),
            SendOpcode::Flush => qp.wr_flush = Some(flush),
            _ => unreachable!("not in the table"),
        }
    }
}

/// Returns the Rust part of a queue pair.
///
/// # Safety
///
/// `qp` must be the extended part of an object of this provider, not destroyed for `'a`.
unsafe fn inner<'a>(qp: *mut ibv_qp_ex) -> &'a Qp {
    // SAFETY: By the safety requirements; `qp_base` is the first member.
    unsafe { qp::inner(&raw mut (*qp).qp_base) }
}

/// Begins a request with the id and the flags that the program has set.
///
/// # Safety
///
/// As [`inner`], and the caller's thread has started a batch.
unsafe fn build(qp: *mut ibv_qp_ex, opcode: SendOpcode, fill: impl FnOnce(&mut SendHead)) {
    // SAFETY: By the safety requirements; between start and end both fields are the caller's thread's.
    let (inner, id, send_flags) = unsafe { (inner(qp), (*qp).wr_id, (*qp).wr_flags) };
    // Setters say whether data is inline.
    let mut head = SendHead::new(opcode, flags(send_flags) & !send_flag::INLINE);
    fill(&mut head);
    inner.build(SendWr { id, head });
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: libibverbs passes a queue pair of this provider.
    unsafe { inner(qp) }.start();
}

unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: As in `start`; the state is written only by modify, in the same process.
    let (inner, state) = unsafe { (inner(qp), (*qp).qp_base.state) };
    if state < IBV_QPS_RTS {
        inner.abort();
        return libc::EINVAL;
    }
    super::status(inner.complete())
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: As in `start`.
    unsafe { inner(qp) }.abort();
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: libibverbs passes a queue pair on which a batch was started.
    unsafe { build(qp, SendOpcode::Send, |_| ()) };
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    let fill = |head: &mut SendHead| head.imm_or_rkey = imm.to_ne_bytes();
    // SAFETY: As in `send`.
    unsafe { build(qp, SendOpcode::SendImm, fill) };
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    let fill = |head: &mut SendHead| head.remote = Some(RemoteSeg::new(addr, rkey));
    // SAFETY: As in `send`.
    unsafe { build(qp, SendOpcode::RdmaWrite, fill) };
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    let fill = |head: &mut SendHead| {
        head.remote = Some(RemoteSeg::new(addr, rkey));
        head.imm_or_rkey = imm.to_ne_bytes();
    };
    // SAFETY: As in `send`.
    unsafe { build(qp, SendOpcode::RdmaWriteImm, fill) };
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    let fill = |head: &mut SendHead| head.remote = Some(RemoteSeg::new(addr, rkey));
    // SAFETY: As in `send`.
    unsafe { build(qp, SendOpcode::RdmaRead, fill) };
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    let fill = |head: &mut SendHead| {
        head.remote = Some(RemoteSeg::new(addr, rkey));
        head.atomic = Some(AtomicSeg::new(swap, compare));
    };
    // SAFETY: As in `send`.
    unsafe { build(qp, SendOpcode::CompareSwap, fill) };
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add: u64) {
    let fill = |head: &mut SendHead| {
        head.remote = Some(RemoteSeg::new(addr, rkey));
        head.atomic = Some(AtomicSeg::new(add, 0));
    };
    // SAFETY: As in `send`.
    unsafe { build(qp, SendOpcode::FetchAdd, fill) };
}

unsafe extern "C" fn atomic_write(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    operand: *const c_void,
) {
    let fill = |head: &mut SendHead| head.remote = Some(RemoteSeg::new(addr, rkey));
    // SAFETY: As in `send`.
    unsafe { build(qp, SendOpcode::AtomicWrite, fill) };
    // SAFETY: As in `send`; the caller vouches for eight bytes at `operand` (ibv_wr_post(3)).
    unsafe { set_inline_data(qp, operand.cast_mut(), ATOMIC_SIZE as usize) };
}

unsafe extern "C" fn flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    length: usize,
    placement: u8,
    level: u8,
) {
    // A length that the device cannot say is one of no region: the peer refuses it.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    let fill = |head: &mut SendHead| {
        let mut seg = FlushSeg::zeroed();
        seg.length.set(length);
        (seg.placement, seg.level) = (placement, level);
        head.remote = Some(RemoteSeg::new(addr, rkey));
        head.flush = Some(seg);
    };
    // SAFETY: As in `send`.
    unsafe { build(qp, SendOpcode::Flush, fill) };
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: As in `send`; the handle is the caller's, made by this provider and not yet destroyed.
    unsafe { inner(qp).set_datagram(datagram(ah, qpn, qkey)) };
}

unsafe extern "C" fn set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let sge = ibv_sge { addr, length, lkey };
    // SAFETY: As in `send`.
    unsafe { inner(qp) }.set_segments(std::iter::once(segment(&sge)));
}

unsafe extern "C" fn set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: As in `send`; the caller's list has `count` entries.
    let (inner, list) = unsafe { (inner(qp), slice(list, count)) };
    inner.set_segments(list.iter().map(segment));
}

unsafe extern "C" fn set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let buffer = ibv_data_buf { addr, length };
    // SAFETY: As in `send`; a list of one.
    unsafe { set_inline_data_list(qp, 1, &buffer) };
}

unsafe extern "C" fn set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: As in `send`; the caller's list has `count` entries.
    let (inner, list) = unsafe { (inner(qp), slice(list, count)) };
    inner.set_inline(list.iter().map(|b| b.length), |n, out| {
        let from = list[n].addr.cast::<u8>();
        // SAFETY: The caller vouches that the buffer is readable memory of its own, of the length of
        // `out`; it overlaps with nothing of ours, and bytes have no invalid value.
        unsafe { ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len()) };
    });
}

/// Returns a list of the caller.
///
/// # Safety
///
/// `list` must have `count` entries that are valid for `'a`.
unsafe fn slice<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if count == 0 || list.is_null() {
        return &[];
    }
    // SAFETY: By the safety requirements.
    unsafe { std::slice::from_raw_parts(list, count) }
}
