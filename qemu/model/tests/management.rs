// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Management datagrams: the device's agents, and the special queue pairs of the host.

mod guest;

use guest::*;
use qiao_fabric::link::Faults;
use qiao_fabric::mad::{
    self, attribute, class, method, status, Mad, NodeInfo, PerfMad, PkeyBlock, PortCounters,
    PortInfo, Smp, BASE_VERSION, GSI_QKEY, PERMISSIVE_LID,
};
use qiao_hw::cmd::*;
use qiao_hw::cqe::Cqe;
use qiao_hw::event::EventType;
use qiao_hw::qp::{access, Path, QpType};
use qiao_hw::wqe::{DatagramSeg, SendOpcode};
use zerocopy::{FromZeros, IntoBytes};

const KEY: u32 = 0x101;
const OUT: u64 = 0x80_0000;
const IN: u64 = 0x80_2000;
const GRH: u64 = 40;

/// An HCA with both special queue pairs: 5 is QP 0, 6 is QP 1.
fn host(world: &World, name: &str) -> (Guest, Queue, Queue) {
    let mut g = world.guest(name);
    g.start();
    g.basics();
    g.register_memory(KEY, 1, OUT, 0x1_0000, access::LOCAL_WRITE);
    let (smi, gsi) = (g.queue_of(QpType::Smi, 5, 1), g.queue_of(QpType::Gsi, 6, 1));
    g.open(5, 0);
    g.open(6, GSI_QKEY);
    (g, smi, gsi)
}

fn send(g: &mut Guest, queue: &mut Queue, lid: u16, qpn: u32, mad: &Mad) {
    let mut path = Path::zeroed();
    path.dlid.set(lid.into());
    path.port = 1;
    let to = DatagramSeg {
        path,
        qpn: qpn.into(),
        qkey: (1 << 31).into(),
        pkey_index: 0.into(),
        rsvd: [0; 6],
    };
    g.put(OUT, mad);
    let local = segment(OUT, 256, KEY);
    g.post_send(queue, SendOpcode::Send, &[to.as_bytes(), local.as_bytes()]);
}

fn take(g: &mut Guest, queue: &mut Queue) -> (Cqe, Mad) {
    let cqe = g.poll(queue);
    assert_eq!((cqe.status, cqe.byte_len.get()), (0, 256 + 40));
    (cqe, g.get(IN + GRH, 256).try_into().unwrap())
}

/// Sends a request and takes its response.
fn ask(g: &mut Guest, queue: &mut Queue, lid: u16, qpn: u32, mad: &Mad) -> (Cqe, Mad) {
    g.post_recv(queue, segment(IN, 256 + 40, KEY));
    send(g, queue, lid, qpn, mad);
    assert_eq!(g.poll(queue).status, 0);
    take(g, queue)
}

fn exec(g: &mut Guest, mad: &Mad, flags: u8) -> Option<Mad> {
    g.put(OUT, mad);
    let mut command = ExecMad::zeroed();
    command.port = 1;
    command.flags = flags;
    command.request.set(OUT);
    command.response.set(IN);
    let reply = g.command(&command).unwrap();
    (reply.flags & mad_flag::RESPONSE != 0).then(|| g.get(IN, 256).try_into().unwrap())
}

/// One hop out of port 1, as the sender sends it.
fn neighbour(method: u8, attribute: u16, modifier: u32) -> Smp {
    let mut smp = Smp::directed(&[1], method, attribute, modifier);
    smp.head.hops[0] = 1;
    smp.head.transaction.set(77);
    smp
}

fn perf(method: u8, attribute: u16) -> PerfMad {
    let mut mad = PerfMad::new_zeroed();
    mad.head.base_version = BASE_VERSION;
    mad.head.class = class::PERFORMANCE;
    mad.head.class_version = PerfMad::CLASS_VERSION;
    mad.head.method = method;
    mad.head.attribute.set(attribute);
    mad
}

#[test]
fn a_directed_request_comes_back_from_the_neighbour() {
    let world = World::new(Faults::default(), "");
    let (mut g, mut smi, _gsi) = host(&world, "a");
    let request = neighbour(method::GET, attribute::NODE_INFO, 0);
    let (cqe, mad) = ask(&mut g, &mut smi, PERMISSIVE_LID, 0, &request.to_mad());
    assert_eq!(cqe.slid.get(), u32::from(PERMISSIVE_LID));
    let smp = Smp::from_mad(&mad);
    assert_eq!((smp.head.method, smp.status()), (method::GET_RESP, 0));
    assert_eq!(smp.head.transaction.get(), 77);
    assert_eq!((smp.head.hops, smp.return_path[1]), ([1, 1], 1));
    let info: &NodeInfo = smp.attribute();
    assert_eq!((info.node_type, info.local_port()), (1, 1));
    // The same by its LID.
    let mut request = Smp::directed(&[], method::GET, attribute::NODE_INFO, 0);
    request.head.class = class::SUBN_LID;
    let (cqe, mad) = ask(&mut g, &mut smi, 2, 0, &request.to_mad());
    assert_eq!(cqe.slid.get(), 2);
    assert_eq!(Smp::from_mad(&mad).attribute::<NodeInfo>(), info);
}

