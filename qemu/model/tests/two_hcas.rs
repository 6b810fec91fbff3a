// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Two HCAs in one process, driven as drivers and programs would, without QEMU.

mod guest;

use guest::*;
use qiao_fabric::link::Faults;
use qiao_hw::bar::{reg, status, MAGIC};
use qiao_hw::cmd::*;
use qiao_hw::cqe::{cqe_flag, CqeStatus};
use qiao_hw::qp::{access, path_flag, Path, QpAttr, QpState, QpType};
use qiao_hw::wqe::{AtomicSeg, DatagramSeg, SendOpcode};
use zerocopy::IntoBytes;

const KEY: u32 = 0x101;
const ALL: u32 =
    access::LOCAL_WRITE | access::REMOTE_READ | access::REMOTE_WRITE | access::REMOTE_ATOMIC;
const DATA: u64 = 0x80_0000;
const LENGTH: u32 = 0x10_0000;

/// Two connected queue pairs, number 5 each, with a region each.
fn pair(world: &World) -> [(Guest, Queue); 2] {
    let mut sides = ["a", "b"].map(|name| {
        let mut g = world.guest(name);
        g.start();
        g.basics();
        g.register_memory(KEY, 1, DATA, LENGTH.into(), ALL);
        let q = g.queue(5, 1);
        (g, q)
    });
    sides[0].0.connect(5, 2, 5);
    sides[1].0.connect(5, 1, 5);
    sides
}

fn pattern(seed: u64, length: usize) -> Vec<u8> {
    (0..length as u64)
        .map(|i| (i.wrapping_mul(seed | 1) >> 3) as u8)
        .collect()
}

fn traffic(faults: Faults) {
    let world = World::new(faults, "");
    let [(mut a, mut qa), (mut b, mut qb)] = pair(&world);
    for round in 0..40u64 {
        let length = [1, 8, 1024, 1025, 5000, 65536][round as usize % 6];
        let data = pattern(round, length as usize);
        a.put(DATA, &data);
        // WRITE there, SEND there, READ back into another place.
        let (there, back) = (DATA + 0x2_0000, DATA + 0x8_0000);
        let local = segment(DATA, length, KEY);
        b.post_recv(&mut qb, segment(DATA, length, KEY));
        let far = remote(there, KEY);
        a.post_send(
            &mut qa,
            SendOpcode::RdmaWrite,
            &[far.as_bytes(), local.as_bytes()],
        );
        a.post_send(&mut qa, SendOpcode::Send, &[local.as_bytes()]);
        let home = segment(back, length, KEY);
        a.post_send(
            &mut qa,
            SendOpcode::RdmaRead,
            &[far.as_bytes(), home.as_bytes()],
        );
        for n in 0..3 {
            let cqe = a.poll(&mut qa);
            assert_eq!(CqeStatus::from_wire(cqe.status), Some(CqeStatus::Success));
            assert_eq!(cqe.wqe_index.get(), round as u32 * 3 + n);
        }
        let cqe = b.poll(&mut qb);
        assert_eq!((cqe.status, cqe.byte_len.get()), (0, length));
        assert!(b.get(there, data.len()) == data, "WRITE, round {round}");
        assert!(b.get(DATA, data.len()) == data, "SEND, round {round}");
        assert!(a.get(back, data.len()) == data, "READ, round {round}");
    }
    // Atomics: each once, whatever the link does.
    b.put(DATA, &0u64.to_le_bytes());
    for n in 0..20u64 {
        let add = AtomicSeg {
            swap_or_add: 1.into(),
            compare: 0.into(),
        };
        let local = segment(DATA, 8, KEY);
        let far = remote(DATA, KEY);
        let segments = [far.as_bytes(), add.as_bytes(), local.as_bytes()];
        a.post_send(&mut qa, SendOpcode::FetchAdd, &segments);
        assert_eq!(a.poll(&mut qa).status, 0);
        assert_eq!(a.get(DATA, 8), n.to_le_bytes());
    }
    assert_eq!(b.get(DATA, 8), 20u64.to_le_bytes());
}

#[test]
fn data_arrives() {
    traffic(Faults::default());
}

#[test]
fn data_arrives_over_a_bad_link() {
    traffic(Faults {
        drop: 0.01,
        corrupt: 0.005,
        duplicate: 0.01,
        reorder: 0.01,
        reorder_ns: 20_000,
        ..Faults::default()
    });
}

