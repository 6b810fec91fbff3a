// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Shared receive queues.

mod guest;

use guest::*;
use qiao_fabric::link::Faults;
use qiao_hw::cmd::{
    CreateQp, CreateSrq, DestroyQp, DestroySrq, ModifySrq, QueryQp, QuerySrq, Status,
};
use qiao_hw::cqe::CqeStatus;
use qiao_hw::doorbell::NO_SLOT;
use qiao_hw::event::EventType;
use qiao_hw::qp::{access, attr, QpAttr, QpState, QpType};
use qiao_hw::queue::{RecvRing, SrqLayout};
use qiao_hw::wqe::{DataSeg, DatagramSeg, RecvCtrl, SendOpcode};
use zerocopy::IntoBytes;

const KEY: u32 = 0x101;
const OTHER_KEY: u32 = 0x201;
const DATA: u64 = 0x80_0000;
const SRQN: u32 = 3;
const SLOT: u32 = 900;
const LOG_WQES: u8 = 2;
const LOG_STRIDE: u8 = 5;

/// What makes a good command a bad one, and the status that it gets.
type Spoil<C> = (Status, fn(&mut C));

/// An SRQ of four requests, as its owner sees it.
struct Shared {
    layout: SrqLayout,
    buffer: u64,
    head: u32,
}

fn command(g: &mut Guest) -> CreateSrq {
    let mut command = CreateSrq::zeroed();
    command.srqn.set(SRQN);
    command.pdn.set(2);
    command.slot.set(SLOT);
    layout().fill(&mut command);
    command.buffer = page_list(g.pages(1), 1);
    command
}

fn layout() -> SrqLayout {
    let limits = qiao_hw::queue::Limits {
        max_sge: 1,
        max_inline: 0,
        log_max_sq_blocks: 0,
        log_max_rq_wqes: LOG_WQES,
        log_max_cqe: 0,
    };
    let requests = RecvRing::new(&limits, (LOG_WQES, LOG_STRIDE), 4, 1).unwrap();
    SrqLayout::of(requests).unwrap()
}

impl Shared {
    fn new(g: &mut Guest) -> Self {
        let command = command(g);
        g.command(&command).unwrap();
        Self {
            layout: layout(),
            buffer: command.buffer.addr.get(),
            head: 0,
        }
    }

    /// Writes a request to a place.
    fn write(&self, g: &Guest, place: u32, ctrl: RecvCtrl, segment: DataSeg) {
        let at = self.buffer + self.layout.requests().offset(place) as u64;
        g.put(at, &[ctrl.as_bytes(), segment.as_bytes()].concat());
    }

    /// Names a place in the order ring, and rings.
    fn push(&mut self, g: &mut Guest, place: u32) {
        let at = self.buffer + self.layout.order_offset(self.head) as u64;
        g.put(at, &place.to_le_bytes());
        self.head = self.head.wrapping_add(1);
        g.ring(SLOT, self.head.into());
    }

    fn post(&mut self, g: &mut Guest, place: u32, segment: DataSeg) {
        let mut ctrl = RecvCtrl::zeroed();
        ctrl.num_sge.set(1);
        ctrl.index.set(self.head);
        self.write(g, place, ctrl, segment);
        self.push(g, place);
    }
}

/// One HCA with an SRQ in PD 2, and queue pairs of PD 1 that use it, each connected to itself.
fn sharing(world: &World, qpns: &[u32]) -> (Guest, Shared, Vec<Queue>) {
    let mut g = world.guest("a");
    g.start();
    g.basics();
    g.alloc_pd(2);
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
    g.register_memory(KEY, 1, DATA, 4096, rights);
    g.register_memory(OTHER_KEY, 2, DATA, 4096, rights);
    let shared = Shared::new(&mut g);
    let queues = qpns
        .iter()
        .map(|&qpn| {
            let queue = share(&mut g, QpType::Rc, qpn, |_| ()).unwrap();
            g.connect(qpn, 1, qpn);
            queue
        })
        .collect();
    (g, shared, queues)
}

