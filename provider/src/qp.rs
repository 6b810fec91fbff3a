// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queue pairs: the send and receive rings.

use crate::batch::Batch;
use crate::ffi::memory::{Buffer, Slot};
use crate::lock::Lock;
use crate::srq::Srq;
use crate::tracker::Tracker;
use crate::wr::{Payload, SendWr};
use crate::Errno;
use qiao_hw::cqe::OPCODE_RECV;
use qiao_hw::qp::QpType;
use qiao_hw::queue::{self as hw, QpLayout, QpNeeds};
use qiao_hw::wqe::{
    blocks, send_flag, BlockWriter, DataSeg, InlineSeg, RecvCtrl, SendHead, BLOCK_SIZE, SIZE_UNIT,
};
use std::sync::Arc;
use zerocopy::IntoBytes;

/// What the completion queues of a queue pair need of it.
pub(crate) struct Queues {
    qpn: u32,
    pub(crate) send: Tracker,
    recv: Receive,
}

/// Where receive requests come from.
pub(crate) enum Receive {
    /// The queue pair.
    Own(Tracker),
    /// A queue that it shares.
    Shared(Arc<Srq>),
}

impl Queues {
    /// Frees a receive request; returns its cookie.
    pub(crate) fn received(&self, index: u32) -> u64 {
        match &self.recv {
            Receive::Own(tracker) => tracker.complete(index),
            Receive::Shared(srq) => srq.complete(index),
        }
    }

    /// Takes note of a completion that nobody will poll: a request of a shared queue is free then.
    pub(crate) fn forget(&self, opcode: u8, index: u32) {
        if let (Receive::Shared(srq), true) = (&self.recv, opcode & OPCODE_RECV != 0) {
            srq.complete(index);
        }
    }

    pub(crate) fn qpn(&self) -> u32 {
        self.qpn
    }
}

/// What kind of requests a queue pair takes, and where they go in its buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// The rings.
    pub(crate) layout: QpLayout,
    /// Limits of each request.
    pub(crate) needs: QpNeeds,
    /// Type.
    pub(crate) ty: QpType,
    /// Whether every send request raises a completion.
    pub(crate) signal_all: bool,
}

/// A queue pair.
pub(crate) struct Qp {
    shape: Shape,
    buffer: Buffer,
    send: Lock<SendRing>,
    /// None if it shares a queue.
    recv: Option<Lock<RecvRing>>,
    queues: Arc<Queues>,
}

/// A send ring.
pub(crate) struct SendRing {
    /// Free-running index of the next request.
    pub(crate) head: u32,
    slot: Slot,
    /// What is being built.
    pub(crate) batch: Batch,
}

struct RecvRing {
    places: hw::RecvRing,
    /// Free-running index of the next request.
    head: u32,
    slot: Slot,
}

/// What a queue pair receives from: its own queue, which has a doorbell slot, or a shared one.
pub(crate) enum Source {
    /// Its own.
    Own(Slot),
    /// A shared one.
    Shared(Arc<Srq>),
}

impl SendRing {
    /// Tells the device of the requests up to `head`.
    pub(crate) fn advance(&mut self, head: u32) {
        if head != self.head {
            self.head = head;
            self.slot.ring(u64::from(head));
        }
    }
}

impl Qp {
    pub(crate) fn new(
        qpn: u32,
        shape: Shape,
        buffer: Buffer,
        send_slot: Slot,
        source: Source,
    ) -> Self {
        let (recv, slot) = match (source, shape.layout.rq()) {
            (Source::Own(slot), Some(places)) => {
                let tracker = Tracker::new(places.size());
                (Receive::Own(tracker), Some((places, slot)))
            }
            (Source::Shared(srq), _) => (Receive::Shared(srq), None),
            (Source::Own(_), None) => unreachable!("a layout has no ring with an SRQ only"),
        };
        Self {
            shape,
            buffer,
            send: Lock::new(SendRing {
                head: 0,
                slot: send_slot,
                batch: Batch::default(),
            }),
            recv: slot.map(|(places, slot)| {
                Lock::new(RecvRing {
                    places,
                    head: 0,
                    slot,
                })
            }),
            queues: Arc::new(Queues {
                qpn,
                send: Tracker::new(shape.layout.sq()),
                recv,
            }),
        }
    }

