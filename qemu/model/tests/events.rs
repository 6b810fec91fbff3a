// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Events and interrupts, and what goes wrong with queues.

mod guest;

use guest::*;
use qiao_fabric::link::Faults;
use qiao_hw::cmd::{ResizeCq, Status};
use qiao_hw::cqe::{Cqe, CqeStatus};
use qiao_hw::doorbell::{Arm, ArmKind};
use qiao_hw::event::EventType;
use qiao_hw::qp::{access, attr, QpAttr, QpState};
use qiao_hw::ring::{is_written, RingSize};
use qiao_hw::wqe::{send_flag, SendCtrl, SendOpcode};
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, IntoBytes};

const KEY: u32 = 0x101;
const DATA: u64 = 0x80_0000;

fn arm(index: u32, kind: ArmKind, sequence: u8) -> u64 {
    Arm {
        index,
        kind,
        sequence,
    }
    .to_wire()
}

/// One HCA whose queue pair 5 is connected to itself, and its first vectors.
fn looped(world: &World, log_eqe: u8) -> (Guest, Queue, Vec<OwnedFd>) {
    let mut g = world.guest("a");
    let vectors = g.vectors(2);
    g.log_eqe = log_eqe;
    g.start();
    g.basics();
    g.register_memory(
        KEY,
        1,
        DATA,
        4096,
        access::LOCAL_WRITE | access::REMOTE_WRITE,
    );
    let queue = g.queue(5, 1);
    g.connect(5, 1, 5);
    (g, queue, vectors)
}

/// Sends 8 bytes to itself and takes both completions.
fn exchange(g: &mut Guest, queue: &mut Queue, solicited: bool) {
    g.post_recv(queue, segment(DATA + 64, 8, KEY));
    let mut ctrl = SendCtrl::zeroed();
    ctrl.flags = send_flag::SIGNALED | if solicited { send_flag::SOLICITED } else { 0 };
    ctrl.size = 2;
    ctrl.num_sge = 1;
    ctrl.index.set(queue.sent);
    g.post_raw(
        queue,
        &[ctrl.as_bytes(), segment(DATA, 8, KEY).as_bytes()].concat(),
    );
    assert_eq!([g.poll(queue).status, g.poll(queue).status], [0, 0]);
}

fn state(g: &mut Guest, qpn: u32) -> Option<QpState> {
    let mut query = qiao_hw::cmd::QueryQp::zeroed();
    query.qpn.set(qpn);
    QpState::from_wire(g.command(&query).unwrap().attr.state)
}

#[test]
fn an_arm_value_raises_one_event_and_one_interrupt() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut q, vectors) = looped(&world, 7);
    // Each command of the set-up has raised the vector of the command queue, which is that of EQ 0.
    assert!(g.interrupts(&vectors[0]) > 0);
    assert_eq!(pending(&vectors[1]), None);
    g.ring(1, arm(0, ArmKind::Any, 1));
    // Not armed: completions raise nothing.
    exchange(&mut g, &mut q, false);
    assert!(g.event(1, 0).is_none());
    // Armed behind entries that are there already: at once.
    g.ring(q.slot + 2, arm(0, ArmKind::Any, 1));
    assert_eq!(g.wait_event(1, 0), (Some(EventType::Completion), 5));
    assert_eq!(g.interrupts(&vectors[1]), 1);
    // The same value again has no effect; the next sequence number asks again.
    g.ring(q.slot + 2, arm(0, ArmKind::Any, 1));
    exchange(&mut g, &mut q, false);
    assert!(g.event(1, 1).is_none());
    g.ring(q.slot + 2, arm(0, ArmKind::Any, 2));
    assert_eq!(g.wait_event(1, 1), (Some(EventType::Completion), 5));
    // The EQ was not armed again: an entry, but no interrupt until it is.
    assert_eq!(pending(&vectors[1]), None);
    g.ring(1, arm(1, ArmKind::Any, 2));
    assert_eq!(g.interrupts(&vectors[1]), 1);
    // Armed at the end: the next entry.
    g.ring(1, arm(2, ArmKind::Any, 3));
    g.ring(q.slot + 2, arm(q.consumer(), ArmKind::Any, 3));
    assert_eq!(pending(&vectors[1]), None);
    exchange(&mut g, &mut q, false);
    assert_eq!(g.wait_event(1, 2), (Some(EventType::Completion), 5));
    assert_eq!(g.interrupts(&vectors[1]), 1);
}

