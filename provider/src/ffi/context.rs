// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Contexts: one open of a device.

use super::bindings::*;
use super::memory::{DoorbellPage, Slot};
use super::{ah, check, cq, pd, qp, set_errno, srq, status};
use crate::Errno;
use qiao_hw::queue::Limits;
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of, zeroed};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

/// A context: allocated by libibverbs, zeroed.
#[repr(C)]
struct Context {
    verbs: verbs_context,
    inner: Option<Box<Inner>>,
}

/// What a context has of its own.
pub(super) struct Inner {
    fd: c_int,
    /// What the device can do; bits in `qiao_hw::caps::feature`.
    pub(super) features: u64,
    /// What the device has for queues.
    pub(super) limits: Limits,
    /// Doorbell pages by their offset for mmap().
    pages: Mutex<HashMap<u64, Arc<DoorbellPage>>>,
}

impl Inner {
    /// Returns the slot at `offset` of the doorbell page at `mmap_offset`.
    pub(super) fn slot(&self, mmap_offset: u64, offset: u32) -> Result<Slot, Errno> {
        // Panics abort: a poisoned lock is never seen.
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        let page = match pages.get(&mmap_offset) {
            Some(page) => Arc::clone(page),
            None => {
                let page = Arc::new(DoorbellPage::map(self.fd, mmap_offset)?);
                pages.insert(mmap_offset, Arc::clone(&page));
                page
            }
        };
        Slot::new(page, offset).ok_or(libc::EIO)
    }
}

/// Returns what belongs to a context.
///
/// # Safety
///
/// `context` must be one that [`alloc`] returned, not freed for `'a`.
pub(super) unsafe fn inner<'a>(context: *mut ibv_context) -> &'a Inner {
    const AT: usize = offset_of!(Context, verbs) + offset_of!(verbs_context, context);
    // SAFETY: By the safety requirements `context` is that field of a `Context`.
    let inner = unsafe { &(*context.byte_sub(AT).cast::<Context>()).inner };
    match inner {
        Some(inner) => inner,
        None => unreachable!("alloc() has set it before it returned the context"),
    }
}

/// Opens a device.
pub(super) unsafe extern "C" fn alloc(
    device: *mut ibv_device,
    fd: c_int,
    _data: *mut c_void,
) -> *mut verbs_context {
    // SAFETY: libibverbs passes its device and the open uverbs file. The offset of the verbs_context is
    // given as a pointer, as the interface wants it; the memory returned is zeroed, which is a valid
    // `Context`.
    let memory = unsafe {
        _verbs_init_and_alloc_context(
            device,
            fd,
            size_of::<Context>(),
            std::ptr::without_provenance_mut(offset_of!(Context, verbs)),
            // RDMA_DRIVER_UNKNOWN: the kernel has no number for a driver that is not upstream.
            0,
        )
    };
    if memory.is_null() {
        return null_mut();
    }
    let context = memory.cast::<Context>();
    // SAFETY: The memory above, known to nobody else yet.
    match unsafe { open(context, fd) } {
        Ok(()) => context.cast(),
        Err(errno) => {
            // SAFETY: The context was initialised above and is given up by nobody else.
            unsafe {
                verbs_uninit_context(&raw mut (*context).verbs);
                libc::free(memory);
            }
            set_errno(errno);
            null_mut()
        }
    }
}

#[repr(C)]
struct Response {
    core: ib_uverbs_get_context_resp,
    driver: qiao_alloc_ucontext_resp,
}

/// # Safety
///
/// `context` must be initialised by `_verbs_init_and_alloc_context` and exclusively the caller's.
unsafe fn open(context: *mut Context, fd: c_int) -> Result<(), Errno> {
    // SAFETY: Both are plain integers.
    let (mut command, mut response): (ibv_get_context, Response) = unsafe { (zeroed(), zeroed()) };
    // SAFETY: The sizes are those of the structures; `context` by the safety requirements.
    check(unsafe {
        ibv_cmd_get_context(
            &raw mut (*context).verbs,
            &mut command,
            size_of::<ibv_get_context>(),
            (&raw mut response).cast(),
            size_of::<Response>(),
        )
    })?;
    let inner = Inner {
        fd,
        features: response.driver.features,
        limits: limits(&response.driver),
        pages: Mutex::default(),
    };
    // SAFETY: `inner` is zero, that is `None`, so nothing is dropped. The table is static.
    unsafe {
        (&raw mut (*context).inner).write(Some(Box::new(inner)));
        verbs_set_ops(&raw mut (*context).verbs, &OPS.0);
    }
    Ok(())
}