/// What node a gets for a send request, and that another connection goes on.
fn refused(opcode: SendOpcode, segments: &[&[u8]], prepare: impl FnOnce(&mut Guest)) -> CqeStatus {
    let world = World::new(Faults::default(), "");
    let [(mut a, mut qa), (mut b, mut qb)] = pair(&world);
    prepare(&mut a);
    let (mut other_a, mut other_b) = (a.queue(6, 1), b.queue(6, 1));
    a.connect(6, 2, 6);
    b.connect(6, 1, 6);
    b.post_recv(&mut qb, segment(DATA, 16, KEY));
    a.post_send(&mut qa, opcode, segments);
    let got = a.poll(&mut qa);
    // What follows is flushed.
    a.post_send(
        &mut qa,
        SendOpcode::Send,
        &[segment(DATA, 1, KEY).as_bytes()],
    );
    let flushed = a.poll(&mut qa);
    assert_eq!(
        CqeStatus::from_wire(flushed.status),
        Some(CqeStatus::WrFlush)
    );
    b.post_recv(&mut other_b, segment(DATA, 16, KEY));
    a.post_send(
        &mut other_a,
        SendOpcode::Send,
        &[segment(DATA, 16, KEY).as_bytes()],
    );
    assert_eq!(
        (a.poll(&mut other_a).status, b.poll(&mut other_b).status),
        (0, 0)
    );
    CqeStatus::from_wire(got.status).expect("a status")
}

#[test]
fn bad_requests_fail_alone_with_the_right_status() {
    let ok = segment(DATA, 8, KEY);
    let end = DATA + u64::from(LENGTH);
    let none = |_: &mut Guest| {};
    use SendOpcode::{RdmaRead, RdmaWrite, Send};
    let cases: [(SendOpcode, Vec<Vec<u8>>, CqeStatus); 8] = [
        (
            Send,
            vec![segment(end - 4, 8, KEY).as_bytes().into()],
            CqeStatus::LocalProtection,
        ),
        (
            Send,
            vec![segment(DATA, 8, KEY ^ 1).as_bytes().into()],
            CqeStatus::LocalProtection,
        ),
        (
            Send,
            vec![segment(DATA, u32::MAX, KEY).as_bytes().into()],
            CqeStatus::LocalLength,
        ),
        (
            Send,
            vec![segment(DATA, 17, KEY).as_bytes().into()],
            CqeStatus::RemoteInvalidRequest,
        ),
        (
            RdmaWrite,
            vec![remote(end - 7, KEY).as_bytes().into(), ok.as_bytes().into()],
            CqeStatus::RemoteAccess,
        ),
        (
            RdmaRead,
            vec![
                remote(u64::MAX - 3, KEY).as_bytes().into(),
                ok.as_bytes().into(),
            ],
            CqeStatus::RemoteAccess,
        ),
        (
            RdmaRead,
            vec![
                remote(DATA, KEY ^ 0xff).as_bytes().into(),
                ok.as_bytes().into(),
            ],
            CqeStatus::RemoteAccess,
        ),
        // Too short for the segments that the opcode needs.
        (
            RdmaWrite,
            vec![remote(DATA, KEY).as_bytes().into()],
            CqeStatus::LocalQpOperation,
        ),
    ];
    for (opcode, segments, want) in cases {
        let slices: Vec<&[u8]> = segments.iter().map(Vec::as_slice).collect();
        assert_eq!(
            refused(opcode, &slices, none),
            want,
            "{opcode:?} {segments:?}"
        );
    }
    // A key of another protection domain.
    let foreign = segment(DATA, 8, 0x201);
    let prepare = |g: &mut Guest| {
        g.alloc_pd(2);
        g.register_memory(0x201, 2, DATA, 4096, ALL);
    };
    let got = refused(Send, &[foreign.as_bytes()], prepare);
    assert_eq!(got, CqeStatus::LocalProtection);
}