#[test]
fn a_solicited_arm_waits_for_a_solicited_or_failed_entry() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut q, _vectors) = looped(&world, 7);
    g.ring(q.slot + 2, arm(0, ArmKind::Solicited, 1));
    exchange(&mut g, &mut q, false);
    assert!(g.event(1, 0).is_none());
    exchange(&mut g, &mut q, true);
    assert_eq!(g.wait_event(1, 0), (Some(EventType::Completion), 5));
    g.ring(q.slot + 2, arm(q.consumer(), ArmKind::Solicited, 2));
    // An entry before the consumer index does not count, a failed one does.
    let bad = segment(DATA, 8, KEY ^ 1);
    g.post_send(&mut q, SendOpcode::Send, &[bad.as_bytes()]);
    let cqe = g.poll(&mut q);
    assert_eq!(
        CqeStatus::from_wire(cqe.status),
        Some(CqeStatus::LocalProtection)
    );
    assert_eq!(g.wait_event(1, 1), (Some(EventType::Completion), 5));
}

#[test]
fn events_without_room_wait_and_are_not_lost() {
    let world = World::new(Faults::default(), "");
    // Rings of two events.
    let (mut g, mut q, _vectors) = looped(&world, 1);
    let mut other = g.queue(6, 1);
    g.connect(6, 1, 6);
    for sequence in 1..=2 {
        exchange(&mut g, &mut q, false);
        g.ring(q.slot + 2, arm(0, ArmKind::Any, sequence));
        g.wait_event(1, u32::from(sequence) - 1);
    }
    // The ring is full. Two CQs have an event each, of which the first asks twice.
    exchange(&mut g, &mut other, false);
    g.ring(q.slot + 2, arm(0, ArmKind::Any, 3));
    g.ring(other.slot + 2, arm(0, ArmKind::Any, 1));
    g.ring(q.slot + 2, arm(0, ArmKind::Any, 4));
    assert_eq!(state(&mut g, 5), Some(QpState::Rts));
    assert!(g.event(1, 2).is_none());
    g.ring(1, arm(2, ArmKind::None, 0));
    assert_eq!(g.wait_event(1, 2), (Some(EventType::Completion), 5));
    assert_eq!(g.wait_event(1, 3), (Some(EventType::Completion), 6));
    g.ring(1, arm(4, ArmKind::None, 0));
    assert_eq!(state(&mut g, 5), Some(QpState::Rts));
    assert!(g.event(1, 4).is_none());
}

#[test]
fn a_cq_without_room_fails_with_its_queue_pairs() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut q, _vectors) = looped(&world, 7);
    let start = next_async(&mut g, 0);
    // The consumer never moves: 64 entries fit, the 65th does not.
    for n in 0..33 {
        g.post_recv(&mut q, segment(DATA + 64, 8, KEY));
        g.post_send(
            &mut q,
            SendOpcode::Send,
            &[segment(DATA, 8, KEY).as_bytes()],
        );
        g.wait("the request to be taken", |g| {
            let entry = g.get(q.cq + (2 * n + 1).min(63) * 64 + 60, 4);
            (entry[0] == 1).then_some(())
        });
    }
    let mut got = [g.wait_event(0, start), g.wait_event(0, start + 1)];
    got.sort_by_key(|(event, _)| *event);
    assert_eq!(
        got,
        [(Some(EventType::QpFatal), 5), (Some(EventType::CqError), 5)]
    );
    assert_eq!(state(&mut g, 5), Some(QpState::Err));
    // Others go on.
    let mut other = g.queue(6, 1);
    g.connect(6, 1, 6);
    exchange(&mut g, &mut other, false);
}

/// Returns the index of the first asynchronous event from `index` on that has not come.
fn next_async(g: &mut Guest, index: u32) -> u32 {
    let mut index = index;
    while g.event(0, index).is_some() {
        index += 1;
    }
    index
}

#[test]
fn a_producer_that_cannot_be_true_fails_its_queue_pair() {
    for (slot, value) in [(0, 33u64), (1, 17), (0, 1 << 32), (1, u64::MAX)] {
        let world = World::new(Faults::default(), "");
        let (mut g, mut q, _vectors) = looped(&world, 7);
        g.post_recv(&mut q, segment(DATA, 8, KEY));
        // The last value of a doorbell wins: a command lets the device see this one first.
        assert_eq!(state(&mut g, 5), Some(QpState::Rts));
        let event = next_async(&mut g, 0);
        g.ring(q.slot + slot, value);
        assert_eq!(g.wait_event(0, event), (Some(EventType::QpFatal), 5));
        assert_eq!(state(&mut g, 5), Some(QpState::Err));
        // What was posted is flushed, once.
        let flushed = g.poll(&mut q);
        assert_eq!(
            CqeStatus::from_wire(flushed.status),
            Some(CqeStatus::WrFlush)
        );
        assert_eq!(flushed.wqe_index.get(), 0);
    }
}

