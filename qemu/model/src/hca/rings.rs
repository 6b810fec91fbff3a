// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Work queues in host memory: fetch and decode of work requests.
//!
//! A request is copied once and decoded from the copy, since its owner may change it meanwhile.

use super::buffer::Buffer;
use super::port::path_is_valid;
use crate::mem::{Dma, DmaFault};
use crate::transport::{Data, Datagram, Flush, RecvWqe, SendWqe, Sge};
use qiao_hw::cqe::CqeStatus;
use qiao_hw::describe::reserved_is_zero;
use qiao_hw::queue::RecvRing;
use qiao_hw::ring::{used, RingSize};
use qiao_hw::wqe::{
    blocks, placement, send_flag, AtomicSeg, DataSeg, DatagramSeg, FlushLevel, FlushSeg, InlineSeg,
    RecvCtrl, RemoteSeg, SendCtrl, SendOpcode, BLOCK_SIZE, SIZE_UNIT,
};
use zerocopy::FromBytes;

/// A request that the device refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Malformed(CqeStatus);

impl From<DmaFault> for Malformed {
    fn from(_: DmaFault) -> Self {
        Self(CqeStatus::LocalQpOperation)
    }
}

const BAD: Malformed = Malformed(CqeStatus::LocalQpOperation);

/// Limits of the requests of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// What the device can do; bits in `qiao_hw::caps::feature`.
    pub features: u64,
    /// Most data segments.
    pub max_sge: usize,
    /// Most bytes of inline data.
    pub max_inline: usize,
    /// Most bytes of a send request.
    pub max_sq_wqe: usize,
    /// Most bytes of a message.
    pub max_message: u32,
    /// Whether requests say where they go.
    pub datagrams: bool,
    /// P_Key indices that they may use: more than the first on a GSI QP only.
    pub pkeys: u16,
}

/// One ring of work requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    offset: u64,
    size: RingSize,
    stride: usize,
    producer: u32,
    next: u32,
}

impl Ring {
    /// Makes an empty ring at `offset` of a buffer, of entries of `stride` bytes.
    pub fn new(offset: u64, size: RingSize, stride: usize) -> Self {
        Self {
            offset,
            size,
            stride,
            producer: 0,
            next: 0,
        }
    }

    /// Returns producer index and the index of the next entry.
    pub fn indices(&self) -> (u32, u32) {
        (self.producer, self.next)
    }

    /// Returns how many entries wait.
    pub fn waiting(&self) -> u32 {
        self.producer.wrapping_sub(self.next)
    }

    /// Takes the next entry and returns its index.
    pub fn take(&mut self) -> Option<u32> {
        let index = self.next;
        if self.waiting() == 0 {
            return None;
        }
        self.next = index.wrapping_add(1);
        Some(index)
    }

    /// Takes the value of an index slot; returns false if it cannot be a producer index.
    pub fn set_producer(&mut self, value: u64) -> bool {
        let Ok(producer) = u32::try_from(value) else {
            return false;
        };
        if used(self.size, producer, self.next).is_none() {
            return false;
        }
        self.producer = producer;
        true
    }

    /// Copies entry by entry, so that a request may go on at the start of the ring.
    pub fn read(
        &self,
        dma: &Dma,
        buffer: &Buffer,
        index: u32,
        out: &mut [u8],
    ) -> Result<(), DmaFault> {
        for (n, part) in (0u32..).zip(out.chunks_mut(self.stride)) {
            let slot = self.size.slot(index.wrapping_add(n));
            buffer.read(
                dma,
                self.offset + u64::from(slot) * self.stride as u64,
                part,
            )?;
        }
        Ok(())
    }
}

/// Where the rings of a queue pair lie in its buffer.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks of the send ring.
    pub sq: RingSize,
    /// Offset of the send ring.
    pub sq_offset: u64,
    /// The receive ring, if there is one, and its offset.
    pub rq: Option<(RecvRing, u64)>,
}

