// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Queues against a mock of the device, which completes each send request, from many threads.

use crate::cq::Cq;
use crate::ffi::memory::{Buffer, DoorbellPage, Slot};
use crate::qp::{Qp, Shape, Source};
use crate::wr::{Payload, SendWr};
use crate::Errno;
use qiao_hw::cqe::{Cqe, CqeOpcode};
use qiao_hw::qp::QpType;
use qiao_hw::queue::{CqLayout, Limits, QpLayout, QpNeeds};
use qiao_hw::ring::owner;
use qiao_hw::wqe::{
    blocks, send_flag, DataSeg, InlineSeg, RemoteSeg, SendCtrl, SendHead, SendOpcode, SIZE_UNIT,
};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use zerocopy::{FromBytes, IntoBytes};

const LIMITS: Limits = Limits {
    max_sge: 32,
    max_inline: 512,
    log_max_sq_blocks: 16,
    log_max_rq_wqes: 15,
    log_max_cqe: 20,
};
const QPN: u32 = 7;
const CQ_ENTRIES: u32 = 64;

/// A queue pair and its completion queue, with what the device sees of them.
struct Bench {
    qp: Qp,
    cq: Cq,
    layout: QpLayout,
    send_slot: Slot,
    device: Mutex<Device>,
}

impl Bench {
    fn new(needs: QpNeeds) -> Self {
        let layout = QpLayout::for_needs(&LIMITS, QpType::Rc, &needs).unwrap();
        let cq_layout = CqLayout::for_entries(&LIMITS, CQ_ENTRIES).unwrap();
        let page = Arc::new(DoorbellPage::anonymous());
        let slot = |n: u32| Slot::new(Arc::clone(&page), 8 * n).unwrap();
        let shape = Shape {
            layout,
            needs,
            ty: QpType::Rc,
            signal_all: true,
        };
        let buffer = |size| Buffer::new(size).unwrap();
        let qp = Qp::new(
            QPN,
            shape,
            buffer(layout.size()),
            slot(0),
            Source::Own(slot(1)),
        );
        let cq = Cq::new(cq_layout, buffer(cq_layout.size()), slot(2));
        cq.attach(qp.queues());
        Self {
            qp,
            cq,
            layout,
            send_slot: slot(0),
            device: Mutex::default(),
        }
    }

    /// Completes what was posted until `done`: every request, in order, exactly as it stands.
    fn run(&self, done: &AtomicBool) {
        while !done.load(Ordering::Acquire) {
            let more = self.cq.with_newest(|layout, buffer, base| {
                let mut device = self.device.lock().unwrap();
                device.turn(self, layout, buffer, base)
            });
            if !more {
                thread::yield_now();
            }
        }
    }

    /// Resizes the CQ, as the device does it if it has room.
    fn resize(&self, entries: u32) -> Result<(), Errno> {
        let layout = CqLayout::for_entries(&LIMITS, entries).unwrap();
        let buffer = Buffer::new(layout.size()).unwrap();
        self.cq.resize(layout, buffer, |buffer| {
            let produced = self.device.lock().unwrap().produced;
            let consumer = buffer.load_u32(layout.record_offset());
            if produced.wrapping_sub(consumer) > layout.entries().entries() {
                return Err(libc::EINVAL);
            }
            Ok(produced)
        })
    }

    fn request(&self, index: u32) -> SendCtrl {
        let mut ctrl = SendCtrl::zeroed();
        let at = self.layout.send_offset(index);
        self.qp.buffer().read(at, ctrl.as_mut_bytes());
        ctrl
    }

    /// Returns `T` at byte `offset` of the block of `index`.
    fn part<T: FromBytes + IntoBytes>(&self, index: u32, offset: usize) -> T {
        let mut part = T::new_zeroed();
        let at = self.layout.send_offset(index) + offset;
        self.qp.buffer().read(at, part.as_mut_bytes());
        part
    }
}

#[derive(Default)]
struct Device {
    next: u32,
    produced: u32,
}

