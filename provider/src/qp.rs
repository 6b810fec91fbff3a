// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs: the send and receive rings.

use crate::ffi::memory::{Buffer, Slot};
use crate::wr::{Payload, SendWr};
use crate::Errno;
use qiao_hw::ring::RingSize;
use qiao_hw::wqe::{
    self, blocks, inline_size, send_flag, sge_size, AtomicSeg, DataSeg, InlineSeg, RecvCtrl,
    RemoteSeg, SendCtrl, SendOpcode, BLOCK_SIZE, MIN_RECV_STRIDE, SIZE_UNIT,
};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use zerocopy::IntoBytes;

/// Cookies of the requests in one ring, and where the ring is free again.
pub(crate) struct Tracker {
    size: RingSize,
    ids: Box<[AtomicU64]>,
    /// Free-running index behind the request that starts at a slot.
    ends: Box<[AtomicU32]>,
    /// Free-running index before which all is free.
    tail: AtomicU32,
}

impl Tracker {
    fn new(size: RingSize) -> Self {
        let n = size.entries() as usize;
        Self {
            size,
            ids: (0..n).map(|_| AtomicU64::new(0)).collect(),
            ends: (0..n).map(|_| AtomicU32::new(0)).collect(),
            tail: AtomicU32::new(0),
        }
    }

    fn post(&self, index: u32, end: u32, id: u64) {
        let slot = self.size.slot(index) as usize;
        self.ids[slot].store(id, Ordering::Relaxed);
        self.ends[slot].store(end, Ordering::Relaxed);
    }

    fn free(&self, head: u32) -> u32 {
        let used = head.wrapping_sub(self.tail.load(Ordering::Acquire));
        self.size.entries().saturating_sub(used)
    }

    /// Frees the request at `index` and all before it; returns its cookie.
    pub(crate) fn complete(&self, index: u32) -> u64 {
        let slot = self.size.slot(index) as usize;
        let id = self.ids[slot].load(Ordering::Relaxed);
        let end = self.ends[slot].load(Ordering::Relaxed);
        self.tail.store(end, Ordering::Release);
        id
    }
}

/// What the completion queues of a queue pair need of it.
pub(crate) struct Queues {
    qpn: u32,
    pub(crate) send: Tracker,
    pub(crate) recv: Tracker,
}

impl Queues {
    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }
}

/// Sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Blocks of the send ring.
    pub(crate) send: RingSize,
    /// Requests of the receive ring.
    pub(crate) recv: RingSize,
    /// Log2 of the bytes of a receive request.
    pub(crate) log_stride: u8,
    /// Most data segments of a send request.
    pub(crate) max_send_sge: u32,
    /// Most data segments of a receive request.
    pub(crate) max_recv_sge: u32,
    /// Most bytes of inline data.
    pub(crate) max_inline: u32,
    /// Send requests that always fit.
    pub(crate) max_send_wr: u32,
}

impl Layout {
    /// Returns the sizes for at least these numbers; [`None`] if no ring is large enough.
    pub(crate) fn new(
        send_wr: u32,
        send_sge: u32,
        inline: u32,
        recv_wr: u32,
        recv_sge: u32,
    ) -> Option<Self> {
        // The largest head that a connected queue pair has: an atomic's.
        let head = SendOpcode::CompareSwap;
        let sges = sge_size(head, false, usize::try_from(send_sge).ok()?);
        let data = inline_size(SendOpcode::RdmaWrite, false, usize::try_from(inline).ok()?);
        let bytes = sges.max(data);
        if bytes > usize::from(u8::MAX) * SIZE_UNIT {
            return None;
        }
        // CAST: Less than 4096 bytes.
        let per_wqe = blocks(bytes) as u32;
        let send = RingSize::for_entries(send_wr.max(1).checked_mul(per_wqe)?)?;
        let recv = RingSize::for_entries(recv_wr.max(1))?;
        let stride = recv_sge
            .checked_mul(size_of::<DataSeg>() as u32)?
            .checked_add(size_of::<RecvCtrl>() as u32)?
            .max(MIN_RECV_STRIDE as u32)
            .checked_next_power_of_two()?;
        Some(Self {
            send,
            recv,
            // CAST: At most 31.
            log_stride: stride.trailing_zeros() as u8,
            max_send_sge: send_sge,
            max_recv_sge: recv_sge,
            max_inline: inline,
            max_send_wr: send.entries() / per_wqe,
        })
    }

    fn recv_bytes(&self) -> usize {
        ((self.recv.entries() as usize) << self.log_stride).next_multiple_of(BLOCK_SIZE)
    }

    /// Returns the bytes of the buffer: the receive ring and behind it the send ring.
    pub(crate) fn buffer_size(&self) -> usize {
        self.recv_bytes() + self.send.entries() as usize * BLOCK_SIZE
    }
}

