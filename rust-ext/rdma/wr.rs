// SPDX-License-Identifier: GPL-2.0

//! Work requests of consumers in the kernel.
//!
//! What is unsafe here rests on the contract of the verbs: a consumer passes a list of requests
//! that is valid, and does not change, until the call returns, each in the struct that belongs to
//! its opcode and to the type of its queue pair (`include/rdma/ib_verbs.h`).
//!
//! C header: [`include/rdma/ib_verbs.h`](srctree/include/rdma/ib_verbs.h)

use super::{
    device::Shims,
    Ah,
    Cx,
    Driver,
    Qp,
    QpOps,
    QpType,
    Srq,
    SrqOps, //
};
use crate::bindings;
use core::marker::PhantomData;
use kernel::prelude::*;

/// A piece of local memory.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Sge(bindings::ib_sge);

impl Sge {
    /// Returns the address.
    pub fn addr(&self) -> u64 {
        self.0.addr
    }

    /// Returns the length in bytes.
    pub fn length(&self) -> u32 {
        self.0.length
    }

    /// Returns the key.
    pub fn lkey(&self) -> u32 {
        self.0.lkey
    }
}

/// Flags of a send request (`enum ib_send_flags`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags(bindings::ib_send_flags);

impl SendFlags {
    /// Start only when all reads and atomic operations before have completed.
    pub const FENCE: Self = Self(bindings::ib_send_flags_IB_SEND_FENCE);
    /// Raise a completion on success.
    pub const SIGNALED: Self = Self(bindings::ib_send_flags_IB_SEND_SIGNALED);
    /// Ask the peer for a solicited event.
    pub const SOLICITED: Self = Self(bindings::ib_send_flags_IB_SEND_SOLICITED);
    /// Take the data while the request is posted.
    pub const INLINE: Self = Self(bindings::ib_send_flags_IB_SEND_INLINE);

    const ALL: bindings::ib_send_flags =
        Self::FENCE.0 | Self::SIGNALED.0 | Self::SOLICITED.0 | Self::INLINE.0;

    /// Returns whether all flags of `other` are in `self`.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// Memory of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address.
    pub addr: u64,
    /// Key.
    pub rkey: u32,
}

/// Where a datagram goes.
pub struct Destination<'a, T: Driver> {
    /// The way to the port.
    pub ah: &'a Ah<T>,
    /// Number of the queue pair.
    pub qpn: u32,
    /// Q_Key; with the highest bit set, that of the sending queue pair.
    pub qkey: u32,
    /// Index of the P_Key; counts on queue pair 1 only.
    pub pkey_index: u16,
}

/// What a send request does.
pub enum SendOp<'a, T: Driver> {
    /// Send; to `to` if, and only if, the queue pair is one for datagrams.
    Send {
        /// Destination of a datagram.
        to: Option<Destination<'a, T>>,
        /// Immediate data in wire order.
        imm: Option<[u8; 4]>,
    },
    /// RDMA write.
    Write {
        /// Where to.
        to: Remote,
        /// Immediate data in wire order.
        imm: Option<[u8; 4]>,
    },
    /// RDMA read.
    Read {
        /// Where from.
        from: Remote,
    },
    /// Compare-and-swap on 8 bytes.
    CompareSwap {
        /// Where.
        at: Remote,
        /// What must be there.
        compare: u64,
        /// What to put there.
        swap: u64,
    },
    /// Fetch-and-add on 8 bytes.
    FetchAdd {
        /// Where.
        at: Remote,
        /// What to add.
        add: u64,
    },
}

/// A send request.
///
/// # Invariants
///
/// Is embedded in the struct of its opcode, valid and unchanging for as long as `'a`; `ty` is the
/// type of the queue pair that it is posted to.
pub struct SendWr<'a, T: Driver> {
    raw: &'a bindings::ib_send_wr,
    ty: QpType,
    _driver: PhantomData<T>,
}

impl<'a, T: Driver> SendWr<'a, T> {
    /// Returns what the consumer knows the request by.
    pub fn id(&self) -> u64 {
        // SAFETY: The other member of the union is a pointer: any 64 bits are valid.
        unsafe { self.raw.__bindgen_anon_1.wr_id }
    }

