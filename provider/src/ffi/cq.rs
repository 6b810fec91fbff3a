// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Entry points of completion queues.

use super::bindings::*;
use super::memory::Buffer;
use super::object::Object;
use super::{check, context, cq_ex, pointer, status};
use crate::cq::Cq;
use crate::wr::Completion;
use crate::Errno;
use qiao_hw::cqe::{cqe_flag, Cqe, CqeOpcode};
use qiao_hw::queue::CqLayout;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::{offset_of, size_of, zeroed};

type CqObject = Object<verbs_cq, CqPart>;

// The ibv_cq is the first member of the verbs_cq, and of the ibv_cq_ex.
const _: () = assert!(offset_of!(verbs_cq, __bindgen_anon_1) == 0);

/// The Rust part of a CQ.
pub(super) struct CqPart {
    cq: Cq,
    current: Current,
}

/// The completion that is being read, between ibv_start_poll() and ibv_end_poll().
pub(super) struct Current(UnsafeCell<Cqe>);

// SAFETY: Only the thread that polls accesses it, which holds the queue meanwhile.
unsafe impl Sync for Current {}

impl Current {
    /// Returns what the device wrote.
    ///
    /// # Safety
    ///
    /// The calling thread must be polling the queue.
    pub(super) unsafe fn get(&self) -> Cqe {
        // SAFETY: Nobody else accesses it, by the safety requirements.
        unsafe { *self.0.get() }
    }

    /// Sets what the device wrote.
    ///
    /// # Safety
    ///
    /// As [`Current::get`].
    pub(super) unsafe fn set(&self, cqe: Cqe) {
        // SAFETY: Nobody else accesses it, by the safety requirements.
        unsafe { *self.0.get() = cqe };
    }
}

/// Returns the Rust part of a CQ.
///
/// # Safety
///
/// `cq` must be one that [`create`] or [`create_ex`] returned, not destroyed for `'a`.
pub(super) unsafe fn inner<'a>(cq: *mut ibv_cq) -> &'a Cq {
    // SAFETY: By the safety requirements.
    &unsafe { CqObject::inner(cq.cast()) }.cq
}

/// Returns the Rust part of a CQ, and the completion that is being read.
///
/// # Safety
///
/// As [`inner`].
pub(super) unsafe fn extended<'a>(cq: *mut ibv_cq_ex) -> (&'a Cq, &'a Current) {
    // SAFETY: By the safety requirements.
    let part = unsafe { CqObject::inner(cq.cast()) };
    (&part.cq, &part.current)
}

#[repr(C)]
struct Command {
    core: ibv_create_cq_ex,
    driver: qiao_create_cq_req,
}

#[repr(C)]
struct Response {
    core: ib_uverbs_ex_create_cq_resp,
    driver: qiao_create_cq_resp,
}

// What libibverbs and the driver read lies behind each other without a gap.
const _: () = {
    assert!(offset_of!(Command, driver) == size_of::<ibv_create_cq_ex>());
    assert!(offset_of!(Response, driver) == size_of::<ib_uverbs_ex_create_cq_resp>());
    assert!(offset_of!(ResizeCommand, driver) == size_of::<ibv_resize_cq>());
    assert!(offset_of!(ResizeResponse, driver) == size_of::<ib_uverbs_resize_cq_resp>());
};

pub(super) unsafe extern "C" fn create(
    context: *mut ibv_context,
    cqe: c_int,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    // SAFETY: Integers and pointers.
    let mut attr: ibv_cq_init_attr_ex = unsafe { zeroed() };
    let (Ok(cqe), Ok(vector)) = (u32::try_from(cqe), u32::try_from(vector)) else {
        return pointer(Err(libc::EINVAL));
    };
    attr.cqe = cqe;
    attr.channel = channel;
    attr.comp_vector = vector;
    // SAFETY: libibverbs passes a context of this provider, and the channel is the caller's.
    pointer(unsafe { create_any(context, &attr) }).cast()
}

pub(super) unsafe extern "C" fn create_ex(
    context: *mut ibv_context,
    attr: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    // SAFETY: libibverbs passes the caller's attributes.
    let attr = unsafe { &*attr };
    if let Err(errno) = cq_ex::check(attr) {
        return pointer(Err(errno));
    }
    // SAFETY: libibverbs passes a context of this provider.
    let cq = unsafe { create_any(context, attr) };
    let cq = cq.inspect(|&cq| {
        // SAFETY: The object is not yet known to anyone else; this part of the union begins as the
        // other does.
        cq_ex::fill(unsafe { &mut (*cq).__bindgen_anon_1.cq_ex }, attr.wc_flags);
    });
    pointer(cq).cast()
}

