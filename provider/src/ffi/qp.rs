// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Entry points of queue pairs.

use super::bindings::*;
use super::memory::Buffer;
use super::object::Object;
use super::wr::{answer, recv_requests, send_wr, walk};
use super::{check, context, cq, pointer, qp_ex, srq, status};
use crate::qp::{Qp, Shape, Source};
use crate::Errno;
use qiao_hw::qp::QpType;
use qiao_hw::queue::{Limits, QpLayout, QpNeeds};
use std::ffi::c_int;
use std::mem::{offset_of, size_of, zeroed};
use std::sync::Arc;

type QpObject = Object<verbs_qp, Qp>;

// The ibv_qp is the first member of the verbs_qp.
const _: () = assert!(offset_of!(verbs_qp, __bindgen_anon_1) == 0);

/// Returns the Rust part of a QP.
///
/// # Safety
///
/// `qp` must be one that [`create`] or [`create_ex`] returned, not destroyed for `'a`.
pub(super) unsafe fn inner<'a>(qp: *mut ibv_qp) -> &'a Qp {
    // SAFETY: By the safety requirements.
    unsafe { QpObject::inner(qp.cast()) }
}

#[repr(C)]
struct Command {
    core: ibv_create_qp,
    driver: qiao_create_qp_req,
}

#[repr(C)]
struct Response {
    core: ib_uverbs_create_qp_resp,
    driver: qiao_create_qp_resp,
}

// What libibverbs and the driver read lies behind each other without a gap.
const _: () = {
    assert!(offset_of!(Command, driver) == size_of::<ibv_create_qp>());
    assert!(offset_of!(Response, driver) == size_of::<ib_uverbs_create_qp_resp>());
};

/// Returns the transport of a type of QP.
fn transport(ty: ibv_qp_type) -> Option<QpType> {
    match ty {
        IBV_QPT_RC => Some(QpType::Rc),
        IBV_QPT_UC => Some(QpType::Uc),
        IBV_QPT_UD => Some(QpType::Ud),
        _ => None,
    }
}

/// Returns the sizes of what is asked for.
///
/// # Errors
///
/// EOPNOTSUPP for what no part has, EINVAL for more than this one has.
fn shape(attr: &ibv_qp_init_attr_ex, limits: &Limits) -> Result<Shape, Errno> {
    let ty = transport(attr.qp_type).ok_or(libc::EOPNOTSUPP)?;
    let cap = &attr.cap;
    let needs = QpNeeds {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
        shared: !attr.srq.is_null(),
    };
    Ok(Shape {
        layout: QpLayout::for_needs(limits, ty, &needs).ok_or(libc::EINVAL)?,
        needs,
        ty,
        signal_all: attr.sq_sig_all != 0,
    })
}

pub(super) unsafe extern "C" fn create(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: libibverbs passes the caller's attributes.
    let attr = unsafe { &mut *attr };
    // SAFETY: Integers and pointers.
    let mut extended: ibv_qp_init_attr_ex = unsafe { zeroed() };
    extended.qp_context = attr.qp_context;
    extended.send_cq = attr.send_cq;
    extended.recv_cq = attr.recv_cq;
    extended.srq = attr.srq;
    extended.cap = attr.cap;
    extended.qp_type = attr.qp_type;
    extended.sq_sig_all = attr.sq_sig_all;
    extended.comp_mask = IBV_QP_INIT_ATTR_PD;
    extended.pd = pd;
    // SAFETY: The context is that of the caller's PD, and the attributes are complete.
    let qp = unsafe { create_any((*pd).context, &mut extended) };
    attr.cap = extended.cap;
    pointer(qp)
}

pub(super) unsafe extern "C" fn create_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    const KNOWN: u32 = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

    // SAFETY: libibverbs passes the caller's attributes.
    let attr = unsafe { &mut *attr };
    // To ask for no flag is to ask for nothing.
    let flags = attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0;
    if flags && attr.create_flags == 0 {
        attr.comp_mask &= !IBV_QP_INIT_ATTR_CREATE_FLAGS;
    }
    if attr.comp_mask & !KNOWN != 0 {
        return pointer(Err(libc::EOPNOTSUPP));
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
        return pointer(Err(libc::EINVAL));
    }
    // SAFETY: libibverbs passes a context of this provider, and the attributes are complete.
    pointer(unsafe { create_any(context, attr) })
}