fn limits(answer: &qiao_alloc_ucontext_resp) -> Limits {
    Limits {
        max_sge: answer.max_sge,
        max_inline: answer.max_inline,
        log_max_sq_blocks: answer.log_max_sq_blocks,
        log_max_rq_wqes: answer.log_max_rq_wqes,
        log_max_cqe: answer.log_max_cqe,
    }
}

const _: () = assert!(size_of::<Option<Box<Inner>>>() == size_of::<usize>());

unsafe extern "C" fn free(context: *mut ibv_context) {
    const AT: usize = offset_of!(Context, verbs) + offset_of!(verbs_context, context);
    // SAFETY: libibverbs gives up the context, which `alloc` returned.
    unsafe {
        let this = context.byte_sub(AT).cast::<Context>();
        drop((*this).inner.take());
        verbs_uninit_context(&raw mut (*this).verbs);
        libc::free(this.cast());
    }
}

struct Ops(verbs_context_ops);

// SAFETY: The table holds function pointers and is never written.
unsafe impl Sync for Ops {}

static OPS: Ops = Ops(verbs_context_ops {
    alloc_pd: Some(pd::alloc),
    dealloc_pd: Some(pd::dealloc),
    reg_mr: Some(pd::reg_mr),
    dereg_mr: Some(pd::dereg_mr),
    create_ah: Some(ah::create),
    destroy_ah: Some(ah::destroy),
    create_cq: Some(cq::create),
    create_cq_ex: Some(cq::create_ex),
    destroy_cq: Some(cq::destroy),
    resize_cq: Some(cq::resize),
    poll_cq: Some(cq::poll),
    req_notify_cq: Some(cq::req_notify),
    create_qp: Some(qp::create),
    create_qp_ex: Some(qp::create_ex),
    modify_qp: Some(qp::modify),
    query_qp: Some(qp::query),
    destroy_qp: Some(qp::destroy),
    post_send: Some(qp::post_send),
    post_recv: Some(qp::post_recv),
    create_srq: Some(srq::create),
    modify_srq: Some(srq::modify),
    query_srq: Some(srq::query),
    get_srq_num: Some(srq::number),
    destroy_srq: Some(srq::destroy),
    post_srq_recv: Some(srq::post_recv),
    query_device_ex: Some(query_device),
    query_port: Some(query_port),
    free_context: Some(free),
    // SAFETY: The rest are function pointers, for which zero is `None`.
    ..unsafe { zeroed() }
});

unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
) -> c_int {
    // SAFETY: Plain integers.
    let mut response: ib_uverbs_ex_query_device_resp = unsafe { zeroed() };
    let mut size = size_of::<ib_uverbs_ex_query_device_resp>();
    // SAFETY: libibverbs passes valid pointers; the size is that of the structure.
    let result = check(unsafe {
        ibv_cmd_query_device_any(context, input, attr, attr_size, &mut response, &mut size)
    });
    if result.is_ok() {
        // SAFETY: `attr` is valid for `attr_size` bytes, which libibverbs has checked to hold the
        // original attributes with the version string.
        let fw = unsafe { &mut (*attr).orig_attr.fw_ver };
        write_version(response.base.fw_ver, fw);
    }
    status(result)
}

/// Writes a firmware version as the interface packs it.
fn write_version(version: u64, out: &mut [std::ffi::c_char]) {
    let text = format!(
        "{}.{}.{}",
        version >> 32,
        (version >> 16) & 0xffff,
        version & 0xffff
    );
    out.fill(0);
    let room = out.len().saturating_sub(1);
    for (to, from) in out.iter_mut().take(room).zip(text.bytes()) {
        // CAST: ASCII.
        *to = from as std::ffi::c_char;
    }
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: Plain integers.
    let mut command: ibv_query_port = unsafe { zeroed() };
    // SAFETY: libibverbs passes valid pointers; the size is that of the structure.
    status(check(unsafe {
        ibv_cmd_query_port(
            context,
            port,
            attr,
            &mut command,
            size_of::<ibv_query_port>(),
        )
    }))
}
