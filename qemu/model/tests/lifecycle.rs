// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The function: resets, clients that come and go, what is wrong with it on purpose, and clients that
//! do not keep to the protocol.

mod guest;

use guest::*;
use qiao_fabric::link::Faults;
use qiao_hw::bar::{control, reg, status, ALL_ONES, MAGIC};
use qiao_hw::cmd::*;
use qiao_hw::cqe::CqeStatus;
use qiao_hw::event::EventType;
use qiao_hw::qp::access;
use qiao_hw::wqe::SendOpcode;
use rustix::io::Errno;
use zerocopy::IntoBytes;

const KEY: u32 = 0x101;
const DATA: u64 = 0x80_0000;
const ENABLED: u32 = status::READY | status::ENABLED;

fn clean() -> World {
    World::new(Faults::default(), "")
}

fn nop() -> Entry {
    let mut entry = Entry::zeroed();
    entry.opcode.set(Opcode::Nop.to_wire());
    entry
}

/// Function level reset as the kernel does it: a write to the Device Control register.
fn flr(g: &mut Guest) {
    let value = g.read(CONFIG, 0x68) as u16 | (1 << 15);
    g.write(CONFIG, 0x68, &value.to_le_bytes());
}

/// Leaves D0 and comes back.
fn power_cycle(g: &mut Guest) {
    g.write(CONFIG, 0x54, &[3]);
    assert_eq!(g.register(reg::MAGIC), ALL_ONES);
    g.write(CONFIG, 0x54, &[0]);
}

/// DEVICE_RESET, which QEMU sends when the machine resets.
fn device_reset(g: &mut Guest) {
    g.try_call(13, &[], &[]).unwrap();
}

