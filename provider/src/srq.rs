// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues.

use crate::ffi::memory::{Buffer, Slot};
use crate::lock::Lock;
use crate::qp::write_recv;
use crate::Errno;
use qiao_hw::queue::SrqLayout;
use qiao_hw::slots::{self, SlotTable};
use qiao_hw::wqe::DataSeg;

/// A shared receive queue.
pub(crate) struct Srq {
    srqn: u32,
    layout: SrqLayout,
    max_sge: u32,
    buffer: Buffer,
    state: Lock<State>,
}

struct State {
    /// Free-running index of the next word of the order ring.
    head: u32,
    slot: Slot,
    /// Cookies of the requests that are outstanding.
    ids: SlotTable<Vec<slots::Slot<u64>>>,
}

impl Srq {
    pub(crate) fn new(
        srqn: u32,
        layout: SrqLayout,
        max_sge: u32,
        buffer: Buffer,
        slot: Slot,
    ) -> Self {
        let entries = layout.requests().size().entries() as usize;
        Self {
            srqn,
            layout,
            max_sge,
            buffer,
            state: Lock::new(State {
                head: 0,
                slot,
                ids: SlotTable::new(vec![slots::Slot::Free(0); entries]),
            }),
        }
    }

    pub(crate) fn srqn(&self) -> u32 {
        self.srqn
    }

    #[cfg(test)]
    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    /// Posts receive requests until one is refused.
    ///
    /// # Errors
    ///
    /// How many were posted, and EINVAL for a malformed request or ENOMEM for a full queue.
    pub(crate) fn post<S: ExactSizeIterator<Item = DataSeg>>(
        &self,
        requests: impl Iterator<Item = (u64, S)>,
    ) -> Result<(), (usize, Errno)> {
        let mut state = self.state.lock();
        let before = state.head;
        let mut result = Ok(());
        for (n, (id, segments)) in requests.enumerate() {
            if let Err(errno) = self.post_one(&mut state, id, segments) {
                result = Err((n, errno));
                break;
            }
        }
        if state.head != before {
            state.slot.ring(u64::from(state.head));
        }
        result
    }

    fn post_one(
        &self,
        state: &mut State,
        id: u64,
        segments: impl ExactSizeIterator<Item = DataSeg>,
    ) -> Result<(), Errno> {
        if segments.len() > self.max_sge as usize {
            return Err(libc::EINVAL);
        }
        let place = state.ids.take(id).ok_or(libc::ENOMEM)?;
        let at = self.layout.requests().offset(place);
        write_recv(&self.buffer, at, state.head, segments);
        // The device looks at the word when the doorbell has been rung.
        self.buffer
            .store_u32(self.layout.order_offset(state.head), place);
        state.head = state.head.wrapping_add(1);
        Ok(())
    }