impl Shape {
    /// Returns the bytes of the buffer; [`None`] if the rings overlap.
    pub fn length(&self) -> Option<u64> {
        let sq = self.sq_offset..self.sq_offset + u64::from(self.sq.entries()) * BLOCK_SIZE as u64;
        let Some((requests, offset)) = self.rq else {
            return Some(sq.end);
        };
        let rq = offset..offset + requests.bytes() as u64;
        let apart = sq.end <= rq.start || rq.end <= sq.start;
        apart.then(|| sq.end.max(rq.end))
    }
}

/// The rings of a queue pair.
#[derive(Debug)]
pub struct Rings {
    buffer: Buffer,
    sq: Ring,
    rq: Option<Ring>,
    limits: Limits,
    signal_all: bool,
}

impl Rings {
    /// Makes empty rings.
    pub fn new(buffer: Buffer, shape: &Shape, limits: Limits, signal_all: bool) -> Self {
        let recv = |(requests, offset): (RecvRing, u64)| {
            Ring::new(offset, requests.size(), 1 << requests.log_stride())
        };
        Self {
            buffer,
            sq: Ring::new(shape.sq_offset, shape.sq, BLOCK_SIZE),
            rq: shape.rq.map(recv),
            limits,
            signal_all,
        }
    }

    /// Returns producer and next index of the send ring and of the receive ring.
    pub fn indices(&self) -> ((u32, u32), Option<(u32, u32)>) {
        (self.sq.indices(), self.rq.as_ref().map(Ring::indices))
    }

    /// Returns the pages that the buffer keeps.
    pub fn pages(&self) -> usize {
        self.buffer.pages()
    }

    /// Empties both rings, as a queue pair in RESET demands; indices start at zero again.
    pub fn reset(&mut self) {
        for ring in [&mut self.sq].into_iter().chain(&mut self.rq) {
            (ring.producer, ring.next) = (0, 0);
        }
    }

    /// Takes the value of the send slot; returns false if it cannot be true.
    pub fn ring_send(&mut self, value: u64) -> bool {
        self.sq.set_producer(value)
    }

    /// Takes the value of the receive slot; returns false if it cannot be true.
    pub fn ring_recv(&mut self, value: u64) -> bool {
        self.rq.as_mut().is_some_and(|rq| rq.set_producer(value))
    }

    /// Takes the next send request.
    pub fn next_send(&mut self, dma: &Dma) -> Option<SendWqe> {
        if self.sq.waiting() == 0 {
            return None;
        }
        let index = self.sq.next;
        let mut bytes = [0; u8::MAX as usize * SIZE_UNIT];
        let (taken, decoded) = match self.fetch_send(dma, index, &mut bytes) {
            Ok(length) => (blocks(length) as u32, self.decode_send(&bytes[..length])),
            // Where the next one begins is not known: what waits goes down with this one.
            Err(error) => (self.sq.waiting(), Err(error)),
        };
        self.sq.next = index.wrapping_add(taken);
        let mut wqe = decoded.unwrap_or_else(|Malformed(status)| failed_send(&bytes, status));
        wqe.index = index;
        Some(wqe)
    }

    /// Copies the request at `index` and returns its length in bytes.
    fn fetch_send(&self, dma: &Dma, index: u32, bytes: &mut [u8]) -> Result<usize, Malformed> {
        let (first, _) = bytes.split_at_mut(BLOCK_SIZE);
        self.sq.read(dma, &self.buffer, index, first)?;
        let (ctrl, _) = SendCtrl::read_from_prefix(first).map_err(|_| BAD)?;
        let length = usize::from(ctrl.size) * SIZE_UNIT;
        if length < size_of::<SendCtrl>() || blocks(length) > self.sq.waiting() as usize {
            return Err(BAD);
        }
        if length > BLOCK_SIZE {
            let rest = &mut bytes[BLOCK_SIZE..length];
            self.sq
                .read(dma, &self.buffer, index.wrapping_add(1), rest)?;
        }
        Ok(length)
    }