/// Makes a queue pair of PD 1 with the SRQ, its command changed.
fn share(
    g: &mut Guest,
    qp_type: QpType,
    qpn: u32,
    change: impl FnOnce(&mut CreateQp),
) -> Result<Queue, Status> {
    g.try_queue(qp_type, qpn, 1, |command| {
        command.srqn.set(SRQN);
        command.rq_slot.set(NO_SLOT);
        (command.log_rq_wqes, command.log_rq_stride) = (0, 0);
        change(command);
    })
}

fn send(g: &mut Guest, queue: &mut Queue, length: u32) {
    let from = segment(DATA + 2048, length, KEY);
    g.post_send(queue, SendOpcode::Send, &[from.as_bytes()]);
}

fn room(n: u64) -> DataSeg {
    segment(DATA + 64 * n, 64, OTHER_KEY)
}

fn limit(g: &mut Guest) -> u32 {
    let mut query = QuerySrq::zeroed();
    query.srqn.set(SRQN);
    g.command(&query).unwrap().limit.get()
}

fn set_limit(g: &mut Guest, limit: u32) -> Result<(), Status> {
    let mut modify = ModifySrq::zeroed();
    modify.srqn.set(SRQN);
    modify.limit.set(limit);
    g.command(&modify).map(drop)
}

fn state(g: &mut Guest, qpn: u32) -> Option<QpState> {
    let mut query = QueryQp::zeroed();
    query.qpn.set(qpn);
    QpState::from_wire(g.command(&query).unwrap().attr.state)
}

fn to_error(g: &mut Guest, qpn: u32) {
    let mut a = QpAttr::zeroed();
    a.state = QpState::Err.to_wire();
    g.modify(qpn, attr::STATE, &a).unwrap();
}

#[test]
fn queue_pairs_share_requests_whose_keys_are_those_of_the_queue() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut srq, mut queues) = sharing(&world, &[5, 6]);
    for place in [3, 1] {
        srq.post(&mut g, place, room(place.into()));
    }
    for (queue, place) in queues.iter_mut().zip([3, 1]) {
        g.put(DATA + 2048, &[place as u8; 10]);
        send(&mut g, queue, 10);
        let received = g.poll(queue);
        assert_eq!(received.status, 0);
        assert_eq!(
            (received.wqe_index.get(), received.srqn.get()),
            (place, SRQN)
        );
        let sent = g.poll(queue);
        assert_eq!((sent.status, sent.srqn.get()), (0, 0));
        let at = DATA + 64 * u64::from(place);
        assert_eq!(g.get(at, 10), [place as u8; 10]);
    }
    // The key of the queue pair is none of the queue.
    srq.post(&mut g, 0, segment(DATA, 64, KEY));
    send(&mut g, &mut queues[0], 10);
    let received = g.poll(&mut queues[0]);
    assert_eq!(received.status, CqeStatus::LocalProtection.to_wire());
    assert_eq!(g.wait_event(0, 0), (Some(EventType::LastWqeReached), 5));
    assert_eq!(state(&mut g, 6), Some(QpState::Rts));
}

#[test]
fn sender_waits_while_there_is_no_request() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut srq, mut queues) = sharing(&world, &[5]);
    send(&mut g, &mut queues[0], 10);
    // The device has seen the request when it answers.
    assert_eq!(state(&mut g, 5), Some(QpState::Rts));
    srq.post(&mut g, 2, room(2));
    assert_eq!(g.poll(&mut queues[0]).wqe_index.get(), 2);
    assert_eq!(g.poll(&mut queues[0]).status, 0);
}