/// Creates a queue pair, and says in the attributes what it has.
///
/// # Safety
///
/// `context` must be one of this provider; what the attributes name must be the caller's.
unsafe fn create_any(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Result<*mut ibv_qp, Errno> {
    // SAFETY: By the safety requirements.
    let device = unsafe { context::inner(context) };
    let operations =
        (attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0).then_some(attr.send_ops_flags);
    if let Some(asked) = operations {
        let cap = &mut attr.cap;
        cap.max_inline_data = cap.max_inline_data.max(qp_ex::inline_needs(asked));
    }
    let shape = shape(attr, &device.limits)?;
    if let Some(asked) = operations {
        qp_ex::check(asked, shape.ty, device.features)?;
    }
    let object = QpObject::create(|base| {
        let buffer = Buffer::new(shape.layout.size())?;
        // SAFETY: `base` is the new object's.
        let answer = unsafe { command(context, base, attr, &shape, &buffer) }?;
        let slot = |n| device.slot(answer.db_mmap_offset, answer.db_offset.saturating_add(n));
        let source = || match attr.srq {
            none if none.is_null() => slot(QIAO_DOORBELL_SLOT_SIZE).map(Source::Own),
            // SAFETY: The caller's SRQ, made by this provider.
            shared => Ok(Source::Shared(Arc::clone(unsafe { srq::inner(shared) }))),
        };
        let slots = slot(0).and_then(|send| Ok((send, source()?)));
        let (send_slot, source) = slots.inspect_err(|_| {
            // SAFETY: The QP was created above and nobody else knows it. If this fails the kernel
            // destroys it when the file is closed, and the first error is the one to report.
            unsafe { ibv_cmd_destroy_qp(base.cast()) };
        })?;
        let qp = Qp::new(answer.qpn, shape, buffer, send_slot, source);
        for queue in [attr.send_cq, attr.recv_cq] {
            if !queue.is_null() {
                // SAFETY: The caller's CQ, made by this provider.
                unsafe { cq::inner(queue) }.attach(qp.queues());
            }
        }
        Ok(qp)
    })?;
    if let Some(asked) = operations {
        // SAFETY: The object is not yet known to anyone else; both parts of the union are prefixes of
        // one structure.
        let object = unsafe { &mut *object };
        object.comp_mask |= VERBS_QP_EX;
        // SAFETY: As above.
        let extended = unsafe { &mut object.__bindgen_anon_1.qp_ex };
        qp_ex::fill(extended, asked, shape.ty);
    }
    attr.cap.max_send_wr = shape.layout.max_send_wr();
    attr.cap.max_recv_wr = max_recv_wr(&shape.layout);
    Ok(object.cast())
}

/// Returns how many receive requests the ring holds: none if there is none.
fn max_recv_wr(layout: &QpLayout) -> u32 {
    layout.rq().map_or(0, |ring| ring.size().entries())
}

/// Asks the kernel for a queue pair.
///
/// # Safety
///
/// As [`create_any`], and `base` must be a new object's.
unsafe fn command(
    context: *mut ibv_context,
    base: *mut verbs_qp,
    attr: &mut ibv_qp_init_attr_ex,
    shape: &Shape,
    buffer: &Buffer,
) -> Result<qiao_create_qp_resp, Errno> {
    // SAFETY: Plain integers.
    let (mut command, mut response): (Command, Response) = unsafe { (zeroed(), zeroed()) };
    let rings = shape.layout.rings();
    command.driver.buf_addr = buffer.addr();
    command.driver.log_sq_blocks = rings.log_sq_blocks;
    command.driver.log_rq_wqes = rings.log_rq_wqes;
    command.driver.log_rq_stride = rings.log_rq_stride;
    // SAFETY: By the safety requirements; the sizes are those of the structures.
    check(unsafe {
        ibv_cmd_create_qp_ex(
            context,
            base,
            attr,
            (&raw mut command).cast(),
            size_of::<Command>(),
            (&raw mut response).cast(),
            size_of::<Response>(),
        )
    })?;
    Ok(response.driver)
}

/// Calls `each` with the CQs of a QP.
///
/// # Safety
///
/// `qp` must be one that [`create`] returned, not destroyed.
unsafe fn for_each_cq(qp: *mut ibv_qp, each: impl Fn(&crate::cq::Cq)) {
    // SAFETY: By the safety requirements; a CQ outlives its QPs.
    let queues = unsafe { [(*qp).send_cq, (*qp).recv_cq] };
    for queue in queues {
        if !queue.is_null() {
            // SAFETY: As above.
            each(unsafe { cq::inner(queue) });
        }
    }
}

pub(super) unsafe extern "C" fn destroy(qp: *mut ibv_qp) -> c_int {
    // SAFETY: `qp` is an object of `create`.
    let qpn = unsafe { inner(qp) }.queues().qpn();
    // SAFETY: As above.
    let result = check(unsafe { ibv_cmd_destroy_qp(qp) });
    if result.is_ok() {
        // SAFETY: The kernel's object is gone, and libibverbs gives up this one.
        unsafe {
            for_each_cq(qp, |cq| cq.detach(qpn));
            QpObject::destroy(qp.cast());
        }
    }
    status(result)
}

pub(super) unsafe extern "C" fn modify(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: Plain integers.
    let mut command: ibv_modify_qp = unsafe { zeroed() };
    // SAFETY: The pointers are libibverbs'; the size is that of the structure.
    let result = check(unsafe {
        ibv_cmd_modify_qp(qp, attr, mask, &mut command, size_of::<ibv_modify_qp>())
    });
    // CAST: The mask is a set of bits.
    let to_reset = mask as u32 & IBV_QP_STATE != 0
        // SAFETY: As above.
        && unsafe { (*attr).qp_state } == IBV_QPS_RESET;
    if result.is_ok() && to_reset {
        // SAFETY: `qp` is an object of `create`.
        let this = unsafe { inner(qp) };
        // SAFETY: As above.
        unsafe { for_each_cq(qp, |cq| cq.clean(this.queues().qpn())) };
        this.reset();
    }
    status(result)
}

pub(super) unsafe extern "C" fn query(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: Plain integers.
    let mut command: ibv_query_qp = unsafe { zeroed() };
    // SAFETY: The pointers are libibverbs'; the size is that of the structure.
    let result = check(unsafe {
        ibv_cmd_query_qp(
            qp,
            attr,
            mask,
            init,
            &mut command,
            size_of::<ibv_query_qp>(),
        )
    });
    if result.is_ok() {
        // SAFETY: As above; `qp` is an object of `create` or `create_ex`.
        let (attr, init, layout) = unsafe { (&mut *attr, &mut *init, inner(qp).shape().layout) };
        // The kernel knows what was asked for.
        for cap in [&mut attr.cap, &mut init.cap] {
            cap.max_send_wr = layout.max_send_wr();
            cap.max_recv_wr = max_recv_wr(&layout);
        }
    }
    status(result)
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: `qp` is an object of `create`; its state is written only by modify, in the same process.
    let (queues, state) = unsafe { (inner(qp), (*qp).state) };
    if state < IBV_QPS_RTS {
        // SAFETY: `bad` is valid for writes.
        unsafe { *bad = wr };
        return libc::EINVAL;
    }
    // SAFETY: `wr` is the head of the caller's list, which is valid for this call.
    let requests = unsafe { walk(wr, |wr| wr.next) };
    // SAFETY: As above.
    let result = queues.post_send(requests.map(|wr| unsafe { send_wr(wr, queues.shape().ty) }));
    // SAFETY: As above; what is refused is a request of the list, and `bad` is valid for writes.
    unsafe { answer(result, wr, bad, |wr| wr.next) }
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: As in `post_send`.
    let (queues, state) = unsafe { (inner(qp), (*qp).state) };
    if state == IBV_QPS_RESET {
        // SAFETY: `bad` is valid for writes.
        unsafe { *bad = wr };
        return libc::EINVAL;
    }
    // SAFETY: `wr` is the head of the caller's list, which is valid for this call, with its pieces.
    let result = queues.post_recv(unsafe { recv_requests(wr) });
    // SAFETY: As above; what is refused is a request of the list, and `bad` is valid for writes.
    unsafe { answer(result, wr, bad, |wr| wr.next) }
}