    fn decode_send(&self, bytes: &[u8]) -> Result<SendWqe, Malformed> {
        let (ctrl, mut rest) = take::<SendCtrl>(bytes)?;
        let opcode = SendOpcode::from_wire(ctrl.opcode)
            .filter(|o| o.needs() & !self.limits.features == 0)
            .ok_or(BAD)?;
        let known =
            send_flag::SIGNALED | send_flag::SOLICITED | send_flag::FENCE | send_flag::INLINE;
        if ctrl.flags & !known != 0
            || ctrl.rsvd.get() != 0
            || ctrl.index.get() != self.sq.next
            || bytes.len() > self.limits.max_sq_wqe
        {
            return Err(BAD);
        }
        let mut wqe = SendWqe {
            index: ctrl.index.get(),
            opcode,
            signaled: self.signal_all || ctrl.flags & send_flag::SIGNALED != 0,
            solicited: ctrl.flags & send_flag::SOLICITED != 0,
            fence: ctrl.flags & send_flag::FENCE != 0,
            imm: ctrl.imm_or_rkey,
            remote: (0, 0),
            atomic: (0, 0),
            flush: None,
            datagram: None,
            data: Data::Sges(Vec::new()),
            length: 0,
            error: None,
        };
        if has_remote(opcode) {
            let remote: RemoteSeg = take_from(&mut rest)?;
            if remote.rsvd.get() != 0 {
                return Err(BAD);
            }
            wqe.remote = (remote.addr.get(), remote.rkey.get());
        }
        if is_atomic(opcode) {
            let atomic: AtomicSeg = take_from(&mut rest)?;
            wqe.atomic = (atomic.swap_or_add.get(), atomic.compare.get());
        }
        if opcode == SendOpcode::Flush {
            wqe.flush = Some(flush(&take_from(&mut rest)?)?);
        }
        if self.limits.datagrams {
            wqe.datagram = Some(datagram(&take_from(&mut rest)?, self.limits.pkeys)?);
        }
        if ctrl.flags & send_flag::INLINE != 0 {
            wqe.data = Data::Inline(self.inline(&ctrl, opcode, rest)?);
        } else {
            wqe.data = Data::Sges(self.segments(ctrl.num_sge.into(), rest)?);
        }
        wqe.length = match &wqe.data {
            Data::Inline(data) => data.len() as u32,
            Data::Sges(sges) => {
                let total = total_length(sges);
                u32::try_from(total).map_err(|_| Malformed(CqeStatus::LocalLength))?
            }
        };
        if wqe.length > self.limits.max_message
            || fixed_length(opcode).is_some_and(|l| l != wqe.length)
        {
            return Err(Malformed(CqeStatus::LocalLength));
        }
        Ok(wqe)
    }

    fn inline(
        &self,
        ctrl: &SendCtrl,
        opcode: SendOpcode,
        rest: &[u8],
    ) -> Result<Vec<u8>, Malformed> {
        // What comes back needs memory to go to.
        if ctrl.num_sge != 0 || opcode.reads() {
            return Err(BAD);
        }
        let (head, data) = take::<InlineSeg>(rest)?;
        let length = head.length.get() as usize;
        if length > self.limits.max_inline {
            return Err(BAD);
        }
        let exact = (size_of::<InlineSeg>() + length).next_multiple_of(SIZE_UNIT);
        if rest.len() != exact {
            return Err(BAD);
        }
        Ok(data[..length].to_vec())
    }

    fn segments(&self, count: usize, mut rest: &[u8]) -> Result<Vec<Sge>, Malformed> {
        if count > self.limits.max_sge || rest.len() != count * size_of::<DataSeg>() {
            return Err(BAD);
        }
        (0..count)
            .map(|_| Ok(sge(&take_from(&mut rest)?)))
            .collect()
    }

    /// Takes the next receive request.
    pub fn next_recv(&mut self, dma: &Dma) -> Option<RecvWqe> {
        let ring = self.rq.as_mut()?;
        let index = ring.take()?;
        let mut bytes = vec![0; ring.stride];
        let fetched = ring.read(dma, &self.buffer, index, &mut bytes);
        let fetched = fetched.map(|()| bytes.as_slice());
        Some(received(index, fetched, index, self.limits.max_sge))
    }
}