#[test]
fn limit_raises_one_event() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut srq, mut queues) = sharing(&world, &[5]);
    for place in 0..3 {
        srq.post(&mut g, place, room(place.into()));
    }
    set_limit(&mut g, 2).unwrap();
    for waiting in [2, 1, 0] {
        assert!(limit(&mut g) == 2 || waiting < 1);
        send(&mut g, &mut queues[0], 10);
        let statuses = [g.poll(&mut queues[0]).status, g.poll(&mut queues[0]).status];
        assert_eq!(statuses, [0, 0]);
        let reached = waiting < 2;
        assert_eq!(limit(&mut g), if reached { 0 } else { 2 });
        assert_eq!(g.event(0, 0).is_some(), reached);
    }
    assert_eq!(g.wait_event(0, 0), (Some(EventType::SrqLimit), SRQN));
    assert!(g.event(0, 1).is_none());
    // There are fewer already.
    set_limit(&mut g, 4).unwrap();
    assert_eq!(g.wait_event(0, 1), (Some(EventType::SrqLimit), SRQN));
    assert_eq!(limit(&mut g), 0);
    assert_eq!(set_limit(&mut g, 5), Err(Status::BadOperand));
}

#[test]
fn error_of_a_queue_pair_flushes_nothing_of_the_queue() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut srq, mut queues) = sharing(&world, &[5, 6]);
    srq.post(&mut g, 1, room(1));
    to_error(&mut g, 5);
    to_error(&mut g, 5);
    assert_eq!(g.wait_event(0, 0), (Some(EventType::LastWqeReached), 5));
    assert!(g.event(0, 1).is_none());
    send(&mut g, &mut queues[1], 10);
    assert_eq!(g.poll(&mut queues[1]).wqe_index.get(), 1);
}

#[test]
fn request_of_a_queue_pair_that_goes_comes_back() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut srq, mut queues) = sharing(&world, &[6]);
    // Datagrams to itself, of which one is longer than the request, which stays with nobody.
    let mut ud = share(&mut g, QpType::Ud, 7, |_| ()).unwrap();
    g.open(7, 1);
    srq.post(&mut g, 2, room(2));
    srq.post(&mut g, 0, room(0));
    let mut to = DatagramSeg::zeroed();
    to.path.dlid.set(1);
    to.path.port = 1;
    to.qpn.set(7);
    to.qkey.set(1);
    let from = segment(DATA + 2048, 64, KEY);
    g.post_send(&mut ud, SendOpcode::Send, &[to.as_bytes(), from.as_bytes()]);
    assert_eq!(g.poll(&mut ud).status, 0);
    for place in [2, 0] {
        send(&mut g, &mut queues[0], 10);
        assert_eq!(g.poll(&mut queues[0]).wqe_index.get(), place);
        assert_eq!(g.poll(&mut queues[0]).status, 0);
    }
}

#[test]
fn malformed_request_fails_who_takes_it() {
    let world = World::new(Faults::default(), "");
    let spoils: [fn(&mut RecvCtrl); 3] = [
        |ctrl| ctrl.num_sge.set(u32::MAX),
        |ctrl| ctrl.index.set(7),
        |ctrl| ctrl.rsvd.set(1),
    ];
    let qpns = [5, 6, 7];
    let (mut g, mut srq, mut queues) = sharing(&world, &qpns);
    for (n, (spoil, queue)) in spoils.iter().zip(&mut queues).enumerate() {
        let mut ctrl = RecvCtrl::zeroed();
        ctrl.num_sge.set(1);
        ctrl.index.set(srq.head);
        spoil(&mut ctrl);
        srq.write(&g, 3, ctrl, room(3));
        srq.push(&mut g, 3);
        send(&mut g, queue, 10);
        let received = g.poll(queue);
        assert_eq!(received.status, CqeStatus::LocalQpOperation.to_wire());
        assert_eq!((received.wqe_index.get(), received.srqn.get()), (3, SRQN));
        let event = g.wait_event(0, n as u32);
        assert_eq!(event, (Some(EventType::LastWqeReached), qpns[n]));
    }
}