#[test]
fn doorbells_of_nobody_and_impossible_indices_are_ignored() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut q, _vectors) = looped(&world, 7);
    g.ring(1000, 7);
    for wrong in [
        arm(1, ArmKind::Any, 1),
        arm(u32::MAX - 200, ArmKind::Any, 2),
        u64::MAX,
    ] {
        g.ring(q.slot + 2, wrong);
        g.ring(1, wrong);
    }
    // Less than a slot has no effect.
    g.write(DOORBELLS, u64::from(q.slot) * 8, &77u32.to_le_bytes());
    assert_eq!(g.read(DOORBELLS, u64::from(q.slot) * 8), 0);
    exchange(&mut g, &mut q, false);
    assert!(
        g.event(1, 0).is_none(),
        "an arm that cannot be true does not arm"
    );
}

#[test]
fn malformed_requests_fail_and_what_follows_is_flushed() {
    let data = segment(DATA, 8, KEY);
    let good = |index: u32| {
        let mut ctrl = SendCtrl::zeroed();
        ctrl.flags = send_flag::SIGNALED;
        ctrl.size = 2;
        ctrl.num_sge = 1;
        ctrl.index.set(index);
        ctrl
    };
    let changes: [fn(&mut SendCtrl); 8] = [
        |c| c.opcode = 200,
        |c| c.opcode = SendOpcode::LocalInvalidate.to_wire(),
        |c| c.flags |= 0x80,
        |c| c.size = 0,
        |c| c.size = 255,
        |c| c.num_sge = 33,
        |c| c.index.set(9),
        |c| c.rsvd.set(1),
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let world = World::new(Faults::default(), "");
        let (mut g, mut q, _vectors) = looped(&world, 7);
        let mut ctrl = good(0);
        change(&mut ctrl);
        g.post_raw(&mut q, &[ctrl.as_bytes(), data.as_bytes()].concat());
        let cqe = g.poll(&mut q);
        let status = CqeStatus::from_wire(cqe.status);
        assert_eq!(status, Some(CqeStatus::LocalQpOperation), "case {n}");
        assert_eq!(cqe.wqe_index.get(), 0);
        g.post_raw(&mut q, &[good(1).as_bytes(), data.as_bytes()].concat());
        let cqe = g.poll(&mut q);
        assert_eq!(
            CqeStatus::from_wire(cqe.status),
            Some(CqeStatus::WrFlush),
            "case {n}"
        );
        assert_eq!(cqe.wqe_index.get(), 1);
    }
}

#[test]
fn no_byte_needs_no_key() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut q, _vectors) = looped(&world, 7);
    let nothing = segment(0, 0, 0);
    g.post_recv(&mut q, nothing);
    g.post_send(&mut q, SendOpcode::Send, &[nothing.as_bytes()]);
    let far = remote(0, 0);
    for opcode in [SendOpcode::RdmaWrite, SendOpcode::RdmaRead] {
        g.post_send(&mut q, opcode, &[far.as_bytes(), nothing.as_bytes()]);
    }
    for _ in 0..4 {
        let cqe = g.poll(&mut q);
        assert_eq!((cqe.status, cqe.byte_len.get()), (0, 0));
    }
}

#[test]
fn a_queue_pair_can_be_used_again_after_reset() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut q, _vectors) = looped(&world, 7);
    for _ in 0..3 {
        exchange(&mut g, &mut q, false);
        let mut to_reset = QpAttr::zeroed();
        to_reset.state = QpState::Reset.to_wire();
        g.modify(5, attr::STATE, &to_reset).unwrap();
        // Nothing can be posted now.
        g.ring(q.slot, 1);
        assert_eq!(state(&mut g, 5), Some(QpState::Reset));
        (q.sent, q.received) = (0, 0);
        g.connect(5, 1, 5);
    }
    exchange(&mut g, &mut q, false);
}

/// Sends `count` times 8 bytes to itself by RDMA WRITE, one completion each.
fn write_times(g: &mut Guest, queue: &mut Queue, count: u32) {
    let there = remote(DATA + 64, KEY);
    for _ in 0..count {
        let here = segment(DATA, 8, KEY);
        let parts = [there.as_bytes(), here.as_bytes()];
        g.post_send(queue, SendOpcode::RdmaWrite, &parts);
    }
}