impl Device {
    /// Completes one request, if there is one and room for its completion.
    fn turn(&mut self, bench: &Bench, layout: CqLayout, buffer: &Buffer, base: u32) -> bool {
        // CAST: An index slot has 32 bits.
        let producer = bench.send_slot.value() as u32;
        let consumer = buffer.load_u32(layout.record_offset());
        let full = self.produced.wrapping_sub(consumer) >= layout.entries().entries();
        if producer == self.next || full {
            return false;
        }
        let ctrl = bench.request(self.next);
        assert_eq!(ctrl.index.get(), self.next);
        let mut cqe = Cqe::zeroed();
        cqe.qpn.set(QPN);
        cqe.wqe_index.set(self.next);
        cqe.opcode = CqeOpcode::RdmaWrite.to_wire();
        let index = self.produced.wrapping_sub(base);
        let at = layout.entry_offset(index);
        let owner_at = size_of::<Cqe>() - 4;
        // `write` copies words of 8 bytes; the one with the owner is written last.
        buffer.write(at, &cqe.as_bytes()[..owner_at - 4]);
        buffer.store_u32(at + owner_at, owner(layout.entries(), index));
        self.produced = self.produced.wrapping_add(1);
        let bytes = usize::from(ctrl.size) * SIZE_UNIT;
        // CAST: A request has at most 64 blocks.
        self.next = self.next.wrapping_add(blocks(bytes) as u32);
        true
    }
}

/// Data of one piece.
struct Piece(DataSeg);

impl Payload for Piece {
    fn segments(&self) -> impl ExactSizeIterator<Item = DataSeg> {
        std::iter::once(self.0)
    }

    fn copy(&self, _segment: &DataSeg, _offset: usize, out: &mut [u8]) {
        out.fill(0);
    }
}

fn piece(length: u32) -> DataSeg {
    DataSeg {
        addr: 0x1000.into(),
        length: length.into(),
        lkey: 5.into(),
    }
}

fn write(id: u64) -> SendWr {
    SendWr {
        id,
        head: SendHead {
            remote: Some(RemoteSeg::new(0x2000, 9)),
            ..SendHead::new(SendOpcode::RdmaWrite, 0)
        },
    }
}

const NEEDS: QpNeeds = QpNeeds {
    max_send_wr: 16,
    max_recv_wr: 1,
    max_send_sge: 4,
    max_recv_sge: 1,
    max_inline: 64,
    shared: false,
};

#[test]
fn threads_share_a_queue_pair_and_its_completion_queue() {
    const POSTERS: u64 = 4;
    const POLLERS: usize = 3;
    const EACH: u64 = 3000;
    let bench = Bench::new(NEEDS);
    let done = AtomicBool::new(false);
    let seen = Mutex::new(Vec::new());
    let count = AtomicUsize::new(0);
    let total = (POSTERS * EACH) as usize;
    thread::scope(|scope| {
        scope.spawn(|| bench.run(&done));
        for poster in 0..POSTERS {
            let bench = &bench;
            scope.spawn(move || {
                for n in 0..EACH {
                    let id = poster * EACH + n;
                    // Meanwhile the queue grows and shrinks.
                    if n % 100 == 0 {
                        let result = bench.resize(1 << (4 + n / 100 % 5));
                        assert!(matches!(result, Ok(()) | Err(libc::EINVAL)));
                    }
                    // Half of them by the one interface, half by the other.
                    while !if poster % 2 == 0 {
                        let wr = Ok((write(id), Piece(piece(64))));
                        bench.qp.post_send(std::iter::once(wr)).is_ok()
                    } else {
                        bench.qp.start();
                        bench.qp.build(write(id));
                        bench.qp.set_segments([piece(1), piece(2)].into_iter());
                        bench.qp.complete().is_ok()
                    } {
                        thread::yield_now();
                    }
                }
            });
        }
        for poller in 0..POLLERS {
            let (bench, done, seen, count) = (&bench, &done, &seen, &count);
            scope.spawn(move || {
                while !done.load(Ordering::Acquire) {
                    let mut ids = Vec::new();
                    if poller == 0 {
                        let mut completion = bench.cq.start();
                        let any = completion.is_some();
                        while let Some(found) = completion {
                            ids.push(found.id);
                            completion = bench.cq.advance();
                        }
                        if any {
                            bench.cq.end();
                        }
                    } else {
                        bench.cq.poll(5, |_, completion| ids.push(completion.id));
                    }
                    if ids.is_empty() {
                        thread::yield_now();
                    }
                    let before = count.fetch_add(ids.len(), Ordering::AcqRel);
                    if before + ids.len() == total {
                        done.store(true, Ordering::Release);
                    }
                    seen.lock().unwrap().append(&mut ids);
                }
            });
        }
    });
    let mut seen = seen.into_inner().unwrap();
    seen.sort_unstable();
    assert_eq!(seen, (0..POSTERS * EACH).collect::<Vec<_>>());
}

