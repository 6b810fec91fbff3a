// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Entry points of queue pairs.

use super::bindings::*;
use super::memory::Buffer;
use super::object::Object;
use super::{ah, check, context, cq, pointer, status};
use crate::qp::{Qp, Shape};
use crate::wr::{Payload, SendWr};
use crate::Errno;
use qiao_hw::qp::QpType;
use qiao_hw::queue::{Limits, QpLayout, QpNeeds};
use qiao_hw::wqe::{send_flag, DataSeg, DatagramSeg, SendOpcode};
use std::ffi::c_int;
use std::mem::{size_of, zeroed};
use std::ptr;

type QpObject = Object<ibv_qp, Qp>;

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

/// Returns the transport of a type of QP.
fn transport(ty: ibv_qp_type) -> Option<QpType> {
    match ty {
        IBV_QPT_RC => Some(QpType::Rc),
        IBV_QPT_UC => Some(QpType::Uc),
        IBV_QPT_UD => Some(QpType::Ud),
        _ => None,
    }
}

fn shape(attr: &ibv_qp_init_attr, limits: &Limits) -> Result<Shape, Errno> {
    let ty = transport(attr.qp_type)
        .filter(|_| attr.srq.is_null())
        .ok_or(libc::EOPNOTSUPP)?;
    let cap = &attr.cap;
    let needs = QpNeeds {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
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
    // SAFETY: Both are libibverbs'; the context was made by this provider.
    let (attr, inner) = unsafe { (&mut *attr, context::inner((*pd).context)) };
    pointer(QpObject::create(|base| {
        let shape = shape(attr, &inner.limits)?;
        let buffer = Buffer::new(shape.layout.size())?;
        // SAFETY: Plain integers.
        let (mut command, mut response): (Command, Response) = unsafe { (zeroed(), zeroed()) };
        command.driver.buf_addr = buffer.addr();
        let rings = shape.layout.rings();
        command.driver.log_sq_blocks = rings.log_sq_blocks;
        command.driver.log_rq_wqes = rings.log_rq_wqes;
        command.driver.log_rq_stride = rings.log_rq_stride;
        // SAFETY: The pointers are libibverbs' and the new object's, the sizes are those of the
        // structures.
        check(unsafe {
            ibv_cmd_create_qp(
                pd,
                base,
                attr,
                (&raw mut command).cast(),
                size_of::<Command>(),
                (&raw mut response).cast(),
                size_of::<Response>(),
            )
        })?;
        let answer = response.driver;
        let slot = |n| inner.slot(answer.db_mmap_offset, answer.db_offset.saturating_add(n));
        let slots = slot(0).and_then(|send| Ok((send, slot(QIAO_DOORBELL_SLOT_SIZE)?)));
        let (send_slot, recv_slot) = match slots {
            Ok(slots) => slots,
            Err(errno) => {
                // SAFETY: The QP was created above and nobody else knows it. If this fails the kernel
                // destroys it when the file is closed, and the first error is the one to report.
                unsafe { ibv_cmd_destroy_qp(base) };
                return Err(errno);
            }
        };
        attr.cap.max_send_wr = shape.layout.max_send_wr();
        attr.cap.max_recv_wr = shape.layout.rq().entries();
        let qp = Qp::new(answer.qpn, shape, buffer, send_slot, recv_slot);
        for queue in [attr.send_cq, attr.recv_cq] {
            if !queue.is_null() {
                // SAFETY: The caller's CQ, made by this provider.
                unsafe { cq::inner(queue) }.attach(qp.queues());
            }
        }
        Ok(qp)
    }))
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
    let qpn = unsafe { QpObject::inner(qp) }.queues().qpn();
    // SAFETY: As above.
    let result = check(unsafe { ibv_cmd_destroy_qp(qp) });
    if result.is_ok() {
        // SAFETY: The kernel's object is gone, and libibverbs gives up this one.
        unsafe {
            for_each_cq(qp, |cq| cq.detach(qpn));
            QpObject::destroy(qp);
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
        let inner = unsafe { QpObject::inner(qp) };
        // SAFETY: As above.
        unsafe { for_each_cq(qp, |cq| cq.clean(inner.queues().qpn())) };
        inner.reset();
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
    status(check(unsafe {
        ibv_cmd_query_qp(
            qp,
            attr,
            mask,
            init,
            &mut command,
            size_of::<ibv_query_qp>(),
        )
    }))
}

/// The pieces of a request of the caller.
struct Sges<'a>(&'a [ibv_sge]);

impl<'a> Sges<'a> {
    /// # Safety
    ///
    /// `list` must have `count` entries that are valid for `'a`, or `count` must not be positive.
    unsafe fn new(list: *const ibv_sge, count: c_int) -> Self {
        match usize::try_from(count) {
            Ok(n) if n > 0 && !list.is_null() => {
                // SAFETY: By the safety requirements.
                Self(unsafe { std::slice::from_raw_parts(list, n) })
            }
            _ => Self(&[]),
        }
    }

    fn iter(&self) -> impl ExactSizeIterator<Item = DataSeg> + use<'a> {
        self.0.iter().map(|s| DataSeg {
            addr: s.addr.into(),
            length: s.length.into(),
            lkey: s.lkey.into(),
        })
    }
}

impl Payload for Sges<'_> {
    fn segments(&self) -> impl ExactSizeIterator<Item = DataSeg> {
        self.iter()
    }

    fn copy(&self, segment: &DataSeg, offset: usize, out: &mut [u8]) {
        let from = segment.addr.get() as usize as *const u8;
        // SAFETY: With IBV_SEND_INLINE the caller vouches that the pieces are readable memory of its own
        // (ibv_post_send(3)); `offset` and the length of `out` stay within the piece. They may overlap
        // with nothing of ours, but the caller may write them meanwhile: bytes have no invalid value.
        unsafe { ptr::copy_nonoverlapping(from.add(offset), out.as_mut_ptr(), out.len()) };
    }
}

