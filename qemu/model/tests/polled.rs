// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Devices that poll their doorbells: all that the other programs test, and what only memory can do.

#![allow(
    clippy::duplicate_mod,
    reason = "each of the programs brings the guest along"
)]

mod guest;

#[path = "events.rs"]
mod events;
#[path = "lifecycle.rs"]
mod lifecycle;
#[path = "two_hcas.rs"]
mod two_hcas;

use guest::*;
use qiao_fabric::link::Faults;
use qiao_hw::bar::{control, reg, status};
use qiao_hw::cmd::*;
use qiao_hw::cqe::CqeStatus;
use qiao_hw::qp::{access, attr, QpAttr, QpState};
use qiao_hw::wqe::SendOpcode;
use zerocopy::IntoBytes;

const KEY: u32 = 0x101;
const DATA: u64 = 0x80_0000;
const QPN: u32 = 5;

fn world() -> World {
    World::new(Faults::default(), "")
}

/// A queue pair that is connected to itself.
fn looped(world: &World) -> (Guest, Queue) {
    let mut g = world.guest("a");
    g.start();
    let queue = again(&mut g);
    (g, queue)
}

/// Makes all objects after a start.
fn again(g: &mut Guest) -> Queue {
    g.basics();
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
    g.register_memory(KEY, 1, DATA, 8192, rights);
    let queue = g.queue(QPN, 1);
    g.connect(QPN, 1, QPN);
    queue
}

fn send(g: &mut Guest, queue: &mut Queue) -> Option<CqeStatus> {
    let to = remote(DATA + 4096, KEY);
    let from = segment(DATA, 8, KEY);
    let opcode = SendOpcode::RdmaWrite;
    g.post_send(queue, opcode, &[to.as_bytes(), from.as_bytes()]);
    CqeStatus::from_wire(g.poll(queue).status)
}

/// Lets the device look at its doorbells.
fn settle(g: &mut Guest) {
    let mut entry = Entry::zeroed();
    entry.opcode.set(Opcode::Nop.to_wire());
    g.entry(&entry).unwrap();
}

/// Producer and next index of the send ring.
fn indices(world: &World) -> serde_json::Value {
    world.control(r#"{"op": "dump"}"#)["dump"][0]["qps"][0]["sq"].clone()
}

fn oddities(world: &World) -> serde_json::Value {
    world.control(r#"{"op": "dump"}"#)["dump"][0]["oddities"]["bad_doorbells"].clone()
}

#[test]
fn a_value_of_before_a_reset_rings_nothing_after_it() {
    let world = world();
    let flr = |g: &mut Guest| {
        let value = g.read(CONFIG, 0x68) as u16 | (1 << 15);
        g.write(CONFIG, 0x68, &value.to_le_bytes());
        g.switch_on();
    };
    let own = |g: &mut Guest| g.set_register(reg::CONTROL, control::RESET);
    for reset in [flr as fn(&mut Guest), own] {
        let (mut g, mut queue) = looped(&world);
        assert_eq!(send(&mut g, &mut queue), Some(CqeStatus::Success));
        assert_eq!(g.slot(queue.slot), 1);
        reset(&mut g);
        g.wait_status(status::READY);
        assert_eq!(g.slot(queue.slot), 0);
        // Written by who has not seen the reset: no queue has the slot.
        g.ring(queue.slot, 3);
        g.start();
        let mut queue = again(&mut g);
        settle(&mut g);
        assert_eq!(indices(&world), serde_json::json!([0, 0]));
        assert_eq!(oddities(&world), 0);
        assert_eq!(send(&mut g, &mut queue), Some(CqeStatus::Success));
    }
}

#[test]
fn a_value_of_a_dead_owner_rings_no_new_queue() {
    let world = world();
    let (mut g, mut queue) = looped(&world);
    assert_eq!(send(&mut g, &mut queue), Some(CqeStatus::Success));
    // As the kernel takes down a context whose program has died.
    let mut command = DestroyQp::zeroed();
    command.qpn.set(QPN);
    g.command(&command).unwrap();
    assert_eq!(g.slot(queue.slot), 0);
    g.ring(queue.slot, 7);
    let mut command = DestroyCq::zeroed();
    command.cqn.set(QPN);
    g.command(&command).unwrap();
    settle(&mut g);
    let mut queue = g.queue(QPN, 1);
    g.connect(QPN, 1, QPN);
    assert_eq!(g.slot(queue.slot), 0);
    settle(&mut g);
    assert_eq!(indices(&world), serde_json::json!([0, 0]));
    assert_eq!(send(&mut g, &mut queue), Some(CqeStatus::Success));
    assert_eq!(oddities(&world), 0);
}

#[test]
fn after_a_reset_of_a_queue_pair_the_same_index_rings_again() {
    let world = world();
    let (mut g, mut queue) = looped(&world);
    for _ in 0..3 {
        assert_eq!(send(&mut g, &mut queue), Some(CqeStatus::Success));
        let mut to_reset = QpAttr::zeroed();
        to_reset.state = QpState::Reset.to_wire();
        g.modify(QPN, attr::STATE, &to_reset).unwrap();
        queue.sent = 0;
        g.connect(QPN, 1, QPN);
    }
}

#[test]
fn what_was_rung_before_a_command_is_seen_before_it() {
    let world = world();
    let (mut g, mut queue) = looped(&world);
    for round in 0..200u32 {
        let to = remote(DATA + 4096, KEY);
        let from = segment(DATA, 8, KEY);
        g.post_send(
            &mut queue,
            SendOpcode::RdmaWrite,
            &[to.as_bytes(), from.as_bytes()],
        );
        settle(&mut g);
        assert_eq!(indices(&world)[0], round + 1);
        g.poll(&mut queue);
    }
}

#[test]
fn a_slot_that_is_not_mapped_can_be_written_by_a_message() {
    let world = world();
    let (mut g, mut queue) = looped(&world);
    assert_eq!(send(&mut g, &mut queue), Some(CqeStatus::Success));
    g.write_slot(queue.slot, 40);
    assert_eq!(g.read(DOORBELLS, u64::from(queue.slot) * 8), 40);
    // More requests than the ring holds.
    settle(&mut g);
    assert_eq!(oddities(&world), 1);
}

#[test]
fn a_pulled_function_takes_no_doorbell() {
    let world = world();
    let (mut g, queue) = looped(&world);
    world.control(r#"{"op": "gone", "hca": "a", "gone": true}"#);
    g.ring(queue.slot, 1);
    // Far longer than the longest wait between two looks.
    std::thread::sleep(std::time::Duration::from_millis(50));
    assert_eq!(indices(&world), serde_json::json!([0, 0]));
}

#[test]
fn a_doorbell_after_a_long_silence_is_found() {
    let world = world();
    let (mut g, mut queue) = looped(&world);
    for _ in 0..3 {
        // Far longer than the longest wait between two looks.
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(send(&mut g, &mut queue), Some(CqeStatus::Success));
    }
}
