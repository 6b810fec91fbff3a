// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work requests of the caller, in Rust.

use super::ah;
use super::bindings::*;
use crate::wr::{Payload, SendWr};
use crate::Errno;
use qiao_hw::qp::QpType;
use qiao_hw::wqe::{send_flag, AtomicSeg, DataSeg, DatagramSeg, RemoteSeg, SendHead, SendOpcode};
use std::ffi::c_int;
use std::ptr;

/// Returns a piece of memory as the device takes it.
pub(super) fn segment(sge: &ibv_sge) -> DataSeg {
    DataSeg {
        addr: sge.addr.into(),
        length: sge.length.into(),
        lkey: sge.lkey.into(),
    }
}

/// The pieces of a request of the caller.
pub(super) struct Sges<'a>(&'a [ibv_sge]);

impl<'a> Sges<'a> {
    /// # Safety
    ///
    /// `list` must have `count` entries that are valid for `'a`, or `count` must not be positive.
    pub(super) unsafe fn new(list: *const ibv_sge, count: c_int) -> Self {
        match usize::try_from(count) {
            Ok(n) if n > 0 && !list.is_null() => {
                // SAFETY: By the safety requirements.
                Self(unsafe { std::slice::from_raw_parts(list, n) })
            }
            _ => Self(&[]),
        }
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = DataSeg> + use<'a> {
        self.0.iter().map(segment)
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

/// Returns where a datagram goes.
///
/// # Errors
///
/// EINVAL if there is no address handle.
///
/// # Safety
///
/// `ah` must be null or a handle of this provider that is not destroyed.
pub(super) unsafe fn datagram(ah: *mut ibv_ah, qpn: u32, qkey: u32) -> Result<DatagramSeg, Errno> {
    if ah.is_null() {
        return Err(libc::EINVAL);
    }
    let mut seg = DatagramSeg::zeroed();
    // SAFETY: By the safety requirements.
    seg.path = unsafe { ah::path(ah) };
    seg.qpn.set(qpn);
    seg.qkey.set(qkey);
    Ok(seg)
}

/// Returns the flags of a request as the device takes them.
pub(super) fn flags(verbs: u32) -> u8 {
    [
        (IBV_SEND_SIGNALED, send_flag::SIGNALED),
        (IBV_SEND_SOLICITED, send_flag::SOLICITED),
        (IBV_SEND_FENCE, send_flag::FENCE),
        (IBV_SEND_INLINE, send_flag::INLINE),
    ]
    .iter()
    .filter(|(flag, _)| verbs & flag != 0)
    .fold(0, |all, (_, flag)| all | flag)
}

/// Converts a send request to a queue pair of this type.
///
/// # Safety
///
/// `wr` must be a request of the caller of ibv_post_send(), valid as long as the result is used.
pub(super) unsafe fn send_wr(wr: &ibv_send_wr, ty: QpType) -> Result<(SendWr, Sges<'_>), Errno> {
    let opcode = match wr.opcode {
        IBV_WR_SEND => SendOpcode::Send,
        IBV_WR_SEND_WITH_IMM => SendOpcode::SendImm,
        IBV_WR_RDMA_WRITE => SendOpcode::RdmaWrite,
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOpcode::RdmaWriteImm,
        IBV_WR_RDMA_READ => SendOpcode::RdmaRead,
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOpcode::CompareSwap,
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOpcode::FetchAdd,
        IBV_WR_ATOMIC_WRITE => SendOpcode::AtomicWrite,
        _ => return Err(libc::EINVAL),
    };
    // SAFETY: The members of the unions are plain integers; the opcode says which one counts.
    let (imm, remote, atomic) = unsafe {
        let remote = match opcode {
            SendOpcode::RdmaWrite
            | SendOpcode::RdmaWriteImm
            | SendOpcode::RdmaRead
            | SendOpcode::AtomicWrite => {
                Some(RemoteSeg::new(wr.wr.rdma.remote_addr, wr.wr.rdma.rkey))
            }
            SendOpcode::CompareSwap | SendOpcode::FetchAdd => {
                Some(RemoteSeg::new(wr.wr.atomic.remote_addr, wr.wr.atomic.rkey))
            }
            _ => None,
        };
        let atomic = match opcode {
            SendOpcode::CompareSwap => {
                Some(AtomicSeg::new(wr.wr.atomic.swap, wr.wr.atomic.compare_add))
            }
            SendOpcode::FetchAdd => Some(AtomicSeg::new(wr.wr.atomic.compare_add, 0)),
            _ => None,
        };
        let imm = match opcode {
            SendOpcode::SendImm | SendOpcode::RdmaWriteImm => wr.__bindgen_anon_1.imm_data,
            _ => 0,
        };
        (imm, remote, atomic)
    };
    let datagram = if ty.is_datagram() {
        // SAFETY: On such a queue pair this member counts, with a handle of the caller.
        Some(unsafe { datagram(wr.wr.ud.ah, wr.wr.ud.remote_qpn, wr.wr.ud.remote_qkey) }?)
    } else {
        None
    };
    let request = SendWr {
        id: wr.wr_id,
        head: SendHead {
            imm_or_rkey: imm.to_ne_bytes(),
            remote,
            atomic,
            datagram,
            ..SendHead::new(opcode, flags(wr.send_flags))
        },
    };
    // SAFETY: The caller's list has `num_sge` entries.
    Ok((request, unsafe { Sges::new(wr.sg_list, wr.num_sge) }))
}

/// Walks a list of requests.
///
/// # Safety
///
/// `first` must be null or the head of a list of the caller that is valid for `'a`.
pub(super) unsafe fn walk<'a, T>(
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

/// Walks a list of receive requests: the cookie and the pieces of each.
///
/// # Safety
///
/// As for [`walk`]; each request must have as many pieces as it says.
pub(super) unsafe fn recv_requests<'a>(
    first: *const ibv_recv_wr,
) -> impl Iterator<Item = (u64, impl ExactSizeIterator<Item = DataSeg> + use<'a>)> + 'a {
    // SAFETY: By the safety requirements.
    unsafe { walk(first, |wr: &ibv_recv_wr| wr.next) }.map(|wr| {
        // SAFETY: As above.
        let sges = unsafe { Sges::new(wr.sg_list, wr.num_sge) };
        (wr.wr_id, sges.iter())
    })
}

/// Returns what a call that posts a list of requests returns: 0, or an errno and in `bad` the
/// request that was refused.
///
/// # Safety
///
/// An error's number must be that of a request of the list at `wr`, and `bad` valid for writes.
pub(super) unsafe fn answer<T>(
    result: Result<(), (usize, Errno)>,
    mut wr: *mut T,
    bad: *mut *mut T,
    next: impl Fn(&T) -> *mut T,
) -> c_int {
    let Err((n, errno)) = result else {
        return 0;
    };
    for _ in 0..n {
        // SAFETY: By the safety requirements.
        wr = next(unsafe { &*wr });
    }
    // SAFETY: By the safety requirements.
    unsafe { *bad = wr };
    errno
}
