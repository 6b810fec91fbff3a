// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Entry points of shared receive queues.

use super::bindings::*;
use super::memory::Buffer;
use super::object::Object;
use super::wr::{answer, recv_requests};
use super::{check, context, pointer, status};
use crate::srq::Srq;
use qiao_hw::queue::{RecvRing, SrqLayout};
use std::ffi::c_int;
use std::mem::{offset_of, size_of, zeroed};
use std::sync::Arc;

type SrqObject = Object<verbs_srq, Arc<Srq>>;

// The ibv_srq is the first member of the verbs_srq.
const _: () = assert!(offset_of!(verbs_srq, srq) == 0);

/// Returns the Rust part of an SRQ.
///
/// # Safety
///
/// `srq` must be one that [`create`] returned, not destroyed for `'a`.
pub(super) unsafe fn inner<'a>(srq: *mut ibv_srq) -> &'a Arc<Srq> {
    // SAFETY: By the safety requirements.
    unsafe { SrqObject::inner(srq.cast()) }
}

#[repr(C)]
struct Command {
    core: ibv_create_srq,
    driver: qiao_create_srq_req,
}

#[repr(C)]
struct Response {
    core: ib_uverbs_create_srq_resp,
    driver: qiao_create_srq_resp,
}

// What libibverbs and the driver read lies behind each other without a gap.
const _: () = {
    assert!(offset_of!(Command, driver) == size_of::<ibv_create_srq>());
    assert!(offset_of!(Response, driver) == size_of::<ib_uverbs_create_srq_resp>());
};

pub(super) unsafe extern "C" fn create(
    pd: *mut ibv_pd,
    attr: *mut ibv_srq_init_attr,
) -> *mut ibv_srq {
    // SAFETY: libibverbs passes the caller's PD, whose context is of this provider, and attributes.
    let (device, attr) = unsafe { (context::inner((*pd).context), &mut *attr) };
    let (max_wr, max_sge) = (attr.attr.max_wr, attr.attr.max_sge);
    let layout = RecvRing::for_needs(&device.limits, max_wr, max_sge)
        .filter(|_| max_wr > 0)
        .and_then(SrqLayout::of);
    let Some(layout) = layout else {
        return pointer(Err(libc::EINVAL));
    };
    let object = SrqObject::create(|base| {
        let buffer = Buffer::new(layout.size())?;
        // SAFETY: Plain integers.
        let (mut command, mut response): (Command, Response) = unsafe { (zeroed(), zeroed()) };
        command.driver.buf_addr = buffer.addr();
        command.driver.log_wqes = layout.requests().size().log();
        command.driver.log_stride = layout.requests().log_stride();
        // SAFETY: As above, `base` is the new object's, and the sizes are those of the structures.
        check(unsafe {
            ibv_cmd_create_srq(
                pd,
                base.cast(),
                attr,
                (&raw mut command).cast(),
                size_of::<Command>(),
                (&raw mut response).cast(),
                size_of::<Response>(),
            )
        })?;
        let answer = response.driver;
        let slot = device.slot(answer.db_mmap_offset, answer.db_offset);
        let slot = slot.inspect_err(|_| {
            // SAFETY: The SRQ was created above and nobody else knows it. If this fails the kernel
            // destroys it when the file is closed, and the first error is the one to report.
            unsafe { ibv_cmd_destroy_srq(base.cast()) };
        })?;
        Ok(Arc::new(Srq::new(
            answer.srqn,
            layout,
            max_sge,
            buffer,
            slot,
        )))
    });
    pointer(object).cast()
}

pub(super) unsafe extern "C" fn destroy(srq: *mut ibv_srq) -> c_int {
    // SAFETY: `srq` is an object of `create`.
    let result = check(unsafe { ibv_cmd_destroy_srq(srq) });
    if result.is_ok() {
        // SAFETY: The kernel's object is gone, and libibverbs gives up this one.
        unsafe { SrqObject::destroy(srq.cast()) };
    }
    status(result)
}

pub(super) unsafe extern "C" fn modify(
    srq: *mut ibv_srq,
    attr: *mut ibv_srq_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: Plain integers.
    let mut command: ibv_modify_srq = unsafe { zeroed() };
    // SAFETY: The pointers are libibverbs'; the size is that of the structure.
    status(check(unsafe {
        ibv_cmd_modify_srq(srq, attr, mask, &mut command, size_of::<ibv_modify_srq>())
    }))
}

pub(super) unsafe extern "C" fn query(srq: *mut ibv_srq, attr: *mut ibv_srq_attr) -> c_int {
    // SAFETY: Plain integers.
    let mut command: ibv_query_srq = unsafe { zeroed() };
    // SAFETY: The pointers are libibverbs'; the size is that of the structure.
    status(check(unsafe {
        ibv_cmd_query_srq(srq, attr, &mut command, size_of::<ibv_query_srq>())
    }))
}

pub(super) unsafe extern "C" fn number(srq: *mut ibv_srq, number: *mut u32) -> c_int {
    // SAFETY: `srq` is an object of `create`, and `number` the caller's.
    unsafe { *number = inner(srq).srqn() };
    0
}

pub(super) unsafe extern "C" fn post_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `srq` is an object of `create`; `wr` is the head of the caller's list, which is valid for
    // this call, with its pieces.
    let (srq, requests) = unsafe { (inner(srq), recv_requests(wr)) };
    let result = srq.post(requests);
    // SAFETY: As above; what is refused is a request of the list, and `bad` is valid for writes.
    unsafe { answer(result, wr, bad, |wr| wr.next) }
}
