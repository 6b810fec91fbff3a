// SPDX-License-Identifier: GPL-2.0 OR MIT

use super::*;
use crate::mad::{Address, PerfMad, PortCounters, GSI_QKEY};
use crate::testing::{fat_tree, host, port, World};
use proptest::prelude::*;
use std::collections::HashMap;

/// A ring of switches with an HCA each.
fn ring(count: usize) -> (usize, Vec<u8>, Vec<[Attach; 2]>) {
    let mut links: Vec<_> = (0..count).map(|n| [host(n), port(n, 1)]).collect();
    links.extend((0..count).map(|n| [port(n, 2), port((n + 1) % count, 3)]));
    (count, vec![3; count], links)
}

fn single(count: usize) -> (usize, Vec<u8>, Vec<[Attach; 2]>) {
    let links = (0..count)
        .map(|n| [host(n), port(0, n as u8 + 1)])
        .collect();
    (count, vec![count as u8], links)
}

/// A message to be sent: from, to, service level, bytes.
type Message = (usize, usize, u8, usize);

/// Sends all messages as fast as the ports take them; checks that each flow arrives whole and in order, that nothing was
/// dropped, and that every buffer is empty and every credit back at the end.
fn overload(topology: (usize, Vec<u8>, Vec<[Attach; 2]>), messages: &[Message], faults: Faults) {
    let (hosts, switches, links) = topology;
    let mut world = World::new(hosts, &switches, &links, faults);
    let mut queues: Vec<VecDeque<(Message, u32)>> = vec![VecDeque::new(); hosts];
    for (tag, &message) in (0..).zip(messages) {
        queues[message.0].push_back((message, tag));
    }
    loop {
        let mut sent = false;
        for (n, queue) in queues.iter_mut().enumerate() {
            while let Some(&((_, to, sl, length), tag)) = queue.front() {
                let lid = world.lid(to);
                if !world.send_data(n, lid, sl, tag, length) {
                    break;
                }
                queue.pop_front();
                sent = true;
            }
        }
        let stepped = world.step();
        if !sent && !stepped {
            let Some(due) = world.net.next_due() else {
                break;
            };
            world.now = world.now.max(due);
        }
        if queues.iter().all(VecDeque::is_empty) && !stepped {
            break;
        }
    }
    world.settle();
    let mut last: HashMap<(u16, usize, u8), u32> = HashMap::new();
    let mut count = 0;
    for (n, inbox) in world.inbox.iter().enumerate() {
        for bytes in inbox {
            let packet = bytes.parse().unwrap();
            let flow = (packet.lrh.slid.get(), n, packet.lrh.sl());
            let tag = packet.bth.psn();
            let before = last.insert(flow, tag);
            assert!(
                before.is_none_or(|before| before < tag),
                "{flow:?} out of order"
            );
            count += 1;
        }
    }
    assert_eq!(count, messages.len(), "all packets arrive");
    for at in all_ports(&world.net) {
        let counters = world.net.counters(at);
        let lost = counters.xmit_discards + counters.rcv_errors + counters.rcv_switch_relay_errors;
        assert_eq!(lost, 0, "{at:?}");
        let link_port = world.net.port(at).unwrap();
        assert!(link_port.is_quiet(), "{at:?} keeps credits");
    }
}

fn all_ports(net: &Net) -> Vec<Attach> {
    let links = (0..net.links()).flat_map(|n| net.link(n).0);
    links.collect()
}

#[test]
fn many_to_one_loses_nothing() {
    let messages: Vec<Message> = (0..4000)
        .map(|n| (1 + n % 7, 0, (n % 3) as u8, 4096))
        .collect();
    overload(single(8), &messages, Faults::default());
}

#[test]
fn all_to_all_through_a_fat_tree_loses_nothing() {
    let messages: Vec<Message> = (0..6000)
        .map(|n| (n % 8, (n * 5 + n / 8) % 8, (n % 15) as u8, 64 * (n % 64)))
        .filter(|m| m.0 != m.1)
        .collect();
    overload(fat_tree(4, 2), &messages, Faults::default());
}

