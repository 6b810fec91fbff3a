// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Entry points of completion queues.

use super::bindings::*;
use super::memory::Buffer;
use super::object::Object;
use super::{check, context, pointer, status};
use crate::cq::Cq;
use crate::wr::Completion;
use qiao_hw::cqe::{cqe_flag, CqeOpcode};
use qiao_hw::queue::CqLayout;
use std::ffi::c_int;
use std::mem::{size_of, zeroed};

type CqObject = Object<ibv_cq, Cq>;

/// Returns the Rust part of a CQ.
///
/// # Safety
///
/// `cq` must be one that [`create`] returned, not destroyed for `'a`.
pub(super) unsafe fn inner<'a>(cq: *mut ibv_cq) -> &'a Cq {
    // SAFETY: By the safety requirements.
    unsafe { CqObject::inner(cq) }
}

#[repr(C)]
struct Command {
    core: ibv_create_cq,
    driver: qiao_create_cq_req,
}

#[repr(C)]
struct Response {
    core: ib_uverbs_create_cq_resp,
    driver: qiao_create_cq_resp,
}

pub(super) unsafe extern "C" fn create(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: `context` is libibverbs', made by this provider.
    let inner = unsafe { context::inner(context) };
    pointer(CqObject::create(|base| {
        let needed = u32::try_from(cqe).map_err(|_| libc::EINVAL)?;
        let layout = CqLayout::for_entries(&inner.limits, needed).ok_or(libc::EINVAL)?;
        let buffer = Buffer::new(layout.size())?;
        // SAFETY: Plain integers.
        let (mut command, mut response): (Command, Response) = unsafe { (zeroed(), zeroed()) };
        command.driver.buf_addr = buffer.addr();
        command.driver.log_entries = layout.entries().log();
        // SAFETY: The pointers are libibverbs' and the new object's, the sizes are those of the
        // structures.
        check(unsafe {
            ibv_cmd_create_cq(
                context,
                cqe,
                channel,
                vector,
                base,
                (&raw mut command).cast(),
                size_of::<Command>(),
                (&raw mut response).cast(),
                size_of::<Response>(),
            )
        })?;
        let answer = response.driver;
        match inner.slot(answer.db_mmap_offset, answer.db_offset) {
            Ok(slot) => Ok(Cq::new(layout, buffer, slot)),
            Err(errno) => {
                // SAFETY: The CQ was created above and nobody else knows it. If this fails the kernel
                // destroys it when the file is closed, and the first error is the one to report.
                unsafe { ibv_cmd_destroy_cq(base) };
                Err(errno)
            }
        }
    }))
}

pub(super) unsafe extern "C" fn destroy(cq: *mut ibv_cq) -> c_int {
    // SAFETY: `cq` is an object of `create`.
    let result = check(unsafe { ibv_cmd_destroy_cq(cq) });
    if result.is_ok() {
        // SAFETY: The kernel's object is gone, and libibverbs gives up this one.
        unsafe { CqObject::destroy(cq) };
    }
    status(result)
}

pub(super) unsafe extern "C" fn req_notify(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: `cq` is an object of `create`.
    status(unsafe { inner(cq) }.arm(solicited_only != 0))
}

pub(super) unsafe extern "C" fn poll(cq: *mut ibv_cq, num: c_int, wc: *mut ibv_wc) -> c_int {
    let Ok(max) = usize::try_from(num) else {
        return -libc::EINVAL;
    };
    // SAFETY: `cq` is an object of `create`.
    let cq = unsafe { inner(cq) };
    let n = cq.poll(max, |at, completion| {
        // SAFETY: The caller's array has `num` entries and `at` is below `num`; its contents are not
        // read.
        unsafe { wc.add(at).write(to_wc(completion)) };
    });
    // CAST: At most `num`.
    n as c_int
}

fn to_wc(completion: &Completion) -> ibv_wc {
    let cqe = &completion.cqe;
    // SAFETY: Plain integers.
    let mut wc: ibv_wc = unsafe { zeroed() };
    wc.wr_id = completion.id;
    wc.status = u32::from(cqe.status);
    wc.opcode = to_wc_opcode(cqe.opcode);
    wc.vendor_err = u32::from(cqe.vendor_error);
    wc.byte_len = cqe.byte_len.get();
    wc.qp_num = cqe.qpn.get();
    wc.src_qp = cqe.src_qpn.get();
    wc.pkey_index = cqe.pkey_index.get();
    // CAST: The verbs interface has 16 bits.
    wc.slid = cqe.slid.get() as u16;
    wc.sl = cqe.sl;
    wc.dlid_path_bits = cqe.path_bits;
    if cqe.flags & cqe_flag::GRH != 0 {
        wc.wc_flags |= IBV_WC_GRH;
    }
    if cqe.flags & cqe_flag::IMM != 0 {
        wc.wc_flags |= IBV_WC_WITH_IMM;
        wc.__bindgen_anon_1.imm_data = u32::from_ne_bytes(cqe.imm_or_rkey);
    } else if cqe.flags & cqe_flag::INVALIDATED != 0 {
        wc.wc_flags |= IBV_WC_WITH_INV;
        wc.__bindgen_anon_1.invalidated_rkey = u32::from_le_bytes(cqe.imm_or_rkey);
    }
    wc
}

fn to_wc_opcode(opcode: u8) -> ibv_wc_opcode {
    match CqeOpcode::from_wire(opcode) {
        Some(CqeOpcode::RdmaWrite) => IBV_WC_RDMA_WRITE,
        Some(CqeOpcode::RdmaRead) => IBV_WC_RDMA_READ,
        Some(CqeOpcode::CompareSwap) => IBV_WC_COMP_SWAP,
        Some(CqeOpcode::FetchAdd) => IBV_WC_FETCH_ADD,
        Some(CqeOpcode::BindMw) => IBV_WC_BIND_MW,
        Some(CqeOpcode::LocalInvalidate) => IBV_WC_LOCAL_INV,
        Some(CqeOpcode::Flush) => IBV_WC_FLUSH,
        Some(CqeOpcode::AtomicWrite) => IBV_WC_ATOMIC_WRITE,
        Some(CqeOpcode::Recv) => IBV_WC_RECV,
        Some(CqeOpcode::RecvRdmaWithImm) => IBV_WC_RECV_RDMA_WITH_IMM,
        // SEND, and what only the kernel can post.
        _ => IBV_WC_SEND,
    }
}