    #[cfg(test)]
    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(crate) fn queues(&self) -> &Arc<Queues> {
        &self.queues
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn send_ring(&self) -> &Lock<SendRing> {
        &self.send
    }

    /// Empties both rings, as the device has done.
    pub(crate) fn reset(&self) {
        self.send.lock().head = 0;
        self.queues.send.reset();
        if let (Some(ring), Receive::Own(tracker)) = (&self.recv, &self.queues.recv) {
            ring.lock().head = 0;
            tracker.reset();
        }
    }

    /// Posts send requests until one is refused.
    ///
    /// # Errors
    ///
    /// How many were posted, and EINVAL for a malformed request or ENOMEM for a full ring.
    pub(crate) fn post_send<P: Payload>(
        &self,
        requests: impl Iterator<Item = Result<(SendWr, P), Errno>>,
    ) -> Result<(), (usize, Errno)> {
        let mut ring = self.send.lock();
        let mut end = ring.head;
        let mut result = Ok(());
        for (n, request) in requests.enumerate() {
            match request.and_then(|(wr, data)| self.write_send(end, &wr, &data)) {
                Ok(next) => end = next,
                Err(errno) => {
                    result = Err((n, errno));
                    break;
                }
            }
        }
        ring.advance(end);
        result
    }

    /// Writes a request from block `index` on, and returns the index behind it. The device does not
    /// look at it before the doorbell is rung; the caller holds the ring.
    ///
    /// # Errors
    ///
    /// EINVAL for a malformed request, ENOMEM if the ring is full.
    pub(crate) fn write_send(
        &self,
        index: u32,
        wr: &SendWr,
        data: &impl Payload,
    ) -> Result<u32, Errno> {
        let head = &wr.head;
        if head.datagram.is_some() != self.shape.ty.is_datagram()
            || !head.opcode.is_for(self.shape.ty)
        {
            return Err(libc::EINVAL);
        }
        let count = data.segments().len();
        let inline = head.flags & send_flag::INLINE != 0;
        let length = if inline {
            (size_of::<InlineSeg>() + self.inline_length(head, data)?).next_multiple_of(SIZE_UNIT)
        } else if count > self.shape.needs.max_send_sge as usize {
            return Err(libc::EINVAL);
        } else {
            size_of::<DataSeg>() * count
        };
        let bytes = head.size() + length;
        if blocks(bytes) > self.queues.send.free(index) as usize {
            return Err(libc::ENOMEM);
        }
        let mut out = BlockWriter::new(index, |index, block: &[u8; BLOCK_SIZE]| {
            self.buffer
                .write(self.shape.layout.send_offset(index), block);
        });
        let signaled = if self.shape.signal_all {
            send_flag::SIGNALED
        } else {
            0
        };
        let head = SendHead {
            flags: head.flags | signaled,
            ..*head
        };
        // CAST: `QpLayout` bounds a request below 4096 bytes, so that all of these are small.
        let (end, size) = (
            index.wrapping_add(blocks(bytes) as u32),
            (bytes / SIZE_UNIT) as u8,
        );
        if inline {
            head.write(&mut out, index, size, 0);
            write_inline(&mut out, data);
        } else {
            // CAST: As above.
            head.write(&mut out, index, size, count as u8);
            data.segments()
                .for_each(|segment| out.push(segment.as_bytes()));
        }
        out.finish();
        self.queues.send.post(index, end, wr.id);
        Ok(end)
    }

    /// Returns the bytes of inline data of a request.
    ///
    /// # Errors
    ///
    /// EINVAL if the request can not have so much.
    fn inline_length(&self, head: &SendHead, data: &impl Payload) -> Result<usize, Errno> {
        let length = data.segments().map(|s| s.length.get() as usize).sum();
        // What comes back needs memory to go to.
        if head.opcode.reads() || length > self.shape.needs.max_inline as usize {
            return Err(libc::EINVAL);
        }
        Ok(length)
    }

    /// Posts receive requests until one is refused.
    ///
    /// # Errors
    ///
    /// As [`Qp::post_send`]; EINVAL if the queue pair shares a queue.
    pub(crate) fn post_recv<S: ExactSizeIterator<Item = DataSeg>>(
        &self,
        requests: impl Iterator<Item = (u64, S)>,
    ) -> Result<(), (usize, Errno)> {
        let (Some(ring), Receive::Own(tracker)) = (&self.recv, &self.queues.recv) else {
            return Err((0, libc::EINVAL));
        };
        let mut ring = ring.lock();
        let before = ring.head;
        let mut result = Ok(());
        for (n, (id, segments)) in requests.enumerate() {
            match self.write_recv(&ring, tracker, id, segments) {
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
        ring: &RecvRing,
        tracker: &Tracker,
        id: u64,
        segments: impl ExactSizeIterator<Item = DataSeg>,
    ) -> Result<(), Errno> {
        let index = ring.head;
        if segments.len() > self.shape.needs.max_recv_sge as usize {
            return Err(libc::EINVAL);
        }
        if tracker.free(index) == 0 {
            return Err(libc::ENOMEM);
        }
        write_recv(&self.buffer, ring.places.offset(index), index, segments);
        tracker.post(index, index.wrapping_add(1), id);
        Ok(())
    }
}

/// Writes a receive request, which says `index`, at byte `at` of a buffer.
pub(crate) fn write_recv(
    buffer: &Buffer,
    mut at: usize,
    index: u32,
    segments: impl ExactSizeIterator<Item = DataSeg>,
) {
    // CAST: At most `max_recv_sge`, which is small.
    let num_sge = segments.len() as u32;
    let ctrl = RecvCtrl {
        num_sge: num_sge.into(),
        index: index.into(),
        rsvd: 0.into(),
    };
    buffer.write(at, ctrl.as_bytes());
    for segment in segments {
        at += size_of::<DataSeg>();
        buffer.write(at, segment.as_bytes());
    }
}

/// Writes the byte count and the data, filled up.
fn write_inline<F: FnMut(u32, &[u8; BLOCK_SIZE])>(
    out: &mut BlockWriter<BLOCK_SIZE, F>,
    payload: &impl Payload,
) {
    /// Inline data is copied in pieces of this size, through the stack.
    const PIECE: usize = BLOCK_SIZE;

    let length: u32 = payload.segments().map(|s| s.length.get()).sum();
    let head = InlineSeg {
        length: length.into(),
    };
    out.push(head.as_bytes());
    for segment in payload.segments() {
        let total = segment.length.get() as usize;
        for offset in (0..total).step_by(PIECE) {
            let mut piece = [0; PIECE];
            let n = PIECE.min(total - offset);
            payload.copy(&segment, offset, &mut piece[..n]);
            out.push(&piece[..n]);
        }
    }
    out.pad();
}