/// Returns the receive request that a completion names `number`, as it was fetched; `index` is what it
/// must say of its place.
pub(super) fn received(
    number: u32,
    fetched: Result<&[u8], DmaFault>,
    index: u32,
    max_sge: usize,
) -> RecvWqe {
    let decoded = fetched
        .map_err(Malformed::from)
        .and_then(|bytes| decode_recv(bytes, index, max_sge));
    let (sges, error) = match decoded {
        Ok(sges) => (sges, None),
        Err(Malformed(status)) => (Vec::new(), Some(status)),
    };
    RecvWqe {
        index: number,
        length: total_length(&sges),
        sges,
        error,
    }
}

fn flush(seg: &FlushSeg) -> Result<Flush, Malformed> {
    const KNOWN: u8 = placement::GLOBAL | placement::PERSISTENT;
    let level = FlushLevel::from_wire(seg.level).ok_or(BAD)?;
    if !reserved_is_zero(seg) || seg.placement == 0 || seg.placement & !KNOWN != 0 {
        return Err(BAD);
    }
    Ok(Flush {
        length: seg.length.get(),
        placement: seg.placement,
        level,
    })
}

fn decode_recv(bytes: &[u8], index: u32, max_sge: usize) -> Result<Vec<Sge>, Malformed> {
    let (ctrl, mut rest) = take::<RecvCtrl>(bytes)?;
    let count = ctrl.num_sge.get() as usize;
    if ctrl.index.get() != index || ctrl.rsvd.get() != 0 || count > max_sge {
        return Err(BAD);
    }
    (0..count)
        .map(|_| Ok(sge(&take_from(&mut rest)?)))
        .collect()
}

fn datagram(seg: &DatagramSeg, pkeys: u16) -> Result<Datagram, Malformed> {
    let clean = reserved_is_zero(seg) && seg.pkey_index.get() < pkeys;
    if !clean || !path_is_valid(&seg.path) || seg.qpn.get() > 0xff_ffff {
        return Err(BAD);
    }
    Ok(Datagram {
        path: seg.path,
        qpn: seg.qpn.get(),
        qkey: seg.qkey.get(),
        pkey_index: seg.pkey_index.get(),
    })
}

fn sge(seg: &DataSeg) -> Sge {
    Sge {
        addr: seg.addr.get(),
        length: seg.length.get(),
        lkey: seg.lkey.get(),
    }
}

fn total_length(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

fn has_remote(opcode: SendOpcode) -> bool {
    use SendOpcode::*;
    matches!(
        opcode,
        RdmaWrite | RdmaWriteImm | RdmaRead | AtomicWrite | Flush
    ) || is_atomic(opcode)
}

/// Returns the bytes of data that a request must have, if it has no choice.
fn fixed_length(opcode: SendOpcode) -> Option<u32> {
    match opcode {
        SendOpcode::Flush => Some(0),
        SendOpcode::AtomicWrite => Some(8),
        _ => is_atomic(opcode).then_some(8),
    }
}

fn is_atomic(opcode: SendOpcode) -> bool {
    matches!(opcode, SendOpcode::CompareSwap | SendOpcode::FetchAdd)
}

/// A request that fails with `status` when its turn comes. The opcode is kept if it is one, since the
/// completion names it.
fn failed_send(bytes: &[u8], status: CqeStatus) -> SendWqe {
    SendWqe {
        index: 0,
        opcode: SendOpcode::from_wire(bytes[0]).unwrap_or(SendOpcode::Send),
        signaled: true,
        solicited: false,
        fence: false,
        imm: [0; 4],
        remote: (0, 0),
        atomic: (0, 0),
        flush: None,
        datagram: None,
        data: Data::Sges(Vec::new()),
        length: 0,
        error: Some(status),
    }
}

fn take<T: FromBytes>(bytes: &[u8]) -> Result<(T, &[u8]), Malformed> {
    T::read_from_prefix(bytes).map_err(|_| BAD)
}

fn take_from<T: FromBytes>(bytes: &mut &[u8]) -> Result<T, Malformed> {
    let (value, rest) = take(bytes)?;
    *bytes = rest;
    Ok(value)
}