    /// Returns the flags.
    ///
    /// # Errors
    ///
    /// `EINVAL` if there are others than those of [`SendFlags`].
    pub fn flags(&self) -> Result<SendFlags> {
        let flags = self.raw.send_flags;
        if flags & !SendFlags::ALL != 0 {
            return Err(EINVAL);
        }
        Ok(SendFlags(flags))
    }

    /// Returns where the data is.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the number of pieces is negative.
    pub fn sges(&self) -> Result<&'a [Sge]> {
        // SAFETY: By the type invariants.
        unsafe { sges(self.raw.sg_list, self.raw.num_sge) }
    }

    /// Copies the data of a request with [`SendFlags::INLINE`], whose memory the kernel can read,
    /// and gives it to `put` piece by piece.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the request does not have that flag, or as for [`sges`](Self::sges).
    pub fn copy_inline(&self, mut put: impl FnMut(&[u8])) -> Result {
        /// Bytes on the stack.
        const PIECE: usize = 64;

        if !self.flags()?.contains(SendFlags::INLINE) {
            return Err(EINVAL);
        }
        for sge in self.sges()? {
            // CAST: With this flag the address is one of the kernel.
            let from = sge.addr() as usize as *const u8;
            let length = sge.length() as usize;
            for offset in (0..length).step_by(PIECE) {
                let mut piece = [0; PIECE];
                let n = PIECE.min(length - offset);
                // SAFETY: With this flag the consumer passes memory that can be read and does not
                // change until the call returns; `piece` has `n` bytes, and is nobody else's.
                unsafe {
                    core::ptr::copy_nonoverlapping(from.wrapping_add(offset), piece.as_mut_ptr(), n)
                };
                put(piece.get(..n).ok_or(EINVAL)?);
            }
        }
        Ok(())
    }

    /// Returns what to do.
    ///
    /// # Errors
    ///
    /// `EINVAL` for an operation that [`SendOp`] does not have, and for a datagram without an
    /// address handle.
    pub fn op(&self) -> Result<SendOp<'a, T>> {
        Ok(match self.raw.opcode {
            bindings::ib_wr_opcode_IB_WR_SEND => SendOp::Send {
                to: self.destination()?,
                imm: None,
            },
            bindings::ib_wr_opcode_IB_WR_SEND_WITH_IMM => SendOp::Send {
                to: self.destination()?,
                imm: Some(self.imm()),
            },
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE => SendOp::Write {
                to: self.remote(),
                imm: None,
            },
            bindings::ib_wr_opcode_IB_WR_RDMA_WRITE_WITH_IMM => SendOp::Write {
                to: self.remote(),
                imm: Some(self.imm()),
            },
            bindings::ib_wr_opcode_IB_WR_RDMA_READ => SendOp::Read {
                from: self.remote(),
            },
            bindings::ib_wr_opcode_IB_WR_ATOMIC_CMP_AND_SWP => {
                let wr = self.atomic();
                SendOp::CompareSwap {
                    at: Self::atomic_remote(wr),
                    compare: wr.compare_add,
                    swap: wr.swap,
                }
            }
            bindings::ib_wr_opcode_IB_WR_ATOMIC_FETCH_AND_ADD => {
                let wr = self.atomic();
                SendOp::FetchAdd {
                    at: Self::atomic_remote(wr),
                    add: wr.compare_add,
                }
            }
            _ => return Err(EINVAL),
        })
    }

    fn imm(&self) -> [u8; 4] {
        // SAFETY: All members of the union are 32 plain bits.
        unsafe { self.raw.ex.imm_data }.to_ne_bytes()
    }

    /// Only for RDMA writes and reads.
    fn remote(&self) -> Remote {
        let wr: *const bindings::ib_rdma_wr = core::ptr::from_ref(self.raw).cast();
        // SAFETY: By the type invariants, with these opcodes, `raw` is the first field of such a
        // struct.
        unsafe {
            Remote {
                addr: (*wr).remote_addr,
                rkey: (*wr).rkey,
            }
        }
    }

    /// Only for atomic operations.
    fn atomic(&self) -> &'a bindings::ib_atomic_wr {
        // SAFETY: By the type invariants, with these opcodes, `raw` is the first field of such a
        // struct.
        unsafe { &*core::ptr::from_ref(self.raw).cast() }
    }

    fn atomic_remote(wr: &bindings::ib_atomic_wr) -> Remote {
        Remote {
            addr: wr.remote_addr,
            rkey: wr.rkey,
        }
    }

    /// Only for sends.
    fn destination(&self) -> Result<Option<Destination<'a, T>>> {
        if !self.ty.is_datagram() {
            return Ok(None);
        }
        let wr: *const bindings::ib_ud_wr = core::ptr::from_ref(self.raw).cast();
        // SAFETY: By the type invariants, with these opcodes on such a queue pair, `raw` is the
        // first field of such a struct.
        let wr = unsafe { &*wr };
        if wr.ah.is_null() {
            return Err(EINVAL);
        }
        Ok(Some(Destination {
            // SAFETY: The consumer passes an address handle of the same device, hence one that
            // `create_ah` made, which it keeps until the request is done.
            ah: unsafe { Ah::<T>::from_raw(wr.ah) },
            qpn: wr.remote_qpn,
            qkey: wr.remote_qkey,
            pkey_index: wr.pkey_index,
        }))
    }
}