/// Waits for the completion of request `index`, entry `entry` of the buffer at `cq`.
fn completed(g: &mut Guest, cq: u64, size: RingSize, entry: u32, index: u32) {
    let at = cq + u64::from(size.slot(entry)) * 64;
    let cqe = g.wait("a completion", |g| {
        let cqe = Cqe::read_from_bytes(&g.get(at, 64)).unwrap();
        is_written(size, entry, cqe.owner.get()).then_some(cqe)
    });
    assert_eq!((cqe.status, cqe.wqe_index.get()), (0, index));
}

#[test]
fn a_cq_moves_to_another_buffer_and_loses_nothing() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut queue, _vectors) = looped(&world, 7);
    write_times(&mut g, &mut queue, 10);
    let old = RingSize::from_log(LOG_CQE).unwrap();
    for n in 0..10 {
        completed(&mut g, queue.cq, old, n, n);
    }
    // Six are not consumed.
    let mut command = ResizeCq::zeroed();
    command.cqn.set(5);
    let (small, cq) = (RingSize::from_log(2).unwrap(), g.pages(1));
    command.log_entries = small.log();
    command.buffer = page_list(cq, 1);
    g.put(cq + 64 * 4, &4u32.to_le_bytes());
    assert_eq!(g.command(&command), Err(Status::BadState));
    let new = RingSize::from_log(3).unwrap();
    command.log_entries = new.log();
    g.put(cq, &[0; 4096]);
    g.put(cq + 64 * 8, &4u32.to_le_bytes());
    let before = g.get(queue.cq, 64 * 64);
    assert_eq!(g.command(&command).unwrap().base.get(), 10);

    // The two that still fit, and the rest as room is made: more than once around.
    write_times(&mut g, &mut queue, 2);
    for n in 0..20 {
        completed(&mut g, cq, new, n, 10 + n);
        g.put(cq + 64 * 8, &(11 + n).to_le_bytes());
        write_times(&mut g, &mut queue, u32::from(n < 18));
    }
    assert!(g.get(queue.cq, 64 * 64) == before);
    // It is full with eight.
    write_times(&mut g, &mut queue, 9);
    assert_eq!(g.wait_event(0, 0), (Some(EventType::CqError), 5));
    assert_eq!(g.command(&command), Err(Status::BadState));
}

#[test]
fn resizes_that_make_no_sense_change_nothing() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut queue, _vectors) = looped(&world, 7);
    let mut good = ResizeCq::zeroed();
    good.cqn.set(5);
    good.log_entries = 3;
    let cq = g.pages(1);
    good.buffer = page_list(cq, 1);
    type Spoil = fn(&mut ResizeCq);
    let cases: [(Spoil, Status); 5] = [
        (|c| c.cqn.set(6), Status::NoSuchObject),
        (|c| c.log_entries = 200, Status::BadOperand),
        // A page holds 63 entries and the record.
        (|c| c.log_entries = 6, Status::BadOperand),
        (|c| c.buffer.offset.set(32), Status::BadOperand),
        (|c| c.buffer.addr.set(1 << 40), Status::DmaFault),
    ];
    for (spoil, status) in cases {
        let mut bad = good;
        spoil(&mut bad);
        assert_eq!(g.command(&bad), Err(status));
    }
    let dirty = dirty(&good).unwrap();
    assert_eq!(g.entry(&dirty), Err(Status::BadOperand));
    exchange(&mut g, &mut queue, false);
}

#[test]
fn every_event_can_be_asked_for() {
    let world = World::new(Faults::default(), "");
    let (mut g, _queue, _vectors) = looped(&world, 7);
    let types = EventType::NUMBERS.numbers.iter();
    let asynchronous = types.filter(|t| t.value != 0);
    for (index, event) in (0..).zip(asynchronous) {
        let name = event.name;
        let order = format!(r#"{{"op": "event", "hca": "a", "event": "{name}", "id": 5}}"#);
        assert_eq!(world.control(&order), "done");
        g.ring(0, arm(index, ArmKind::Any, index as u8));
        let (found, id) = g.wait_event(0, index);
        assert_eq!(
            (found.map(|t| u64::from(t.to_wire())), id),
            (Some(event.value), 5)
        );
    }
    for unknown in ["Completion", "Nonsense"] {
        let order = format!(r#"{{"op": "event", "hca": "a", "event": "{unknown}"}}"#);
        assert!(world.control(&order)["error"].is_string());
    }
}