/// Says where a datagram goes.
///
/// # Safety
///
/// `wr` must be a request of the caller of ibv_post_send() to a queue pair of datagrams.
unsafe fn datagram(wr: &ibv_send_wr) -> Result<DatagramSeg, Errno> {
    // SAFETY: On such a queue pair this member counts, by the safety requirements.
    let ud = unsafe { wr.wr.ud };
    if ud.ah.is_null() {
        return Err(libc::EINVAL);
    }
    let mut seg = DatagramSeg::zeroed();
    // SAFETY: The caller's address handle, made by this provider and not yet destroyed.
    seg.path = unsafe { ah::path(ud.ah) };
    seg.qpn.set(ud.remote_qpn);
    seg.qkey.set(ud.remote_qkey);
    Ok(seg)
}

/// Converts a send request to a queue pair of this type.
///
/// # Safety
///
/// `wr` must be a request of the caller of ibv_post_send(), valid as long as the result is used.
unsafe fn send_wr(wr: &ibv_send_wr, ty: QpType) -> Result<SendWr<Sges<'_>>, Errno> {
    let opcode = match wr.opcode {
        IBV_WR_SEND => SendOpcode::Send,
        IBV_WR_SEND_WITH_IMM => SendOpcode::SendImm,
        IBV_WR_RDMA_WRITE => SendOpcode::RdmaWrite,
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOpcode::RdmaWriteImm,
        IBV_WR_RDMA_READ => SendOpcode::RdmaRead,
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOpcode::CompareSwap,
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOpcode::FetchAdd,
        _ => return Err(libc::EINVAL),
    };
    if !opcode.is_for(ty) {
        return Err(libc::EINVAL);
    }
    let mut flags = 0;
    for (verbs, wire) in [
        (IBV_SEND_SIGNALED, send_flag::SIGNALED),
        (IBV_SEND_SOLICITED, send_flag::SOLICITED),
        (IBV_SEND_FENCE, send_flag::FENCE),
        (IBV_SEND_INLINE, send_flag::INLINE),
    ] {
        if wr.send_flags & verbs != 0 {
            flags |= wire;
        }
    }
    let reads = matches!(
        opcode,
        SendOpcode::RdmaRead | SendOpcode::CompareSwap | SendOpcode::FetchAdd
    );
    if reads && flags & send_flag::INLINE != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: The members of the unions are plain integers; the opcode says which one counts.
    let (imm, remote, atomic) = unsafe {
        let remote = match opcode {
            SendOpcode::RdmaWrite | SendOpcode::RdmaWriteImm | SendOpcode::RdmaRead => {
                Some((wr.wr.rdma.remote_addr, wr.wr.rdma.rkey))
            }
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => {
                Some((wr.wr.atomic.remote_addr, wr.wr.atomic.rkey))
            }
            _ => None,
        };
        let atomic = match opcode {
            SendOpcode::CompareSwap => Some((wr.wr.atomic.swap, wr.wr.atomic.compare_add)),
            SendOpcode::FetchAdd => Some((wr.wr.atomic.compare_add, 0)),
            _ => None,
        };
        let imm = match opcode {
            SendOpcode::SendImm | SendOpcode::RdmaWriteImm => wr.__bindgen_anon_1.imm_data,
            _ => 0,
        };
        (imm, remote, atomic)
    };
    Ok(SendWr {
        id: wr.wr_id,
        opcode,
        flags,
        imm_or_rkey: imm.to_ne_bytes(),
        remote,
        atomic,
        datagram: if ty.is_datagram() {
            // SAFETY: By the safety requirements.
            Some(unsafe { datagram(wr) }?)
        } else {
            None
        },
        // SAFETY: The caller's list has `num_sge` entries.
        payload: unsafe { Sges::new(wr.sg_list, wr.num_sge) },
    })
}