#[test]
fn commands_check_everything() {
    let world = World::new(Faults::default(), "");
    let mut g = world.guest("a");
    assert_eq!(g.register(reg::MAGIC), MAGIC);
    g.start();
    g.basics();
    // Reserved bytes.
    let reserved = [
        dirty(&AllocPd::zeroed()),
        dirty(&CreateEq::zeroed()),
        dirty(&CreateCq::zeroed()),
        dirty(&CreateQp::zeroed()),
        dirty(&QueryPort::zeroed()),
    ];
    for entry in reserved.into_iter().flatten() {
        assert_eq!(g.entry(&entry), Err(Status::BadOperand));
    }
    let mut unknown = Entry::zeroed();
    unknown.opcode.set(0x7777);
    assert_eq!(g.entry(&unknown), Err(Status::BadOpcode));
    // Ids.
    let mut pd = AllocPd::zeroed();
    pd.pdn.set(1);
    assert_eq!(g.command(&pd), Err(Status::Exists));
    pd.pdn.set(u32::MAX);
    assert_eq!(g.command(&pd), Err(Status::BadOperand));
    let mut free = DeallocPd::zeroed();
    free.pdn.set(9);
    assert_eq!(g.command(&free), Err(Status::NoSuchObject));
    // Memory: no byte, a wrap, an unknown PD, a list that is too short.
    let mut key = CreateMkey::zeroed();
    key.key.set(KEY);
    key.pdn.set(1);
    key.pages = page_list(0, 1);
    assert_eq!(g.command(&key), Err(Status::BadOperand));
    key.start.set(u64::MAX - 10);
    key.length.set(100);
    assert_eq!(g.command(&key), Err(Status::BadOperand));
    key.start.set(0);
    key.length.set(4097);
    assert_eq!(g.command(&key), Err(Status::BadOperand));
    key.length.set(4096);
    key.pdn.set(3);
    assert_eq!(g.command(&key), Err(Status::NoSuchObject));
    // A table that is not in memory.
    key.pdn.set(1);
    key.length.set(8192);
    key.pages = page_list(1 << 40, 2);
    key.pages.levels = 1;
    assert_eq!(g.command(&key), Err(Status::DmaFault));
    // Objects in use.
    let queue = g.queue(7, 1);
    free.pdn.set(1);
    assert_eq!(g.command(&free), Err(Status::Busy));
    let mut cq = DestroyCq::zeroed();
    cq.cqn.set(7);
    assert_eq!(g.command(&cq), Err(Status::Busy));
    // Transitions.
    let mut attr = QpAttr::zeroed();
    attr.state = QpState::Rts.to_wire();
    assert_eq!(g.modify(queue.qpn, 1, &attr), Err(Status::BadState));
    let mut qp = DestroyQp::zeroed();
    qp.qpn.set(7);
    g.command(&qp).unwrap();
    g.command(&cq).unwrap();
    g.command(&free).unwrap();
    assert_eq!(g.register(reg::STATUS), status::READY | status::ENABLED);
}

#[test]
fn a_reset_forgets_everything() {
    let world = World::new(Faults::default(), "");
    let mut g = world.guest("a");
    for _ in 0..20 {
        g.start();
        g.basics();
        g.queue(5, 1);
    }
}

fn address(lid: u32, qpn: u32, qkey: u32) -> DatagramSeg {
    let mut path = Path::zeroed();
    path.dlid.set(lid);
    path.port = 1;
    path.sl = 2;
    DatagramSeg {
        path,
        qpn: qpn.into(),
        qkey: qkey.into(),
        pkey_index: 0.into(),
        rsvd: [0; 6],
    }
}

#[test]
fn datagrams_arrive_from_a_peer_and_from_the_port_itself() {
    const QKEY: u32 = 0x1234;
    let world = World::new(Faults::default(), "");
    let mut sides = ["a", "b"].map(|name| {
        let mut g = world.guest(name);
        g.start();
        g.basics();
        g.register_memory(KEY, 1, DATA, LENGTH.into(), ALL);
        let q = g.queue_of(QpType::Ud, 5, 1);
        g.open(5, QKEY);
        (g, q)
    });
    let data = pattern(3, 4096);
    let place = DATA + 0x1_0000;
    for (n, (from, to)) in [(0, 1), (1, 0), (0, 0)].into_iter().enumerate() {
        let (g, q) = &mut sides[to];
        g.post_recv(q, segment(place, 4096 + 40, KEY));
        let (g, q) = &mut sides[from];
        g.put(DATA, &data);
        let mut to_seg = address(to as u32 + 1, 5, QKEY);
        // The second has a GRH.
        to_seg.path.flags = if n == 1 { path_flag::GRH } else { 0 };
        let local = segment(DATA, 4096, KEY);
        let segments = [to_seg.as_bytes(), local.as_bytes()];
        g.post_send(q, SendOpcode::Send, &segments);
        // On one port both completions are in one CQ, in either order.
        let mut cqes = vec![g.poll(q)];
        let (g, q) = &mut sides[to];
        cqes.push(g.poll(q));
        let cqe = cqes.iter().find(|c| c.src_qpn.get() != 0);
        let cqe = cqe.expect("a receive completion");
        assert!(cqes.iter().all(|c| c.status == 0));
        assert_eq!(cqe.byte_len.get(), 4096 + 40);
        assert_eq!((cqe.src_qpn.get(), cqe.sl), (5, 2));
        assert_eq!(cqe.slid.get(), from as u32 + 1);
        assert_eq!(cqe.flags & cqe_flag::GRH != 0, n == 1);
        assert!(g.get(place + 40, data.len()) == data, "datagram {n}");
        let version = g.get(place, 1)[0] >> 4;
        assert!(n != 1 || version == 6, "the GRH is in front");
    }
    // A reserved field of the address.
    let (g, q) = &mut sides[0];
    let mut bad = address(2, 5, QKEY);
    bad.rsvd[0] = 1;
    let local = segment(DATA, 8, KEY);
    let segments = [bad.as_bytes(), local.as_bytes()];
    g.post_send(q, SendOpcode::Send, &segments);
    let status = CqeStatus::from_wire(g.poll(q).status);
    assert_eq!(status, Some(CqeStatus::LocalQpOperation));
}