#[test]
fn what_no_agent_answers_goes_to_the_host() {
    let world = World::new(Faults::default(), "");
    let (mut a, mut smi, mut gsi) = host(&world, "a");
    let (mut b, mut b_smi, mut b_gsi) = host(&world, "b");
    b.post_recv(&mut b_smi, segment(IN, 256 + 40, KEY));
    let request = neighbour(method::GET, attribute::SM_INFO, 0).to_mad();
    send(&mut a, &mut smi, PERMISSIVE_LID, 0, &request);
    let (cqe, mad) = take(&mut b, &mut b_smi);
    assert_eq!((cqe.src_qpn.get(), cqe.qpn.get()), (0, 5));
    assert_eq!(mad, request);
    // A class of general services.
    b.post_recv(&mut b_gsi, segment(IN, 256 + 40, KEY));
    let mut request = perf(method::GET, 1);
    request.head.class = 0x07;
    let request = request.to_mad();
    send(&mut a, &mut gsi, 2, 1, &request);
    let (cqe, mad) = take(&mut b, &mut b_gsi);
    assert_eq!((cqe.src_qpn.get(), cqe.slid.get()), (1, 1));
    assert_eq!(mad, request);
}

#[test]
fn a_counter_query_is_answered_over_the_link_and_at_home() {
    let world = World::new(Faults::default(), "");
    let (mut g, _smi, mut gsi) = host(&world, "a");
    let mut request = perf(method::GET, attribute::PORT_COUNTERS);
    request.data[1] = 1;
    // The second answer counts what the first question was.
    ask(&mut g, &mut gsi, 2, 1, &request.to_mad());
    let (_, mad) = ask(&mut g, &mut gsi, 2, 1, &request.to_mad());
    let answer = PerfMad::from_mad(&mad);
    assert_eq!(answer.head.method, method::GET_RESP);
    assert!(answer.attribute::<PortCounters>().rcv_pkts.get() >= 1);
    // The port's own LID: the packet does not leave the port.
    let (cqe, mad) = ask(&mut g, &mut gsi, 1, 1, &request.to_mad());
    assert_eq!(cqe.slid.get(), 1);
    let own = *PerfMad::from_mad(&mad).attribute::<PortCounters>();
    // What the subnet manager has sent counts too.
    assert!(own.xmit_pkts.get() >= 2 && own.rcv_pkts.get() >= 2);
    let mad = exec(&mut g, &request.to_mad(), 0).unwrap();
    assert_eq!(*PerfMad::from_mad(&mad).attribute::<PortCounters>(), own);
}

#[test]
fn the_host_configures_its_port_by_a_command() {
    let world = World::new(Faults::default(), "");
    let (mut g, _smi, _gsi) = host(&world, "a");
    let get = Smp::directed(&[], method::GET, attribute::PORT_INFO, 1);
    let smp = Smp::from_mad(&exec(&mut g, &get.to_mad(), 0).unwrap());
    let mut info: PortInfo = *smp.attribute();
    assert_eq!(
        (info.lid.get(), info.state()),
        (1, Some(mad::LinkState::Active))
    );
    info.lid.set(0x44);
    info.mkey.set(99);
    info.protect_lmc = 2 << 6;
    // No change of state.
    info.speed_state &= 0xf0;
    info.phys_down &= 0xf;
    let mut set = Smp::directed(&[], method::SET, attribute::PORT_INFO, 1);
    set.set_attribute(&info);
    let smp = Smp::from_mad(&exec(&mut g, &set.to_mad(), 0).unwrap());
    assert_eq!(smp.status(), 0);
    assert_eq!(g.wait_event(0, 0).0, Some(EventType::LidChange));
    let mut query = QueryPort::zeroed();
    query.port = 1;
    assert_eq!(g.command(&query).unwrap().lid.get(), 0x44);
    // The M_Key now keeps out all but the host itself.
    assert_eq!(exec(&mut g, &get.to_mad(), 0), None);
    assert!(exec(&mut g, &get.to_mad(), mad_flag::IGNORE_MKEY).is_some());
    // A P_Key of another partition.
    let mut set = Smp::directed(&[], method::SET, attribute::PKEY_TABLE, 0);
    let mut pkeys = PkeyBlock::new_zeroed();
    (pkeys.pkeys[0], pkeys.pkeys[3]) = (0xffff.into(), 0x8123.into());
    set.set_attribute(&pkeys);
    assert!(exec(&mut g, &set.to_mad(), mad_flag::IGNORE_MKEY).is_some());
    assert_eq!(g.wait_event(0, 1).0, Some(EventType::PkeyChange));
    let mut query = QueryPkey::zeroed();
    query.port = 1;
    query.index.set(3);
    assert_eq!(g.command(&query).unwrap().pkey.get(), 0x8123);
    // What is no request of an agent has no response, and what is malformed a status.
    let trap = Smp::directed(&[], method::TRAP, attribute::NOTICE, 0);
    assert_eq!(exec(&mut g, &trap.to_mad(), 0), None);
    let mut old = get;
    old.head.class_version = 9;
    let smp = Smp::from_mad(&exec(&mut g, &old.to_mad(), mad_flag::IGNORE_MKEY).unwrap());
    assert_eq!(smp.status(), status::BAD_VERSION);
}

