// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::link::Faults;
use crate::mad::{McMemberRecord, PathRecord, SaMad, BASE_VERSION, GSI_QKEY};
use crate::net::Attach;
use crate::shape::Shape;
use crate::testing::{fat_tree, host, host_guid, port, World};
use std::collections::BTreeSet;

/// Sends a request to administration and returns its answer.
fn ask(world: &mut World, n: usize, sa: &SaMad) -> SaMad {
    world.settle();
    let own = world.nodes[n].port(1).unwrap().info;
    let to = Address {
        slid: own.lid.get(),
        dlid: own.sm_lid.get(),
        source_qp: 1,
        dest_qp: 1,
        qkey: GSI_QKEY,
        ..Address::DIRECTED
    };
    world.send(n, &to, &sa.to_mad());
    world.settle();
    SaMad::from_mad(&world.to_host[n].pop().expect("an answer"))
}

fn request<T: zerocopy::IntoBytes + zerocopy::Immutable>(
    method: u8,
    attribute: u16,
    mask: u64,
    record: &T,
) -> SaMad {
    let mut sa = SaMad::new_zeroed();
    sa.head.base_version = BASE_VERSION;
    sa.head.class = class::SUBN_ADM;
    sa.head.class_version = SaMad::CLASS_VERSION;
    sa.head.method = method;
    sa.head.attribute.set(attribute);
    sa.mask.set(mask);
    let bytes = record.as_bytes();
    sa.data[..bytes.len()].copy_from_slice(bytes);
    sa
}

fn broadcast() -> [u8; 16] {
    let mut mgid = [0xff; 16];
    mgid[..12].copy_from_slice(&[0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0]);
    mgid
}

/// Has an HCA join the broadcast group of IPoIB.
pub(crate) fn join(world: &mut World, n: usize) {
    let mut record = McMemberRecord::new_zeroed();
    record.mgid = broadcast();
    record.port_gid = world.nodes[n].port(1).unwrap().gid(0);
    record.scope_state = 1;
    let mask = (1 << 0) | (1 << 1) | (1 << 16);
    let sa = request(method::SET, attribute::MC_MEMBER_RECORD, mask, &record);
    let answer = ask(world, n, &sa);
    assert_eq!(answer.head.status.get(), 0);
    let joined: &McMemberRecord = answer.attribute();
    assert_eq!((joined.mlid.get(), joined.qkey.get()), (0xc000, 0x0b1b));
}

fn assert_all_active(world: &World) {
    for n in 0..world.nodes.len() {
        assert_eq!(world.state(n), LinkState::Active, "HCA {n}");
        assert_ne!(world.lid(n), 0);
    }
}

/// Sends a packet between all HCAs, of which `expected` arrive at each.
fn exchange(world: &mut World) {
    world.inbox.iter_mut().for_each(Vec::clear);
    let count = world.nodes.len();
    for from in 0..count {
        for to in (0..count).filter(|&to| to != from) {
            let lid = world.lid(to);
            assert!(world.send_data(from, lid, 0, from as u32, 100));
        }
    }
    world.settle();
    for (n, inbox) in world.inbox.iter().enumerate() {
        assert_eq!(inbox.len(), count - 1, "HCA {n}");
    }
}

#[test]
fn a_cable_between_two_hcas_comes_up() {
    let world = World::new(2, &[], &[[host(0), host(1)]], Faults::default());
    assert_all_active(&world);
    assert_eq!((world.lid(0), world.lid(1)), (1, 2));
    let own = world.nodes[1].port(1).unwrap().info;
    assert_eq!((own.sm_lid.get(), own.operational_vls()), (1, 8));
}

#[test]
fn a_fat_tree_comes_up_and_carries_data() {
    let (hosts, switches, links) = fat_tree(4, 2);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    assert_all_active(&world);
    let lids: BTreeSet<u16> = (0..hosts).map(|n| world.lid(n)).collect();
    assert_eq!(lids.len(), hosts);
    assert_eq!(world.manager().subnet().nodes.len(), 14);
    exchange(&mut world);
}

/// The channels through which a packet goes by the tables of the switches, each as the node that sends and its port.
fn way(world: &World, links: &[[Attach; 2]], from: usize, to: usize) -> Vec<Attach> {
    let mut way = vec![host(from)];
    loop {
        assert!(way.len() <= 2 * links.len(), "a loop from {from} to {to}");
        let out = way[way.len() - 1];
        let link = links.iter().find(|ends| ends.contains(&out));
        let [a, b] = *link.expect("the table names a port that has a link");
        match if out == a { b } else { a } {
            Attach::Host(n) => {
                assert_eq!(n, to);
                return way;
            }
            Attach::Switch { switch, .. } => {
                let node = world.net.switches()[switch].node();
                let out = node.switch.as_ref().unwrap().port(world.lid(to));
                way.push(port(switch, out.expect("an entry of the table")));
            }
        }
    }
}