#[test]
fn an_unreliable_connection_carries_sends_and_writes() {
    let world = World::new(Faults::default(), "");
    let mut sides = ["a", "b"].map(|name| {
        let mut g = world.guest(name);
        g.start();
        g.basics();
        g.register_memory(KEY, 1, DATA, LENGTH.into(), ALL);
        let q = g.queue_of(QpType::Uc, 5, 1);
        (g, q)
    });
    sides[0].0.connect(5, 2, 5);
    sides[1].0.connect(5, 1, 5);
    let [(mut a, mut qa), (mut b, mut qb)] = sides;
    let data = pattern(5, 5000);
    let (written, received) = (DATA + 0x2_0000, DATA + 0x4_0000);
    a.put(DATA, &data);
    b.post_recv(&mut qb, segment(received, 5000, KEY));
    let (local, far) = (segment(DATA, 5000, KEY), remote(written, KEY));
    let segments = [far.as_bytes(), local.as_bytes()];
    a.post_send(&mut qa, SendOpcode::RdmaWrite, &segments);
    a.post_send(&mut qa, SendOpcode::Send, &[local.as_bytes()]);
    assert_eq!((a.poll(&mut qa).status, a.poll(&mut qa).status), (0, 0));
    // In order: when the SEND has come the WRITE has.
    assert_eq!(b.poll(&mut qb).byte_len.get(), 5000);
    assert!(b.get(written, data.len()) == data);
    assert!(b.get(received, data.len()) == data);
    a.post_send(&mut qa, SendOpcode::RdmaRead, &segments);
    let status = CqeStatus::from_wire(a.poll(&mut qa).status);
    assert_eq!(status, Some(CqeStatus::LocalQpOperation));
}

/// A port whose peer takes nothing keeps what it has to send; the other port of the device works.
#[test]
fn a_congested_port_holds_back_no_other() {
    const LINKS: &str = r#"
        [[switch]]
        name = "s"
        ports = 3
        [[link]]
        ends = ["a:1", "s:1"]
        [[link]]
        ends = ["a:2", "s:2"]
        [[link]]
        ends = ["b:1", "s:3"]
    "#;
    let world = World::with_topology(LINKS, Faults::default(), "ports = 2\n");
    let dump = world.control(r#"{"op": "dump"}"#);
    let lid = |hca: usize, port: usize| {
        let lid = dump["dump"][hca]["ports"][port]["lid"].as_u64();
        u32::try_from(lid.expect("a LID")).expect("16 bits")
    };
    let [mut a, mut b] = ["a", "b"].map(|name| {
        let mut g = world.guest(name);
        g.start();
        g.basics();
        g.register_memory(KEY, 1, DATA, LENGTH.into(), ALL);
        g
    });
    let [mut held, mut free] = [1, 2].map(|port| {
        let qpn = 4 + u32::from(port);
        let queue = a.queue(qpn, 1);
        b.queue(qpn, 1);
        a.connect_on(port, qpn, lid(1, 0), qpn);
        b.connect(qpn, lid(0, usize::from(port) - 1), qpn);
        queue
    });
    // No credit comes back within the life of this test: the port sends what it has been granted, and then its queue fills.
    let slow = r#"{"op": "faults", "link": 0, "faults": {"delay_ns": 1000000000000}}"#;
    assert_eq!(world.control(slow), "done");
    let (local, far) = (segment(DATA, LENGTH, KEY), remote(DATA, KEY));
    let segments = [far.as_bytes(), local.as_bytes()];
    for _ in 0..4 {
        a.post_send(&mut held, SendOpcode::RdmaWrite, &segments);
    }
    a.wait("a port that waits for credits", |_| {
        let dump = world.control(r#"{"op": "dump"}"#);
        let waits = dump["dump"][0]["ports"][0]["link"]["xmit_wait"].as_u64();
        (waits? > 0).then_some(())
    });
    let data = pattern(3, LENGTH as usize);
    a.put(DATA, &data);
    for _ in 0..4 {
        a.post_send(&mut free, SendOpcode::RdmaWrite, &segments);
        assert_eq!(a.poll(&mut free).status, 0);
    }
    assert!(b.get(DATA, data.len()) == data);
}