/// A queue pair.
pub(crate) struct Qp {
    layout: Layout,
    buffer: Buffer,
    signal_all: bool,
    send: Mutex<Ring>,
    recv: Mutex<Ring>,
    queues: Arc<Queues>,
}

struct Ring {
    /// Free-running index of the next request.
    head: u32,
    slot: Slot,
}

/// Writes a send request block by block.
struct Blocks<'a> {
    qp: &'a Qp,
    index: u32,
    block: [u8; BLOCK_SIZE],
    fill: usize,
}

impl Blocks<'_> {
    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let n = bytes.len().min(BLOCK_SIZE - self.fill);
            self.block[self.fill..self.fill + n].copy_from_slice(&bytes[..n]);
            self.fill += n;
            bytes = &bytes[n..];
            if self.fill == BLOCK_SIZE {
                self.flush();
            }
        }
    }

    fn flush(&mut self) {
        let slot = self.qp.layout.send.slot(self.index) as usize;
        let at = self.qp.layout.recv_bytes() + slot * BLOCK_SIZE;
        self.qp.buffer.write(at, &self.block[..self.fill]);
        self.index = self.index.wrapping_add(1);
        self.fill = 0;
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    // Panics abort: a poisoned lock is never seen.
    ring.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Qp {
    pub(crate) fn new(
        qpn: u32,
        layout: Layout,
        buffer: Buffer,
        signal_all: bool,
        send_slot: Slot,
        recv_slot: Slot,
    ) -> Self {
        Self {
            layout,
            buffer,
            signal_all,
            send: Mutex::new(Ring {
                head: 0,
                slot: send_slot,
            }),
            recv: Mutex::new(Ring {
                head: 0,
                slot: recv_slot,
            }),
            queues: Arc::new(Queues {
                qpn,
                send: Tracker::new(layout.send),
                recv: Tracker::new(layout.recv),
            }),
        }
    }

    pub(crate) fn queues(&self) -> &Arc<Queues> {
        &self.queues
    }

    /// Empties both rings, as the device has done.
    pub(crate) fn reset(&self) {
        for (ring, tracker) in [
            (&self.send, &self.queues.send),
            (&self.recv, &self.queues.recv),
        ] {
            let mut ring = lock(ring);
            ring.head = 0;
            tracker.tail.store(0, Ordering::Release);
        }
    }

    /// Posts send requests until one is refused.
    ///
    /// # Errors
    ///
    /// How many were posted, and EINVAL for a malformed request or ENOMEM for a full ring.
    pub(crate) fn post_send<P: Payload>(
        &self,
        requests: impl Iterator<Item = Result<SendWr<P>, Errno>>,
    ) -> Result<(), (usize, Errno)> {
        let mut ring = lock(&self.send);
        let before = ring.head;
        let mut result = Ok(());
        for (n, request) in requests.enumerate() {
            match request.and_then(|wr| self.write_send(ring.head, &wr)) {
                Ok(end) => ring.head = end,
                Err(errno) => {
                    result = Err((n, errno));
                    break;
                }
            }
        }
        if ring.head != before {
            ring.slot.ring(u64::from(ring.head));
        }
        result
    }

    fn write_send<P: Payload>(&self, index: u32, wr: &SendWr<P>) -> Result<u32, Errno> {
        let segments = wr.payload.segments();
        let count = segments.len();
        if count > self.layout.max_send_sge as usize {
            return Err(libc::EINVAL);
        }
        let inline = wr.flags & send_flag::INLINE != 0;
        let mut length = 0usize;
        let bytes = if inline {
            length = segments.map(|s| s.length.get() as usize).sum();
            if length > self.layout.max_inline as usize {
                return Err(libc::EINVAL);
            }
            inline_size(wr.opcode, false, length)
        } else {
            sge_size(wr.opcode, false, count)
        };
        // CAST: `Layout::new` bounds a request below 4096 bytes.
        let end = index.wrapping_add(blocks(bytes) as u32);
        if blocks(bytes) > self.queues.send.free(index) as usize {
            return Err(libc::ENOMEM);
        }
        let mut out = Blocks {
            qp: self,
            index,
            block: [0; BLOCK_SIZE],
            fill: 0,
        };
        let mut ctrl = SendCtrl::zeroed();
        ctrl.opcode = wr.opcode.to_wire();
        ctrl.flags = wr.flags
            | if self.signal_all {
                send_flag::SIGNALED
            } else {
                0
            };
        // CAST: As above.
        ctrl.size = (bytes / SIZE_UNIT) as u8;
        ctrl.num_sge = if inline { 0 } else { count as u8 };
        ctrl.index.set(index);
        ctrl.imm_or_rkey = wr.imm_or_rkey;
        out.push(ctrl.as_bytes());
        if let Some((addr, rkey)) = wr.remote {
            let seg = RemoteSeg {
                addr: addr.into(),
                rkey: rkey.into(),
                rsvd: 0.into(),
            };
            out.push(seg.as_bytes());
        }
        if let Some((swap_or_add, compare)) = wr.atomic {
            let seg = AtomicSeg {
                swap_or_add: swap_or_add.into(),
                compare: compare.into(),
            };
            out.push(seg.as_bytes());
        }
        if inline {
            write_inline(&mut out, &wr.payload, length);
        } else {
            for segment in wr.payload.segments() {
                out.push(segment.as_bytes());
            }
        }
        if out.fill > 0 {
            out.flush();
        }
        self.queues.send.post(index, end, wr.id);
        Ok(end)
    }

    /// Posts receive requests until one is refused.
    ///
    /// # Errors
    ///
    /// As [`Qp::post_send`].
    pub(crate) fn post_recv<S: ExactSizeIterator<Item = DataSeg>>(
        &self,
        requests: impl Iterator<Item = (u64, S)>,
    ) -> Result<(), (usize, Errno)> {
        let mut ring = lock(&self.recv);
        let before = ring.head;
        let mut result = Ok(());
        for (n, (id, segments)) in requests.enumerate() {
            match self.write_recv(ring.head, id, segments) {
                Ok(()) => ring.head = ring.head.wrapping_add(1),
                Err(errno) => {
                    result = Err((n, errno));
                    break;
                }
            }
        }
        if ring.head != before {
            ring.slot.ring(u64::from(ring.head));
        }
        result
    }

    fn write_recv(
        &self,
        index: u32,
        id: u64,
        segments: impl ExactSizeIterator<Item = DataSeg>,
    ) -> Result<(), Errno> {
        if segments.len() > self.layout.max_recv_sge as usize {
            return Err(libc::EINVAL);
        }
        if self.queues.recv.free(index) == 0 {
            return Err(libc::ENOMEM);
        }
        let mut at = (self.layout.recv.slot(index) as usize) << self.layout.log_stride;
        // CAST: At most `max_recv_sge`, which is small.
        let num_sge = segments.len() as u32;
        let ctrl = RecvCtrl {
            num_sge: num_sge.into(),
            index: index.into(),
            rsvd: 0.into(),
        };
        self.buffer.write(at, ctrl.as_bytes());
        for segment in segments {
            at += size_of::<DataSeg>();
            self.buffer.write(at, segment.as_bytes());
        }
        self.queues.recv.post(index, index.wrapping_add(1), id);
        Ok(())
    }
}

fn write_inline<P: Payload>(out: &mut Blocks<'_>, payload: &P, length: usize) {
    /// Inline data is copied in pieces of this size, through the stack.
    const PIECE: usize = BLOCK_SIZE;
    // CAST: `Layout` bounds inline data below 4096 bytes.
    out.push(
        InlineSeg {
            length: (length as u32).into(),
        }
        .as_bytes(),
    );
    for segment in payload.segments() {
        let total = segment.length.get() as usize;
        let mut offset = 0;
        while offset < total {
            let mut piece = [0; PIECE];
            let n = PIECE.min(total - offset);
            payload.copy(&segment, offset, &mut piece[..n]);
            out.push(&piece[..n]);
            offset += n;
        }
    }
    let filled = size_of::<InlineSeg>() + length;
    let pad = filled.next_multiple_of(SIZE_UNIT) - filled;
    out.push(&[0; wqe::SIZE_UNIT][..pad]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_hold_what_was_asked_for() {
        let l = Layout::new(100, 4, 60, 17, 1).unwrap();
        assert!(l.max_send_wr >= 100);
        assert_eq!(l.recv.entries(), 32);
        assert_eq!(l.log_stride, 5);
        assert_eq!(l.buffer_size(), 32 * 32 + 256 * 64);
        assert!(Layout::new(1, 300, 0, 1, 1).is_none());
        assert!(Layout::new(u32::MAX, 1, 0, 1, 1).is_none());
        assert!(Layout::new(1, 1, 0, u32::MAX, 1).is_none());
        assert!(Layout::new(1, 1, 0, 1, u32::MAX).is_none());
    }

    #[test]
    fn a_completion_frees_the_requests_before_it() {
        let t = Tracker::new(RingSize::from_log(2).unwrap());
        t.post(u32::MAX, 1, 7);
        t.post(1, 2, 8);
        t.tail.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(t.free(2), 1);
        assert_eq!(t.complete(1), 8);
        assert_eq!(t.free(2), 4);
    }
}