/// Creates a CQ.
///
/// # Safety
///
/// `context` must be one of this provider; what the attributes name must be the caller's.
unsafe fn create_any(
    context: *mut ibv_context,
    attr: &ibv_cq_init_attr_ex,
) -> Result<*mut verbs_cq, Errno> {
    // SAFETY: By the safety requirements.
    let device = unsafe { context::inner(context) };
    CqObject::create(|base| {
        let layout = CqLayout::for_entries(&device.limits, attr.cqe).ok_or(libc::EINVAL)?;
        let buffer = Buffer::new(layout.size())?;
        // SAFETY: Plain integers.
        let (mut command, mut response): (Command, Response) = unsafe { (zeroed(), zeroed()) };
        command.driver.buf_addr = buffer.addr();
        command.driver.log_entries = layout.entries().log();
        // SAFETY: By the safety requirements; `base` is the new object's, the sizes are those of the
        // structures.
        check(unsafe {
            ibv_cmd_create_cq_ex(
                context,
                attr,
                base,
                (&raw mut command).cast(),
                size_of::<Command>(),
                (&raw mut response).cast(),
                size_of::<Response>(),
                0,
            )
        })?;
        let answer = response.driver;
        let slot = device.slot(answer.db_mmap_offset, answer.db_offset);
        let slot = slot.inspect_err(|_| {
            // SAFETY: The CQ was created above and nobody else knows it. If this fails the kernel
            // destroys it when the file is closed, and the first error is the one to report.
            unsafe { ibv_cmd_destroy_cq(base.cast()) };
        })?;
        Ok(CqPart {
            cq: Cq::new(layout, buffer, slot),
            current: Current(UnsafeCell::new(Cqe::zeroed())),
        })
    })
}

pub(super) unsafe extern "C" fn destroy(cq: *mut ibv_cq) -> c_int {
    // SAFETY: `cq` is an object of `create` or `create_ex`.
    let result = check(unsafe { ibv_cmd_destroy_cq(cq) });
    if result.is_ok() {
        // SAFETY: The kernel's object is gone, and libibverbs gives up this one.
        unsafe { CqObject::destroy(cq.cast()) };
    }
    status(result)
}

#[repr(C)]
struct ResizeCommand {
    core: ibv_resize_cq,
    driver: qiao_resize_cq_req,
}

#[repr(C)]
struct ResizeResponse {
    core: ib_uverbs_resize_cq_resp,
    driver: qiao_resize_cq_resp,
}

pub(super) unsafe extern "C" fn resize(cq: *mut ibv_cq, cqe: c_int) -> c_int {
    // SAFETY: `cq` is an object of `create` or `create_ex`, whose context is of this provider.
    let (this, device) = unsafe { (inner(cq), context::inner((*cq).context)) };
    let layout = u32::try_from(cqe)
        .ok()
        .and_then(|needed| CqLayout::for_entries(&device.limits, needed));
    let Some(layout) = layout else {
        return libc::EINVAL;
    };
    let result = Buffer::new(layout.size()).and_then(|buffer| {
        this.resize(layout, buffer, |buffer| {
            // SAFETY: Plain integers.
            let (mut command, mut response): (ResizeCommand, ResizeResponse) =
                unsafe { (zeroed(), zeroed()) };
            command.driver.buf_addr = buffer.addr();
            command.driver.log_entries = layout.entries().log();
            // SAFETY: As above; the sizes are those of the structures.
            check(unsafe {
                ibv_cmd_resize_cq(
                    cq,
                    cqe,
                    (&raw mut command).cast(),
                    size_of::<ResizeCommand>(),
                    (&raw mut response).cast(),
                    size_of::<ResizeResponse>(),
                )
            })?;
            Ok(response.driver.base)
        })
    });
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
    wc.wc_flags = wc_flags(cqe);
    if cqe.flags & cqe_flag::INVALIDATED != 0 {
        wc.__bindgen_anon_1.invalidated_rkey = u32::from_le_bytes(cqe.imm_or_rkey);
    } else {
        wc.__bindgen_anon_1.imm_data = u32::from_ne_bytes(cqe.imm_or_rkey);
    }
    wc
}

pub(super) fn wc_flags(cqe: &Cqe) -> u32 {
    [
        (cqe_flag::GRH, IBV_WC_GRH),
        (cqe_flag::IMM, IBV_WC_WITH_IMM),
        (cqe_flag::INVALIDATED, IBV_WC_WITH_INV),
    ]
    .iter()
    .filter(|(wire, _)| cqe.flags & wire != 0)
    .fold(0, |all, (_, flag)| all | flag)
}

pub(super) fn to_wc_opcode(opcode: u8) -> ibv_wc_opcode {
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