#[test]
fn wrong_commands_are_refused() {
    let world = World::new(Faults::default(), "");
    let (mut g, _smi, _gsi) = host(&world, "a");
    let good = {
        let mut command = ExecMad::zeroed();
        command.port = 1;
        command.request.set(OUT);
        command.response.set(IN);
        command
    };
    type Spoil = fn(&mut ExecMad);
    let spoiled: [(Spoil, Status); 6] = [
        (|c| c.port = 2, Status::BadOperand),
        (|c| c.flags = 4, Status::BadOperand),
        (|c| c.slid.set(0x1_0000), Status::BadOperand),
        (|c| c.request.set(OUT + 4096 - 255), Status::BadOperand),
        (|c| c.response.set(OUT + 4096 - 1), Status::BadOperand),
        (|c| c.request.set(1 << 40), Status::DmaFault),
    ];
    for (n, (spoil, want)) in spoiled.into_iter().enumerate() {
        let mut command = good;
        spoil(&mut command);
        assert_eq!(g.command(&command).err(), Some(want), "case {n}");
    }
    assert_eq!(
        g.entry(&dirty(&good).unwrap()).err(),
        Some(Status::BadOperand)
    );
}

#[test]
fn a_wrong_pkey_is_counted_and_dropped() {
    let world = World::new(Faults::default(), "");
    let (mut a, _smi, mut gsi) = host(&world, "a");
    let (mut b, _b_smi, _b_gsi) = host(&world, "b");
    let mut set = Smp::directed(&[], method::SET, attribute::PKEY_TABLE, 0);
    let mut pkeys = PkeyBlock::new_zeroed();
    pkeys.pkeys[0].set(0x8777);
    set.set_attribute(&pkeys);
    assert!(exec(&mut b, &set.to_mad(), 0).is_some());
    let mut request = perf(method::GET, attribute::PORT_COUNTERS);
    request.data[1] = 1;
    a.post_recv(&mut gsi, segment(IN, 256 + 40, KEY));
    send(&mut a, &mut gsi, 2, 1, &request.to_mad());
    assert_eq!(a.poll(&mut gsi).status, 0);
    let mut query = QueryPort::zeroed();
    query.port = 1;
    b.wait("a violation", |b| {
        (b.command(&query).unwrap().bad_pkeys.get() == 1).then_some(())
    });
}

/// Two switches with two links between them, of which links 2 and 3 are.
const SWITCHES: &str = r#"
[[switch]]
name = "s1"
ports = 4
[[switch]]
name = "s2"
ports = 4
[[link]]
ends = ["a:1", "s1:1"]
[[link]]
ends = ["b:1", "s2:1"]
[[link]]
ends = ["s1:3", "s2:3"]
[[link]]
ends = ["s1:4", "s2:4"]
"#;