#[test]
fn completions_of_several_buffers_come_in_order() {
    let bench = Bench::new(NEEDS);
    let complete = |count| {
        for _ in 0..count {
            bench.cq.with_newest(|layout, buffer, base| {
                let mut device = bench.device.lock().unwrap();
                assert!(device.turn(&bench, layout, buffer, base));
            });
        }
    };
    let wrs = (0..16).map(|id| Ok((write(id), Piece(piece(8)))));
    bench.qp.post_send(wrs).unwrap();
    complete(3);
    bench.resize(4).unwrap();
    complete(1);
    // It holds four.
    assert_eq!(bench.resize(2), Err(libc::EINVAL));
    bench.resize(128).unwrap();
    bench.resize(16).unwrap();
    complete(12);
    // What a queue pair leaves behind is dropped from all of them.
    let mut ids = Vec::new();
    bench.cq.poll(2, |_, completion| ids.push(completion.id));
    bench.cq.poll(9, |_, completion| ids.push(completion.id));
    assert_eq!(ids, (0..11).collect::<Vec<_>>());
    bench.resize(8).unwrap();
    bench.cq.clean(QPN);
    assert_eq!(bench.cq.poll(9, |_, _| ()), 0);
}

#[test]
fn a_batch_posts_all_of_it_or_nothing() {
    let bench = Bench::new(NEEDS);
    let qp = &bench.qp;
    qp.start();
    qp.build(write(1));
    qp.set_segments([piece(8)].into_iter());
    qp.build(write(2));
    qp.set_segments([piece(8); 5].into_iter());
    qp.build(write(3));
    assert_eq!(qp.complete(), Err(libc::EINVAL));
    assert_eq!(bench.send_slot.value(), 0);

    qp.start();
    qp.build(write(4));
    qp.abort();
    assert_eq!(bench.send_slot.value(), 0);

    qp.start();
    for id in 0..100 {
        qp.build(write(id));
    }
    assert_eq!(qp.complete(), Err(libc::ENOMEM));
    assert_eq!(bench.send_slot.value(), 0);

    // A setter before there is a request.
    qp.start();
    qp.set_inline([4].into_iter(), |_, out| out.fill(1));
    assert_eq!(qp.complete(), Err(libc::EINVAL));

    qp.start();
    qp.build(write(5));
    assert_eq!(qp.complete(), Ok(()));
    assert_eq!(bench.send_slot.value(), 1);
    assert_eq!(bench.request(0).num_sge, 0);
}

#[test]
fn a_batch_writes_what_its_setters_say() {
    let bench = Bench::new(NEEDS);
    let qp = &bench.qp;
    qp.start();
    qp.build(write(1));
    // What was set last counts.
    qp.set_segments([piece(1)].into_iter());
    qp.set_inline([5, 0, 6].into_iter(), |n, out| out.fill(n as u8 + 1));
    qp.build(write(2));
    qp.set_segments([piece(7), piece(8)].into_iter());
    assert_eq!(qp.complete(), Ok(()));

    let ctrl = bench.request(0);
    assert_eq!(ctrl.flags, send_flag::INLINE | send_flag::SIGNALED);
    assert_eq!((ctrl.num_sge, ctrl.size), (0, 3));
    let remote: RemoteSeg = bench.part(0, 16);
    assert_eq!((remote.addr.get(), remote.rkey.get()), (0x2000, 9));
    let inline: [u8; 16] = bench.part(0, 32);
    let (head, data) = InlineSeg::read_from_prefix(&inline).unwrap();
    assert_eq!(head.length.get(), 11);
    assert_eq!(data[..11], [1, 1, 1, 1, 1, 3, 3, 3, 3, 3, 3]);

    let ctrl = bench.request(1);
    assert_eq!((ctrl.flags, ctrl.num_sge), (send_flag::SIGNALED, 2));
    let second: DataSeg = bench.part(1, 48);
    assert_eq!(second.length.get(), 8);
    // More inline data than the queue pair was made for.
    qp.start();
    qp.build(write(3));
    qp.set_inline([60, 5].into_iter(), |_, out| out.fill(0));
    assert_eq!(qp.complete(), Err(libc::EINVAL));
}

#[test]
fn results_need_memory_to_go_to() {
    let bench = Bench::new(NEEDS);
    bench.qp.start();
    let mut wr = write(1);
    wr.head.opcode = SendOpcode::RdmaRead;
    bench.qp.build(wr);
    bench.qp.set_inline([8].into_iter(), |_, out| out.fill(0));
    assert_eq!(bench.qp.complete(), Err(libc::EINVAL));
}
