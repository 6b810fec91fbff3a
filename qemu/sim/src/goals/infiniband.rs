// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Row 14: native InfiniBand.

use super::{Lines, Options};
use crate::micro::Case;
use crate::queue::Time;
use crate::scheme::Scheme;
use crate::topo::{Link, Topology};
use crate::workload::Message;
use crate::world::{Config, World};

/// Incasts, a victim, and a parking lot.
pub fn rows(lines: &mut Lines, options: &Options) {
    for fan_in in [2, 8, 64, 256] {
        let o = Case::Incast(fan_in).run(options.config(Scheme::IbAuto), 1);
        lines.at_least(14, &format!("{fan_in}:1 IB goodput %"), o.goodput, 94.0);
        lines.at_least(14, &format!("{fan_in}:1 IB Jain"), o.jain, 0.95);
        let a10 = Case::Incast(fan_in).run(options.config(Scheme::IbCca), 1);
        let what = format!("{fan_in}:1 IB: packets dropped with either");
        lines.at_most(14, &what, (o.drops + a10.drops) as f64, 0.0);
    }
    for scheme in [Scheme::IbAuto, Scheme::IbCca] {
        let name = scheme.name();
        let o = Case::Victim.run(options.config(scheme), 1);
        lines.at_least(14, &format!("{name}: victim % of its link"), o.victim, 90.0);
        lines.at_least(14, &format!("{name}: contributors, Jain"), o.jain, 0.95);
        let what = format!("{name}: victim's port, PortXmitWait % of its time");
        lines.at_most(14, &what, victim_wait(options.config(scheme)), 5.0);
        let what = format!("{name}: parking lot, largest over smallest share");
        lines.at_most(14, &what, parking_lot(options.config(scheme)), 1.2);
    }
}

/// Time for which the port of the victim waited for credits until the victim is complete, in
/// percent.
fn victim_wait(config: Config) -> f64 {
    let (topology, messages, _) = Case::Victim.build(100);
    let mut world = World::new(&topology, config, Box::new(messages.into_iter()), 1);
    let mut at: Time = 0;
    while at < 200_000_000_000 && !world.done.iter().any(|done| done.message.tag == 1) {
        at += 10_000_000;
        world.run(at);
    }
    100.0 * world.held(world.hosts[3].port) as f64 / at as f64
}

/// Four switches in a row with a sender each, all to one receiver behind the last.
fn parking_lot(config: Config) -> f64 {
    const SWITCHES: u32 = 4;
    let hosts = SWITCHES + 1;
    let link = |a, b| Link {
        a,
        b,
        gbps: 100,
        delay_ns: 1000,
    };
    let links = (0..SWITCHES)
        .map(|i| link(i, hosts + i))
        .chain((1..SWITCHES).map(|i| link(hosts + i - 1, hosts + i)))
        .chain([link(SWITCHES, hosts + SWITCHES - 1)])
        .collect();
    let topology = Topology {
        hosts,
        switches: SWITCHES,
        links,
    };
    let messages = (0..SWITCHES).map(|src| Message {
        start: 0,
        src,
        dst: SWITCHES,
        bytes: 100_000_000,
        tag: 0,
    });
    let mut world = World::new(&topology, config, Box::new(messages), 1);
    // The first millisecond is the start, and is not looked at.
    world.run(1_000_000_000);
    let before: Vec<u64> = (0..SWITCHES).map(|flow| world.received(flow)).collect();
    world.run(5_000_000_000);
    let grown = |flow: u32| world.received(flow) - before[flow as usize];
    let all: Vec<u64> = (0..SWITCHES).map(grown).collect();
    let (least, most) = (all.iter().min(), all.iter().max());
    most.copied().unwrap_or(0) as f64 / least.copied().unwrap_or(0) as f64
}