/// Walks a list of requests.
///
/// # Safety
///
/// `first` must be null or the head of a list of the caller that is valid for `'a`.
unsafe fn walk<'a, T>(
    first: *const T,
    next: impl Fn(&T) -> *mut T + 'a,
) -> impl Iterator<Item = &'a T> + 'a
where
    T: 'a,
{
    // SAFETY: By the safety requirements.
    std::iter::successors(unsafe { first.as_ref() }, move |wr| unsafe {
        next(wr).as_ref()
    })
}

pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: `qp` is an object of `create`; its state is written only by modify, in the same process.
    let (inner, state) = unsafe { (QpObject::inner(qp), (*qp).state) };
    if state < IBV_QPS_RTS {
        // SAFETY: `bad` is valid for writes.
        unsafe { *bad = wr };
        return libc::EINVAL;
    }
    // SAFETY: `wr` is the head of the caller's list, which is valid for this call.
    let requests = unsafe { walk(wr, |wr| wr.next) };
    // SAFETY: As above.
    let result = inner.post_send(requests.map(|wr| unsafe { send_wr(wr, inner.ty()) }));
    let Err((n, errno)) = result else {
        return 0;
    };
    // SAFETY: As above; request `n` exists, since it is the one that was refused.
    unsafe { *bad = nth(wr, n, |wr| wr.next) };
    errno
}

pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: As in `post_send`.
    let (inner, state) = unsafe { (QpObject::inner(qp), (*qp).state) };
    if state == IBV_QPS_RESET {
        // SAFETY: `bad` is valid for writes.
        unsafe { *bad = wr };
        return libc::EINVAL;
    }
    // SAFETY: `wr` is the head of the caller's list, which is valid for this call.
    let requests = unsafe { walk(wr, |wr| wr.next) };
    let result = inner.post_recv(requests.map(|wr| {
        // SAFETY: The caller's list has `num_sge` entries.
        let sges = unsafe { Sges::new(wr.sg_list, wr.num_sge) };
        (wr.wr_id, sges.iter())
    }));
    let Err((n, errno)) = result else {
        return 0;
    };
    // SAFETY: As above; request `n` exists, since it is the one that was refused.
    unsafe { *bad = nth(wr, n, |wr| wr.next) };
    errno
}

/// Returns request `n` of a list.
///
/// # Safety
///
/// The list must have that many requests.
unsafe fn nth<T>(mut wr: *mut T, n: usize, next: impl Fn(&T) -> *mut T) -> *mut T {
    for _ in 0..n {
        // SAFETY: By the safety requirements.
        wr = next(unsafe { &*wr });
    }
    wr
}