/// Does something to an SRQ that it cannot be right in; the queue fails with its queue pairs.
fn breaks(spoil: impl FnOnce(&mut Guest, &mut Shared, &mut Queue)) {
    let world = World::new(Faults::default(), "");
    let (mut g, mut srq, mut queues) = sharing(&world, &[5, 6]);
    spoil(&mut g, &mut srq, &mut queues[0]);
    let mut events: Vec<_> = (0..5).map(|n| g.wait_event(0, n)).collect();
    events.sort_by_key(|&(event, id)| (event, id));
    let of_qp = |event, qpn| (Some(event), qpn);
    let mut expected = vec![
        of_qp(EventType::SrqError, SRQN),
        of_qp(EventType::LastWqeReached, 5),
        of_qp(EventType::LastWqeReached, 6),
        of_qp(EventType::QpFatal, 5),
        of_qp(EventType::QpFatal, 6),
    ];
    expected.sort_by_key(|&(event, id)| (event, id));
    assert_eq!(events, expected);
    assert_eq!(set_limit(&mut g, 1), Err(Status::BadState));
    let late = share(&mut g, QpType::Rc, 7, |_| ());
    assert_eq!(late.err(), Some(Status::BadState));
    for qpn in [5, 6] {
        assert_eq!(state(&mut g, qpn), Some(QpState::Err));
        let mut destroy = DestroyQp::zeroed();
        destroy.qpn.set(qpn);
        g.command(&destroy).unwrap();
    }
    let mut destroy = DestroySrq::zeroed();
    destroy.srqn.set(SRQN);
    g.command(&destroy).unwrap();
}

#[test]
fn place_that_there_is_not_breaks_the_queue() {
    breaks(|g, srq, queue| {
        srq.push(g, 4);
        send(g, queue, 10);
    });
}

#[test]
fn producer_index_that_cannot_be_true_breaks_the_queue() {
    breaks(|g, _, _| g.ring(SLOT, 5));
}

#[test]
fn wide_producer_index_breaks_the_queue() {
    breaks(|g, _, _| g.ring(SLOT, 1 << 32));
}

#[test]
fn operands_are_checked() {
    let world = World::new(Faults::default(), "");
    let mut g = world.guest("a");
    g.start();
    g.basics();
    g.alloc_pd(2);
    let good = command(&mut g);
    let spoils: [Spoil<CreateSrq>; 11] = [
        (Status::BadOperand, |c| c.srqn.set(0)),
        (Status::BadOperand, |c| c.srqn.set(1 << 24)),
        (Status::NoSuchObject, |c| c.pdn.set(9)),
        (Status::BadOperand, |c| c.slot.set(NO_SLOT)),
        (Status::Exists, |c| c.slot.set(0)),
        (Status::BadOperand, |c| c.flags.set(2)),
        (Status::BadOperand, |c| c.log_wqes = 255),
        (Status::BadOperand, |c| c.log_stride = 4),
        (Status::BadOperand, |c| c.order_offset.set(64)),
        (Status::BadOperand, |c| c.limit.set(5)),
        (Status::BadOperand, |c| c.buffer.offset.set(4000)),
    ];
    for (n, (status, spoil)) in spoils.iter().enumerate() {
        let mut bad = good;
        spoil(&mut bad);
        assert_eq!(g.command(&bad).err(), Some(*status), "{n}");
    }
    g.command(&good).unwrap();
    assert_eq!(g.command(&good).err(), Some(Status::Exists));

    let spoils: [Spoil<CreateQp>; 6] = [
        (Status::NoSuchObject, |c| c.srqn.set(4)),
        (Status::BadOperand, |c| c.rq_slot.set(950)),
        (Status::BadOperand, |c| c.log_rq_wqes = 1),
        (Status::BadOperand, |c| c.log_rq_stride = 5),
        (Status::BadOperand, |c| c.rq_offset.set(64)),
        (Status::BadOperand, |c| {
            (c.qp_type, c.port) = (QpType::Gsi.to_wire(), 1);
            c.flags.set(qiao_hw::cmd::qp_flag::KERNEL);
        }),
    ];
    for (n, (status, spoil)) in spoils.iter().enumerate() {
        let qpn = 20 + n as u32;
        let bad = share(&mut g, QpType::Rc, qpn, spoil);
        assert_eq!(bad.err(), Some(*status), "{n}");
    }
    share(&mut g, QpType::Uc, 5, |_| ()).unwrap();
    let mut destroy = DestroySrq::zeroed();
    destroy.srqn.set(SRQN);
    assert_eq!(g.command(&destroy).err(), Some(Status::Busy));
}