/// LID of the port of HCA `n`.
fn lid(world: &World, n: usize) -> u16 {
    let dump = world.control(r#"{"op": "dump"}"#);
    let lid = dump["dump"][n]["ports"][0]["lid"].as_u64().unwrap();
    lid.try_into().unwrap()
}

fn sweeps(world: &World) -> u64 {
    let view = world.control(r#"{"op": "topology"}"#);
    view["topology"]["managers"][0]["sweeps"].as_u64().unwrap()
}

/// Writes from `a` to `b` and checks that it arrived.
fn write(a: &mut (Guest, Queue), b: &Guest, tag: u8) {
    let (g, q) = a;
    let data = vec![tag; 20_000];
    g.put(DATA, &data);
    let (far, local) = (remote(DATA, 0x201), segment(DATA, 20_000, 0x201));
    g.post_send(
        q,
        SendOpcode::RdmaWrite,
        &[far.as_bytes(), local.as_bytes()],
    );
    assert_eq!(g.poll(q).status, 0);
    assert!(b.get(DATA, data.len()) == data, "write {tag}");
}

const DATA: u64 = 0x90_0000;

#[test]
fn data_goes_by_the_other_link_when_one_between_the_switches_is_cut() {
    let world = World::with_topology(SWITCHES, Faults::default(), "");
    let lids = [lid(&world, 0), lid(&world, 1)];
    let [mut a, b] = ["a", "b"].map(|name| {
        let (mut g, _smi, _gsi) = host(&world, name);
        // Seven times 4 ms may be over before the subnet manager has found another way; seven times a second are not.
        g.ack_timeout = 18;
        let rights = access::LOCAL_WRITE | access::REMOTE_WRITE;
        g.register_memory(0x201, 1, DATA, 0x1_0000, rights);
        let q = g.queue(7, 1);
        (g, q)
    });
    a.0.connect(7, lids[1].into(), 7);
    let mut b = b;
    b.0.connect(7, lids[0].into(), 7);
    write(&mut a, &b.0, 1);
    for (link, tag) in [(2, 2), (3, 4)] {
        for (up, tag) in [(false, tag), (true, tag + 1)] {
            let before = sweeps(&world);
            let line = format!(r#"{{"op": "link", "link": {link}, "up": {up}}}"#);
            assert_eq!(world.control(&line), "done");
            write(&mut a, &b.0, tag);
            a.0.wait("a sweep", |_| (sweeps(&world) > before).then_some(()));
        }
    }
    // A switch that dies takes everything with it and comes back by itself.
    for alive in [false, true] {
        let line = format!(r#"{{"op": "switch", "switch": "s2", "alive": {alive}}}"#);
        assert_eq!(world.control(&line), "done");
    }
    write(&mut a, &b.0, 9);
    assert_eq!([lid(&world, 0), lid(&world, 1)], lids);
}

/// Runs tshark on a capture; one line for each packet that the filter passes.
fn dissect(path: &std::path::Path, filter: &str) -> Vec<String> {
    let output = std::process::Command::new("tshark")
        .arg("-r")
        .arg(path)
        .args(["-Y", filter])
        .output()
        .expect("tshark runs (it is in the development root: use make test)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn captures_of_all_ports_are_dissected_without_a_malformed_mark() {
    let mut world = World::with_topology(SWITCHES, Faults::default(), "");
    let (own, peer) = (lid(&world, 0), lid(&world, 1));
    let (mut g, mut smi, mut gsi) = host(&world, "a");
    let request = neighbour(method::GET, attribute::NODE_INFO, 0);
    ask(&mut g, &mut smi, PERMISSIVE_LID, 0, &request.to_mad());
    let mut request = perf(method::GET, attribute::PORT_COUNTERS);
    request.data[1] = 1;
    let (cqe, _) = ask(&mut g, &mut gsi, peer, 1, &request.to_mad());
    assert_eq!(cqe.slid.get(), u32::from(peer));
    let mut multicast = g.queue_of(QpType::Ud, 9, 1);
    g.open(9, 7);
    send(&mut g, &mut multicast, 0xc000, 0xff_ffff, &[0; 256]);
    assert_eq!(g.poll(&mut multicast).status, 0);
    assert_ne!(own, peer);
    world.stop();
    let dir = world.dir.path().join("pcap");
    for name in ["a-1", "b-1", "s1-1", "s2-1", "s1-3", "s2-3", "s1-4", "s2-4"] {
        let path = dir.join(format!("{name}.pcap"));
        assert_eq!(
            dissect(&path, "_ws.malformed"),
            Vec::<String>::new(),
            "{name}"
        );
        let smps = dissect(&path, "infiniband.mad.mgmtclass == 0x81");
        assert!(!smps.is_empty(), "{name}: no subnet management");
    }
    for name in ["a-1", "s1-1", "s2-1", "b-1"] {
        let path = dir.join(format!("{name}.pcap"));
        let perf = dissect(&path, "infiniband.mad.mgmtclass == 0x04");
        assert_eq!(perf.len(), 2, "{name}: a question and an answer");
    }
    let sent = dissect(&dir.join("a-1.pcap"), "infiniband.lrh.dlid == 0xc000");
    assert_eq!(sent.len(), 1);
}