/// # Safety
///
/// If `count` is positive, `list` must point to as many pieces, valid and unchanging for as long as
/// `'a`.
unsafe fn sges<'a>(list: *const bindings::ib_sge, count: c_int) -> Result<&'a [Sge]> {
    let count = usize::try_from(count).map_err(|_| EINVAL)?;
    if count == 0 {
        return Ok(&[]);
    }
    // SAFETY: By the safety requirements; `Sge` is a transparent wrapper.
    Ok(unsafe { core::slice::from_raw_parts(list.cast(), count) })
}

/// The send requests of one call.
///
/// # Invariants
///
/// `next` is null, or the first of a list of requests as [`SendWr`] demands them.
pub struct SendWrs<'a, T: Driver> {
    next: *const bindings::ib_send_wr,
    ty: QpType,
    _wrs: PhantomData<(&'a bindings::ib_send_wr, T)>,
}

impl<T: Driver> SendWrs<'_, T> {
    /// Gives each request to `post`, up to the first that fails, which the consumer is told of.
    ///
    /// # Errors
    ///
    /// That of `post`.
    pub fn post_each(&mut self, mut post: impl FnMut(&SendWr<'_, T>) -> Result) -> Result {
        // SAFETY: By the type invariants.
        while let Some(raw) = unsafe { self.next.as_ref() } {
            // INVARIANT: By those of `self`.
            post(&SendWr {
                raw,
                ty: self.ty,
                _driver: PhantomData,
            })?;
            self.next = raw.next;
        }
        Ok(())
    }
}

/// A receive request.
pub struct RecvWr<'a>(&'a bindings::ib_recv_wr);

impl<'a> RecvWr<'a> {
    /// Returns what the consumer knows the request by.
    pub fn id(&self) -> u64 {
        // SAFETY: The other member of the union is a pointer: any 64 bits are valid.
        unsafe { self.0.__bindgen_anon_1.wr_id }
    }

    /// Returns where the data is to go.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the number of pieces is negative.
    pub fn sges(&self) -> Result<&'a [Sge]> {
        // SAFETY: The consumer passes requests that are valid and do not change.
        unsafe { sges(self.0.sg_list, self.0.num_sge) }
    }
}

/// The receive requests of one call.
///
/// # Invariants
///
/// `next` is null, or the first of a list of requests that are valid and do not change during `'a`.
pub struct RecvWrs<'a> {
    next: *const bindings::ib_recv_wr,
    _wrs: PhantomData<&'a bindings::ib_recv_wr>,
}

impl RecvWrs<'_> {
    /// Gives each request to `post`, up to the first that fails, which the consumer is told of.
    ///
    /// # Errors
    ///
    /// That of `post`.
    pub fn post_each(&mut self, mut post: impl FnMut(&RecvWr<'_>) -> Result) -> Result {
        // SAFETY: By the type invariants.
        while let Some(raw) = unsafe { self.next.as_ref() } {
            post(&RecvWr(raw))?;
            self.next = raw.next;
        }
        Ok(())
    }
}