#[test]
fn a_fat_tree_of_three_levels_is_routed_between_all_without_a_cycle_of_channels() {
    let Shape {
        hosts,
        switches,
        links,
    } = Shape::fat_tree(4).unwrap();
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    assert_eq!((hosts, world.manager().subnet().nodes.len()), (16, 36));
    assert_all_active(&world);
    for switch in world.net.switches() {
        for (number, own) in switch.node().ports().filter(|(number, _)| *number > 0) {
            assert_eq!(
                own.state(),
                LinkState::Active,
                "{} port {number}",
                switch.name
            );
        }
    }
    // A channel waits for those that come behind it on any way (Dally and Seitz 1987).
    let mut waits: BTreeMap<Attach, BTreeSet<Attach>> = BTreeMap::new();
    for from in 0..hosts {
        for to in (0..hosts).filter(|&to| to != from) {
            let way = way(&world, &links, from, to);
            // Within a leaf, a pod, or the tree.
            let hops = match (from / 2 == to / 2, from / 4 == to / 4) {
                (true, _) => 2,
                (false, true) => 4,
                (false, false) => 6,
            };
            assert_eq!(way.len(), hops, "the shortest way from {from} to {to}");
            for pair in way.windows(2) {
                waits.entry(pair[0]).or_default().insert(pair[1]);
            }
        }
    }
    while !waits.is_empty() {
        let before = waits.len();
        let waiting: BTreeSet<Attach> = waits.keys().copied().collect();
        waits.retain(|_, on| !on.is_disjoint(&waiting));
        assert!(waits.len() < before, "a cycle: {waits:?}");
    }
    exchange(&mut world);
}

#[test]
fn a_lossy_fabric_comes_up_too() {
    let (hosts, switches, links) = fat_tree(2, 2);
    let faults = Faults {
        drop: 0.05,
        corrupt: 0.02,
        duplicate: 0.05,
        ..Faults::default()
    };
    let world = World::new(hosts, &switches, &links, faults);
    assert_all_active(&world);
}

#[test]
fn a_cut_link_is_routed_around_and_comes_back() {
    let (hosts, switches, links) = fat_tree(2, 2);
    let between = |link: &[Attach; 2]| link.iter().all(|end| matches!(end, Attach::Switch { .. }));
    let cut: Vec<usize> = (0..links.len()).filter(|&n| between(&links[n])).collect();
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    let lids: Vec<u16> = (0..hosts).map(|n| world.lid(n)).collect();
    let mut sweeps = world.manager().sweeps();
    for &link in &cut {
        for plugged in [false, true] {
            world.net.set_plugged(link, plugged, world.now);
            world.settle();
            assert!(world.manager().sweeps() > sweeps, "a trap starts a sweep");
            sweeps = world.manager().sweeps();
            assert_all_active(&world);
            exchange(&mut world);
        }
    }
    // Nobody has got another LID.
    assert_eq!(lids, (0..hosts).map(|n| world.lid(n)).collect::<Vec<_>>());
}

#[test]
fn a_dead_switch_is_routed_around_and_is_set_up_again_when_it_is_back() {
    let (hosts, switches, links) = fat_tree(3, 2);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    // A spine.
    for alive in [false, true] {
        world.net.set_alive(3, alive, world.now);
        world.settle();
        assert_all_active(&world);
        exchange(&mut world);
        let nodes = world.manager().subnet().nodes.len();
        assert_eq!(nodes, 10 + usize::from(alive));
    }
    let top = world.net.switches()[3]
        .node()
        .switch
        .as_ref()
        .unwrap()
        .info
        .linear_top
        .get();
    assert!(top >= 11);
}

#[test]
fn links_that_flap_are_routed_around_and_the_subnet_recovers() {
    let (hosts, switches, links) = fat_tree(2, 2);
    let between = |link: &[Attach; 2]| link.iter().all(|end| matches!(end, Attach::Switch { .. }));
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    let flaps = Faults {
        flap_after_ns: 400_000_000,
        flap_down_ns: 50_000_000,
        ..Faults::default()
    };
    let flapping: Vec<usize> = (0..links.len()).filter(|&n| between(&links[n])).collect();
    for &link in &flapping {
        world.net.set_faults(link, flaps);
    }
    let sweeps = world.manager().sweeps();
    world.settle_for(10_000_000_000);
    let downed = |at: &Attach| match at {
        Attach::Switch { switch, port } => {
            let node = world.net.switches()[*switch].node();
            node.port(*port).unwrap().counters.link_downed
        }
        Attach::Host(_) => unreachable!("links of hosts do not flap"),
    };
    for &link in &flapping {
        let counts = links[link].each_ref().map(downed);
        assert!(
            counts[0] > 3 && counts[0] == counts[1],
            "link {link}: {counts:?}"
        );
    }
    assert!(world.manager().sweeps() > sweeps + 3);
    for &link in &flapping {
        world.net.set_faults(link, Faults::default());
    }
    world.settle_for(30_000_000_000);
    assert_eq!(world.manager().subnet().nodes.len(), 8);
    assert_all_active(&world);
    exchange(&mut world);
}