    /// Frees the request that a completion names; returns its cookie.
    pub(crate) fn complete(&self, place: u32) -> u64 {
        self.state.lock().ids.give(place).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cq::Cq;
    use crate::ffi::memory::DoorbellPage;
    use crate::qp::{Qp, Shape, Source};
    use qiao_hw::cqe::{Cqe, CqeOpcode};
    use qiao_hw::qp::QpType;
    use qiao_hw::queue::{CqLayout, Limits, QpLayout, QpNeeds, RecvRing};
    use qiao_hw::ring::owner;
    use qiao_hw::wqe::RecvCtrl;
    use std::sync::Arc;
    use zerocopy::IntoBytes;

    const LIMITS: Limits = Limits {
        max_sge: 4,
        max_inline: 0,
        log_max_sq_blocks: 4,
        log_max_rq_wqes: 4,
        log_max_cqe: 4,
    };
    const QPN: u32 = 7;

    struct Bench {
        srq: Arc<Srq>,
        cq: Cq,
        slot: Slot,
        completions: u32,
    }

    impl Bench {
        fn new() -> (Self, Qp) {
            let page = Arc::new(DoorbellPage::anonymous());
            let slot = |n: u32| Slot::new(Arc::clone(&page), 8 * n).unwrap();
            let buffer = |size| Buffer::new(size).unwrap();
            let layout = SrqLayout::of(RecvRing::for_needs(&LIMITS, 4, 2).unwrap()).unwrap();
            let srq = Srq::new(3, layout, 2, buffer(layout.size()), slot(0));
            let srq = Arc::new(srq);
            let needs = QpNeeds {
                shared: true,
                ..QpNeeds::default()
            };
            let shape = Shape {
                layout: QpLayout::for_needs(&LIMITS, QpType::Rc, &needs).unwrap(),
                needs,
                ty: QpType::Rc,
                signal_all: false,
            };
            let source = Source::Shared(Arc::clone(&srq));
            let qp = Qp::new(QPN, shape, buffer(shape.layout.size()), slot(1), source);
            let layout = CqLayout::for_entries(&LIMITS, 16).unwrap();
            let cq = Cq::new(layout, buffer(layout.size()), slot(2));
            cq.attach(qp.queues());
            let bench = Self {
                srq,
                cq,
                slot: slot(0),
                completions: 0,
            };
            (bench, qp)
        }

        fn post(&self, ids: impl IntoIterator<Item = u64>) -> Result<(), (usize, Errno)> {
            let requests = ids
                .into_iter()
                .map(|id| (id, [DataSeg::zeroed()].into_iter()));
            self.srq.post(requests)
        }

        /// Completes the request at a place as the device does.
        fn complete(&mut self, place: u32) {
            let mut cqe = Cqe::zeroed();
            cqe.qpn.set(QPN);
            cqe.wqe_index.set(place);
            cqe.opcode = CqeOpcode::Recv.to_wire();
            let index = self.completions;
            self.cq.with_newest(|layout, buffer, _| {
                cqe.owner.set(owner(layout.entries(), index));
                buffer.write(layout.entry_offset(index), cqe.as_bytes());
            });
            self.completions += 1;
        }

        fn poll(&self) -> Vec<u64> {
            let mut ids = Vec::new();
            self.cq.poll(16, |_, completion| ids.push(completion.id));
            ids
        }

        /// The places in the order ring, from an index on.
        fn order(&self, from: u32, count: u32) -> Vec<u32> {
            let at = |n| self.srq.layout.order_offset(from.wrapping_add(n));
            (0..count)
                .map(|n| self.srq.buffer().load_u32(at(n)))
                .collect()
        }
    }

    #[test]
    fn requests_complete_in_any_order() {
        let (mut bench, qp) = Bench::new();
        let none = std::iter::empty::<(u64, std::array::IntoIter<DataSeg, 1>)>();
        assert_eq!(qp.post_recv(none), Err((0, libc::EINVAL)));
        assert_eq!(bench.post(10..15), Err((4, libc::ENOMEM)));
        assert_eq!(
            (bench.slot.value(), bench.order(0, 4)),
            (4, vec![0, 1, 2, 3])
        );
        bench.complete(2);
        bench.complete(1);
        assert_eq!(bench.poll(), [12, 11]);
        assert_eq!(bench.post(20..30), Err((2, libc::ENOMEM)));
        assert_eq!((bench.slot.value(), bench.order(4, 2)), (6, vec![1, 2]));
        let mut ctrl = RecvCtrl::zeroed();
        let at = bench.srq.layout.requests().offset(2);
        bench.srq.buffer().read(at, ctrl.as_mut_bytes());
        assert_eq!((ctrl.num_sge.get(), ctrl.index.get()), (1, 5));
        [0, 1, 2, 3].map(|place| bench.complete(place));
        assert_eq!(bench.poll(), [10, 20, 21, 13]);
    }

    #[test]
    fn too_many_segments_are_refused() {
        let (bench, _) = Bench::new();
        let request = (1, [DataSeg::zeroed(); 3].into_iter());
        assert_eq!(
            bench.srq.post([request].into_iter()),
            Err((0, libc::EINVAL))
        );
        assert_eq!(bench.slot.value(), 0);
        assert_eq!(bench.post(0..4), Ok(()));
    }

    #[test]
    fn completions_that_nobody_polls_free_their_requests() {
        let (mut bench, _qp) = Bench::new();
        bench.post(0..4).unwrap();
        bench.complete(3);
        bench.cq.clean(QPN);
        bench.complete(0);
        bench.cq.detach(QPN);
        assert_eq!(bench.poll(), []);
        assert_eq!(bench.post(4..9), Err((2, libc::ENOMEM)));
    }
}