impl<T: Driver> Shims<T> {
    /// # Safety
    ///
    /// As the device operation `post_send`.
    pub(super) unsafe extern "C" fn post_send(
        raw: *mut bindings::ib_qp,
        wr: *const bindings::ib_send_wr,
        bad_wr: *mut *const bindings::ib_send_wr,
    ) -> c_int {
        // SAFETY: The consumer passes a queue pair of the kernel, which it keeps during the call.
        let (device, ty) = unsafe { ((*raw).device, QpType::try_from((*raw).qp_type)) };
        // SAFETY: The consumer passes what `create_qp` made.
        let qp = unsafe { Qp::<T>::from_raw(raw) };
        // INVARIANT: The consumer passes a list of requests for this queue pair.
        let post = |ty| {
            let mut wrs = SendWrs {
                next: wr,
                ty,
                _wrs: PhantomData,
            };
            // SAFETY: A device operation is running.
            let ret = unsafe { Self::with_cx(device, |cx| T::Qp::post_send(qp, cx, &mut wrs)) };
            (ret, wrs.next)
        };
        let (ret, rest) = ty.map_or_else(|e| (Err(e), wr), post);
        // SAFETY: The core passes a place for the request that failed.
        unsafe { *bad_wr = rest };
        outcome(ret, rest.is_null())
    }

    /// # Safety
    ///
    /// As the device operation `post_recv`.
    pub(super) unsafe extern "C" fn post_recv(
        raw: *mut bindings::ib_qp,
        wr: *const bindings::ib_recv_wr,
        bad_wr: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: The consumer passes a queue pair of the kernel, which it keeps during the call.
        let device = unsafe { (*raw).device };
        // SAFETY: The consumer passes what `create_qp` made.
        let qp = unsafe { Qp::<T>::from_raw(raw) };
        let post = |cx: &Cx<'_, T>, wrs: &mut RecvWrs<'_>| T::Qp::post_recv(qp, cx, wrs);
        // SAFETY: A device operation is running, and by the safety requirements of this function.
        unsafe { Self::post_recvs(device, wr, bad_wr, post) }
    }

    /// # Safety
    ///
    /// As the device operation `post_srq_recv`.
    pub(super) unsafe extern "C" fn post_srq_recv(
        raw: *mut bindings::ib_srq,
        wr: *const bindings::ib_recv_wr,
        bad_wr: *mut *const bindings::ib_recv_wr,
    ) -> c_int {
        // SAFETY: The consumer passes a queue of the kernel, which it keeps during the call.
        let device = unsafe { (*raw).device };
        // SAFETY: The consumer passes what `create_srq` made.
        let srq = unsafe { Srq::<T>::from_raw(raw) };
        let post = |cx: &Cx<'_, T>, wrs: &mut RecvWrs<'_>| T::Srq::post_recv(srq, cx, wrs);
        // SAFETY: As in `post_recv`.
        unsafe { Self::post_recvs(device, wr, bad_wr, post) }
    }

    /// # Safety
    ///
    /// Must be called by an operation of `device` that posts receive requests, with its arguments.
    unsafe fn post_recvs(
        device: *mut bindings::ib_device,
        wr: *const bindings::ib_recv_wr,
        bad_wr: *mut *const bindings::ib_recv_wr,
        post: impl FnOnce(&Cx<'_, T>, &mut RecvWrs<'_>) -> Result,
    ) -> c_int {
        // INVARIANT: The consumer passes a list of requests.
        let mut wrs = RecvWrs {
            next: wr,
            _wrs: PhantomData,
        };
        // SAFETY: By the safety requirements.
        let ret = unsafe { Self::with_cx(device, |cx| post(cx, &mut wrs)) };
        // SAFETY: The core passes a place for the request that failed.
        unsafe { *bad_wr = wrs.next };
        outcome(ret, wrs.next.is_null())
    }
}

/// Returns what the consumer gets: an error if, and only if, a request was not posted.
fn outcome(ret: Result, all_posted: bool) -> c_int {
    match ret {
        _ if all_posted => 0,
        Ok(()) => EINVAL.to_errno(),
        Err(e) => e.to_errno(),
    }
}