#[test]
fn a_ring_under_load_does_not_deadlock() {
    let messages: Vec<Message> = (0..6000)
        .map(|n| (n % 6, (n % 6 + 3) % 6, 0, 4096))
        .collect();
    overload(ring(6), &messages, Faults::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn no_loss_no_reorder_and_no_leak(
        shape in 0usize..3,
        messages in prop::collection::vec((0usize..8, 0usize..8, 0u8..15, 0usize..4097), 1..600),
        delay_ns in prop_oneof![Just(0u64), 1u64..100_000],
    ) {
        let topology = match shape {
            0 => single(8),
            1 => fat_tree(4, 3),
            _ => ring(8),
        };
        let messages: Vec<Message> = messages.into_iter().filter(|m| m.0 != m.1).collect();
        overload(topology, &messages, Faults { delay_ns, ..Faults::default() });
    }
}

#[test]
fn lost_packets_cost_no_credits_for_long() {
    let faults = Faults {
        drop: 0.2,
        ..Faults::default()
    };
    let (hosts, switches, links) = single(2);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    for link in 0..world.net.links() {
        world.net.set_faults(link, faults);
    }
    let lid = world.lid(1);
    let mut sent = 0;
    while sent < 3000 {
        while sent < 3000 && world.send_data(0, lid, 0, sent, 4096) {
            sent += 1;
        }
        while world.step() {}
        world.now = world.now.max(world.net.next_due().unwrap_or(world.now));
    }
    world.settle();
    let arrived = world.inbox[1].len();
    assert!((1000..2800).contains(&arrived), "{arrived} of 3000 arrive");
    for at in all_ports(&world.net) {
        assert!(world.net.port(at).unwrap().is_quiet(), "{at:?}");
    }
}

#[test]
fn multicast_reaches_each_member_once_and_not_the_sender() {
    let (hosts, switches, links) = fat_tree(3, 2);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    for n in [0, 2, 3, 5] {
        crate::sm::tests::join(&mut world, n);
    }
    world.settle();
    assert!(world.send_data(0, 0xc000, 0, 7, 300));
    world.settle();
    let got: Vec<usize> = world.inbox.iter().map(Vec::len).collect();
    assert_eq!(got, [0, 0, 1, 1, 0, 1]);
    for at in all_ports(&world.net) {
        assert!(world.net.port(at).unwrap().is_quiet(), "{at:?}");
    }
}

#[test]
fn what_is_addressed_to_nobody_is_counted_and_dropped() {
    let (hosts, switches, links) = single(2);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    assert!(world.send_data(0, 0x777, 0, 0, 64));
    // Back to where it came from.
    let own = world.lid(0);
    assert!(world.send_data(0, own, 0, 0, 64));
    world.settle();
    let counters = world.net.counters(port(0, 1));
    assert_eq!(counters.rcv_switch_relay_errors, 2);
    assert!(world.net.port(port(0, 1)).unwrap().is_quiet());
}

#[test]
fn data_does_not_pass_before_the_ports_are_active() {
    let (hosts, switches, links) = single(2);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    let lid = world.lid(1);
    world.manager = None;
    world.net.set_plugged(0, false, world.now);
    world.settle();
    world.net.set_plugged(0, true, world.now);
    world.settle();
    assert_eq!(world.state(0), crate::mad::LinkState::Initialize);
    assert!(world.send_data(0, lid, 0, 0, 64));
    world.settle();
    assert_eq!(world.inbox[1].len(), 0);
    assert_eq!(world.net.counters(host(0)).xmit_discards, 1);
}

#[test]
fn a_switch_reports_its_counters() {
    let (hosts, switches, links) = single(3);
    let mut world = World::new(hosts, &switches, &links, Faults::default());
    let lid = world.lid(1);
    for n in 0..5 {
        assert!(world.send_data(0, lid, 0, n, 256));
    }
    world.settle();
    let mut request = PerfMad::get(crate::mad::attribute::PORT_COUNTERS);
    // Port 2.
    request.data[1] = 2;
    let before = world.net.counters(port(0, 2)).xmit_pkts;
    let to = Address {
        slid: world.lid(0),
        dlid: world.net.switches()[0]
            .node()
            .port(0)
            .unwrap()
            .info
            .lid
            .get(),
        source_qp: 1,
        dest_qp: 1,
        qkey: GSI_QKEY,
        ..Address::DIRECTED
    };
    world.send(0, &to, &request.to_mad());
    world.settle();
    let mad = world.to_host[0].pop().expect("an answer");
    let counters = *PerfMad::from_mad(&mad).attribute::<PortCounters>();
    assert_eq!(u64::from(counters.xmit_pkts.get()), before);
    assert!(before >= 5);
}

#[test]
fn a_packet_that_waits_too_long_is_dropped_where_that_is_set() {
    let mut link_port = LinkPort::new();
    let mut node = node::Node::adapter(1, 1, crate::testing::MAKER, "");
    let own = node.port_mut(1).unwrap();
    own.info.set_state(crate::mad::LinkState::Active);
    // 4.096 us * 2^2.
    own.info.stall_hoq = 2;
    link_port.configure(own);
    let queued = |arrived| Queued {
        packet: Frame::default(),
        hold: None,
        arrived,
    };
    link_port.enqueue_data(0, queued(0), 0);
    link_port.enqueue_data(0, queued(0), 10_000);
    assert!(link_port.expired(16_384, None).is_none());
    assert_eq!(link_port.deadline(None), Some(16_385));
    assert!(link_port.expired(16_385, None).is_some());
    // The second is first only since now; as a whole it may live 20 us.
    assert!(link_port.expired(16_385, None).is_none());
    assert!(link_port.expired(20_001, Some(20_000)).is_some());
    assert_eq!(link_port.counters.xmit_discards, 2);
}

#[test]
fn a_vl_whose_packets_are_too_old_again_and_again_stalls() {
    const LIFE: u64 = 4096 << 2;
    let mut link_port = LinkPort::new();
    let mut node = node::Node::adapter(1, 1, crate::testing::MAKER, "");
    let own = node.port_mut(1).unwrap();
    own.info.set_state(crate::mad::LinkState::Active);
    // VLStallCount 3, HOQLife 2.
    own.info.stall_hoq = (3 << 5) | 2;
    link_port.configure(own);
    let queued = |arrived| Queued {
        packet: Frame::default(),
        hold: None,
        arrived,
    };
    let mut now = 0;
    for _ in 0..3 {
        link_port.enqueue_data(0, queued(now), now);
        assert!(link_port.expired(now, None).is_none());
        now += LIFE + 1;
        assert!(link_port.expired(now, None).is_some());
    }
    // What comes now is dropped at once, on this VL alone.
    let end = now + 8 * LIFE;
    link_port.enqueue_data(0, queued(end - 1), end - 1);
    assert!(link_port.expired(end - 1, None).is_some());
    link_port.enqueue_data(0, queued(end), end);
    assert!(link_port.expired(end, None).is_none());
    assert_eq!(link_port.counters.xmit_discards, 4);
}