#[test]
fn an_hca_that_is_plugged_in_later_is_found() {
    let (hosts, switches, links) = fat_tree(2, 1);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    world.net.set_plugged(3, false, world.now);
    world.settle();
    assert_eq!(world.state(3), LinkState::Down);
    assert_eq!(world.manager().subnet().nodes.len(), 6);
    world.net.set_plugged(3, true, world.now);
    world.settle();
    assert_all_active(&world);
}

#[test]
fn a_manager_that_lost_the_trap_finds_out_by_asking() {
    let (hosts, switches, links) = fat_tree(2, 1);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    // The traps are lost, with everything else.
    let lossy = Faults {
        drop: 1.0,
        ..Faults::default()
    };
    world.net.set_faults(0, lossy);
    world.net.set_plugged(3, false, world.now);
    world.settle_for(9_000_000_000);
    world.net.set_faults(0, Faults::default());
    world.settle_for(30_000_000_000);
    assert_eq!(world.manager().subnet().nodes.len(), 6);
}

#[test]
fn lids_and_partitions_are_those_that_were_asked_for() {
    let settings = Settings {
        guid: host_guid(0) + 1,
        port: 1,
        lids: BTreeMap::from([(host_guid(1) + 1, 0x1234)]),
        partitions: vec![Partition {
            pkey: 0x10,
            full: vec![host_guid(0) + 1],
            limited: vec![host_guid(1) + 1],
        }],
    };
    let mut world = World::new(
        2,
        &[2],
        &[[host(0), port(0, 1)], [host(1), port(0, 2)]],
        Faults::default(),
    );
    let mut manager = Manager::new(settings);
    manager.sweep();
    world.manager = Some((0, manager));
    world.settle();
    assert_eq!(world.lid(1), 0x1234);
    assert_eq!(
        world.nodes[0].port(1).unwrap().pkeys[..3],
        [0xffff, 0x8010, 0]
    );
    assert_eq!(
        world.nodes[1].port(1).unwrap().pkeys[..3],
        [0xffff, 0x0010, 0]
    );
    exchange(&mut world);
}

#[test]
fn administration_tells_a_path_and_refuses_what_does_not_exist() {
    let (hosts, switches, links) = fat_tree(2, 1);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    let gid = |world: &World, n: usize| world.nodes[n].port(1).unwrap().gid(0);
    let mut record = PathRecord::new_zeroed();
    (record.sgid, record.dgid) = (gid(&world, 1), gid(&world, 3));
    let mask = (1 << 2) | (1 << 3);
    let sa = request(method::GET, attribute::PATH_RECORD, mask, &record);
    let answer = ask(&mut world, 1, &sa);
    assert_eq!(
        (answer.head.method, answer.head.status.get()),
        (method::GET_RESP, 0)
    );
    let path: &PathRecord = answer.attribute();
    assert_eq!(
        (path.slid.get(), path.dlid.get()),
        (world.lid(1), world.lid(3))
    );
    record.dgid[15] ^= 0x40;
    let sa = request(method::GET, attribute::PATH_RECORD, mask, &record);
    let answer = ask(&mut world, 1, &sa);
    assert_eq!(answer.head.status.get(), 5 << 8);
    // From the manager's own port.
    (record.sgid, record.dgid) = (gid(&world, 0), gid(&world, 2));
    let sa = request(method::GET_TABLE, attribute::PATH_RECORD, mask, &record);
    let answer = ask(&mut world, 0, &sa);
    assert_eq!((answer.head.method, answer.rmpp_flags & 7), (0x92, 7));
    let path: &PathRecord = answer.attribute();
    assert_eq!(path.dlid.get(), world.lid(2));
}

#[test]
fn a_group_is_left_as_it_was_joined() {
    let (hosts, switches, links) = fat_tree(2, 1);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    join(&mut world, 1);
    join(&mut world, 3);
    let ports = |world: &World, n: usize| -> Vec<u8> {
        let switch = world.net.switches()[n].node().switch.as_ref().unwrap();
        switch.ports(0xc000).collect()
    };
    assert_eq!(
        (ports(&world, 0), ports(&world, 1)),
        (vec![2, 3], vec![2, 3])
    );
    let mut record = McMemberRecord::new_zeroed();
    record.mgid = broadcast();
    record.port_gid = world.nodes[3].port(1).unwrap().gid(0);
    record.scope_state = 1;
    let mask = (1 << 0) | (1 << 1) | (1 << 16);
    let sa = request(method::DELETE, attribute::MC_MEMBER_RECORD, mask, &record);
    assert_eq!(ask(&mut world, 3, &sa).head.status.get(), 0);
    assert_eq!(ports(&world, 1), []);
    // Once more: it is no member.
    assert_eq!(ask(&mut world, 3, &sa).head.status.get(), 2 << 8);
}