#[test]
fn every_reset_leaves_a_fresh_device_with_its_vectors() {
    let world = clean();
    let mut g = world.guest("a");
    let vectors = g.vectors(2);
    for reset in [flr, power_cycle, device_reset] {
        g.start();
        g.basics();
        g.register_memory(KEY, 1, DATA, 4096, access::LOCAL_WRITE);
        g.queue(5, 1);
        g.interrupts(&vectors[0]);
        reset(&mut g);
        // The configuration space is reset as well: no access, no bus master.
        assert_eq!(g.read(CONFIG, 4) & 6, 0);
        assert_eq!(g.register(reg::MAGIC), ALL_ONES);
        g.switch_on();
        g.wait_status(status::READY);
        assert_eq!(g.register(reg::CMDQ_BASE), 0);
        let answer = world.control(r#"{"op": "dump"}"#);
        let hca = &answer["dump"][0];
        for objects in ["eqs", "cqs", "qps"] {
            assert_eq!(hca[objects], serde_json::json!([]), "{objects}");
        }
        assert_eq!(
            (&hca["pds"], &hca["mkeys"], &hca["pages"]),
            (&0.into(), &0.into(), &0.into())
        );
    }
    g.start();
    g.entry(&nop()).unwrap();
    assert!(g.interrupts(&vectors[0]) > 0);
}

#[test]
fn a_client_leaves_nothing_behind_for_the_next() {
    let world = clean();
    let mut first = world.guest("a");
    first.start();
    first.basics();
    drop(first);
    let mut second = world.guest("a");
    second.wait_status(status::READY);
    second.start();
    second.basics();
    let answer = world.control(r#"{"op": "dump"}"#);
    assert_eq!(answer["dump"][0]["dma_maps"], serde_json::json!([1, 1]));
}

#[test]
fn without_bus_master_nothing_is_read_or_written() {
    let world = clean();
    let mut g = world.guest("a");
    g.start();
    g.write(CONFIG, 4, &2u16.to_le_bytes());
    g.issue(&nop());
    g.wait_status(ENABLED | status::FATAL);
    assert!(g.completion(0).is_none());
    assert_ne!(g.register(reg::FATAL_CAUSE), 0);
    g.switch_on();
    g.start();
    g.entry(&nop()).unwrap();
}

#[test]
fn command_queues_out_of_range_are_fatal_until_a_reset() {
    let world = clean();
    let mut g = world.guest("a");
    let setups: [&dyn Fn(&mut Guest); 4] = [
        &|g| g.set_register(reg::CMDQ_CONFIG, 13),
        &|g| g.set_register(reg::CMDQ_CONFIG, 4 | (1 << 8)),
        &|g| g.set_register(reg::CMDQ_CONFIG, 4 | (32 << 16)),
        &|g| g.set_register(reg::CMDQ_BASE, 0x1080),
    ];
    for wrong in setups {
        g.set_register(reg::CONTROL, control::RESET);
        g.wait_status(status::READY);
        wrong(&mut g);
        g.set_register(reg::CONTROL, control::ENABLE);
        g.wait_status(status::READY | status::FATAL);
    }
    for register in [reg::CMDQ_PRODUCER, reg::CMDQ_CONSUMER] {
        g.start();
        g.set_register(register, 17);
        g.wait_status(ENABLED | status::FATAL);
    }
    g.start();
    g.entry(&nop()).unwrap();
}

#[test]
fn memory_behind_an_iommu_is_scattered_and_gone_when_it_is_unmapped() {
    let world = clean();
    let mut a = world.guest("a");
    let mut b = world.guest("b");
    // 16 neighbouring pages that lie in reverse in the memory of the guest.
    let iova = 0x1_0000_0000u64;
    for page in 0..16 {
        a.map(iova + page * 4096, DATA + (15 - page) * 4096, 4096);
    }
    for g in [&mut a, &mut b] {
        g.start();
        g.basics();
        let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
        g.register_memory(KEY, 1, DATA, 0x1_0000, rights);
    }
    let mut key = CreateMkey::zeroed();
    key.key.set(0x201);
    key.pdn.set(1);
    key.start.set(0x7000);
    key.length.set(16 * 4096);
    key.pages = contiguous(iova, 16, a.pages(1), &a);
    a.command(&key).unwrap();
    let mut qa = a.queue(5, 1);
    b.queue(5, 1);
    a.connect(5, 2, 5);
    b.connect(5, 1, 5);
    let data: Vec<u8> = (0..0x1_0000u32).map(|n| (n / 7) as u8).collect();
    for (page, bytes) in (0..).zip(data.chunks(4096)) {
        a.put(DATA + (15 - page) * 4096, bytes);
    }
    let far = remote(DATA + 100, KEY);
    let local = segment(0x7000 + 10, 60_000, 0x201);
    a.post_send(
        &mut qa,
        SendOpcode::RdmaWrite,
        &[far.as_bytes(), local.as_bytes()],
    );
    assert_eq!(a.poll(&mut qa).status, 0);
    assert!(b.get(DATA + 100, 60_000) == data[10..60_010]);
    // One page goes: what needs it fails, the rest of the device goes on.
    a.unmap(iova + 3 * 4096, 4096);
    a.post_send(
        &mut qa,
        SendOpcode::RdmaWrite,
        &[far.as_bytes(), local.as_bytes()],
    );
    let status = CqeStatus::from_wire(a.poll(&mut qa).status);
    assert_eq!(status, Some(CqeStatus::LocalProtection));
    let (mut other_a, mut other_b) = (a.queue(6, 1), b.queue(6, 1));
    a.connect(6, 2, 6);
    b.connect(6, 1, 6);
    b.post_recv(&mut other_b, segment(DATA, 8, KEY));
    a.post_send(
        &mut other_a,
        SendOpcode::Send,
        &[segment(0x7000, 8, 0x201).as_bytes()],
    );
    assert_eq!(
        [a.poll(&mut other_a).status, b.poll(&mut other_b).status],
        [0, 0]
    );
}

#[test]
fn wrong_answers_to_commands_are_what_was_asked_for() {
    let world = World::new(
        Faults::default(),
        "command_faults = [{opcode = \"Nop\", kind = \"drop\"}, {kind = \"duplicate\", opcode = \"AllocPd\"}]\n",
    );
    let mut g = world.guest("a");
    g.start();
    let mut pd = AllocPd::zeroed();
    pd.pdn.set(3);
    g.issue(&nop());
    g.issue(&Entry::new(0, &pd));
    for index in 0..2 {
        let got = g.wait("both answers", |g| g.completion(index));
        assert_eq!((got.id.get(), got.status), (1, 0));
    }
    let ask = |kind: &str| {
        let line =
            format!(r#"{{"op": "command-fault", "hca": "a", "fault": {{"kind": "{kind}"}}}}"#);
        assert_eq!(world.control(&line), "done");
    };
    ask("wrong-id");
    g.issue(&nop());
    let got = g.wait("an answer", |g| g.completion(2));
    assert_eq!(got.id.get(), !2);
    ask("hang");
    g.issue(&nop());
    ask("drop");
    g.issue(&nop());
    world.control(r#"{"op": "dump"}"#);
    assert!(g.completion(3).is_none());
    // A reset helps; the fault that has not been met yet stays.
    g.start();
    g.issue(&nop());
    g.issue(&nop());
    let got = g.wait("an answer", |g| g.completion(0));
    assert_eq!(got.id.get(), 1);
}

#[test]
fn a_function_that_is_pulled_reads_as_ones_and_touches_nothing() {
    let world = clean();
    let mut g = world.guest("a");
    g.start();
    assert_eq!(
        world.control(r#"{"op": "gone", "hca": "a", "gone": true}"#),
        "done"
    );
    assert_eq!(
        (g.register(reg::MAGIC), g.read(CONFIG, 0)),
        (ALL_ONES, ALL_ONES)
    );
    g.issue(&nop());
    assert_eq!(
        world.control(r#"{"op": "gone", "hca": "a", "gone": false}"#),
        "done"
    );
    // It had no power, and so has no address and no objects.
    assert_eq!(g.register(reg::MAGIC), ALL_ONES);
    g.switch_on();
    assert_eq!(g.register(reg::MAGIC), MAGIC);
    g.wait_status(status::READY);
    assert!(g.completion(0).is_none());
    g.start();
    g.entry(&nop()).unwrap();
}

#[test]
fn a_device_that_fails_says_so_and_stops() {
    let world = clean();
    let mut g = world.guest("a");
    g.start();
    g.basics();
    assert_eq!(world.control(r#"{"op": "fatal", "hca": "a"}"#), "done");
    assert_eq!(g.wait_event(0, 0), (Some(EventType::DeviceFatal), 0));
    g.wait_status(ENABLED | status::FATAL);
    g.issue(&nop());
    world.control(r#"{"op": "dump"}"#);
    assert!(g.completion(3).is_none());
    g.start();
    g.entry(&nop()).unwrap();
}

#[test]
fn a_cable_that_is_pulled_is_an_event_and_a_state() {
    let world = clean();
    let mut g = world.guest("a");
    g.start();
    g.basics();
    let mut query = QueryPort::zeroed();
    query.port = 1;
    let up = [EventType::ClientReregister, EventType::PortActive];
    for (first, up, events, state) in [
        (0, false, &[EventType::PortError][..], PortState::Down),
        // The subnet manager sets the port up again.
        (1, true, &up, PortState::Active),
    ] {
        let line = format!(r#"{{"op": "link", "link": 0, "up": {up}}}"#);
        assert_eq!(world.control(&line), "done");
        for (n, want) in (first..).zip(events) {
            let eqe = g.wait("an event", |g| g.event(0, n));
            assert_eq!((eqe.event_type, eqe.port), (want.to_wire(), 1));
        }
        assert_eq!(g.command(&query).unwrap().state, state.to_wire());
    }
    for nonsense in [
        r#"{"op": "link", "link": 9, "up": true}"#,
        r#"{"op": "x"}"#,
        "[",
        "",
    ] {
        assert!(world.control(nonsense)["error"].is_string(), "{nonsense}");
    }
}

#[test]
fn overrides_show_in_the_registers() {
    let world = World::new(
        Faults::default(),
        "overrides = {magic = 0x12345678, version = 0x10000, caps_length = 8, caps = [{offset = 0, bytes = [255]}]}\n",
    );
    let mut g = world.guest("a");
    assert_eq!(g.register(reg::MAGIC), 0x1234_5678);
    assert_eq!(g.register(reg::VERSION), 0x1_0000);
    assert_eq!(g.register(reg::CAPS), (8 << 16) | 0x400);
    assert_eq!(g.register(0x400) & 0xff, 0xff);
}

#[test]
fn messages_that_are_wrong_get_an_error_and_the_next_is_served() {
    let world = clean();
    let mut g = world.guest("a");
    let words = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_ne_bytes()).collect() };
    // DEVICE_FEATURE, which QEMU 11 knows, with a payload.
    assert_eq!(g.try_call(16, &[1; 100], &[]), Err(Errno::NOTSUP));
    assert_eq!(g.try_call(999, &[], &[]), Err(Errno::NOTSUP));
    // Beyond a region, a region that is not one, a size that wraps, more than fits.
    let read = |region, offset, count: u32| {
        [&u64::to_ne_bytes(offset)[..], &words(&[region, count])].concat()
    };
    for body in [
        read(CONTROL, 0x2000, 1),
        read(CONTROL, 0x1ffd, 4),
        read(CONTROL, u64::MAX, 4),
        read(77, 0, 4),
        read(1, 0, 4),
    ] {
        assert_eq!(g.try_call(9, &body, &[]), Err(Errno::INVAL));
    }
    assert_eq!(
        g.try_call(9, &read(CONTROL, 0, 1 << 30), &[]),
        Err(Errno::TOOBIG)
    );
    assert_eq!(g.try_call(10, &read(CONTROL, 0, 4), &[]), Err(Errno::INVAL));
    // Interrupts that do not exist.
    for irqs in [
        [20, 0x24, 2, 31, 2],
        [20, 0x24, 2, u32::MAX, 2],
        [20, 0x24, 9, 0, 1],
    ] {
        assert_eq!(g.try_call(8, &words(&irqs), &[]), Err(Errno::INVAL));
    }
    // A DMA map that overlaps, and one of a file that is too short.
    let map = |addr: u64| {
        [
            &words(&[32, 3])[..],
            &0u64.to_ne_bytes(),
            &addr.to_ne_bytes(),
            &4096u64.to_ne_bytes(),
        ]
        .concat()
    };
    assert_eq!(g.try_call(2, &map(0), &[]), Err(Errno::EXIST));
    // Memory without a descriptor is accepted; a transfer there is a fault.
    g.try_call(2, &map(1 << 40), &[]).unwrap();
    g.start();
    g.basics();
    let mut key = CreateMkey::zeroed();
    key.key.set(KEY);
    key.pdn.set(1);
    key.length.set(8192);
    key.pages = page_list(1 << 40, 2);
    key.pages.levels = 1;
    assert_eq!(g.command(&key), Err(Status::DmaFault));
    assert_eq!(g.register(reg::MAGIC), MAGIC);
}

#[test]
fn posted_and_multiple_writes_are_done_in_order() {
    const NO_REPLY: u32 = 1 << 4;
    let world = clean();
    let mut g = world.guest("a");
    let write = |value: u32| {
        let mut body = Guest::access(CONTROL, reg::CMDQ_CONFIG as u64, 4);
        body.extend_from_slice(&value.to_le_bytes());
        message(10, NO_REPLY, &body)
    };
    // Many in one piece, and the last one in two.
    let mut flood: Vec<u8> = (0..5000).flat_map(write).collect();
    let tail = flood.split_off(flood.len() - 7);
    g.send(&flood, &[]);
    g.send(&tail, &[]);
    assert_eq!(g.register(reg::CMDQ_CONFIG), 4999);
    let mut multi = 3u64.to_ne_bytes().to_vec();
    for (offset, value) in [
        (reg::CMDQ_BASE, 0x1000u64),
        (reg::CMDQ_BASE, 0x3000),
        (reg::CMDQ_CONFIG, 5),
    ] {
        multi.extend_from_slice(&Guest::access(CONTROL, offset as u64, 4));
        multi.extend_from_slice(&value.to_ne_bytes());
    }
    g.try_call(15, &multi, &[]).unwrap();
    assert_eq!(g.register(reg::CMDQ_BASE), 0x3000);
    assert_eq!(g.register(reg::CMDQ_CONFIG), 5);
}

#[test]
fn a_stream_that_is_lost_ends_the_client_and_not_the_server() {
    let world = clean();
    for garbage in [
        message(9, 0, &[])[..15].to_vec(),
        // Sizes below the header and beyond the limit, and a reply.
        [
            &7u16.to_ne_bytes()[..],
            &9u16.to_ne_bytes(),
            &15u32.to_ne_bytes(),
            &[0; 8],
        ]
        .concat(),
        [
            &7u16.to_ne_bytes()[..],
            &9u16.to_ne_bytes(),
            &u32::MAX.to_ne_bytes(),
            &[0; 8],
        ]
        .concat(),
        message(9, 1, &[]),
    ] {
        let mut g = world.guest("a");
        g.send(&garbage, &[]);
        g.close_half();
        assert!(g.is_closed());
    }
    let mut g = world.guest("a");
    g.start();
    g.entry(&nop()).unwrap();
}
