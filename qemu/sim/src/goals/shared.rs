// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rows 5 to 9: collectives, victims, slow receivers, convergence.

use qiao_cc::PauseWatch;

use super::{Lines, Options};
use crate::cluster::MS;
use crate::collective::ring;
use crate::micro::Case;
use crate::queue::{Time, NEVER};
use crate::scheme::Scheme;
use crate::topo::Topology;
use crate::workload::Message;
use crate::world::{Config, Slow, World};

/// Row 5.
pub fn all_to_all(lines: &mut Lines, options: &Options) {
    for (hosts, gbps) in [(16, 100), (16, 400), (128, 100)] {
        let o = Case::AllToAll(hosts).run_at(gbps, options.config(Scheme::Auto), 1);
        let name = format!("{gbps}G all-to-all {hosts} E");
        lines.at_least(5, &format!("{name} % of ideal"), o.goodput, 91.0);
        lines.at_least(5, &format!("{name} Jain"), o.jain, 0.99);
    }
}

/// Row 6: 1 GB by a ring, of which the first steps are run; all steps are alike.
pub fn all_reduce(lines: &mut Lines, options: &Options) {
    let mut sizes = vec![(Topology::fat_tree(1, 4, 16, 100, 400), 4)];
    if options.clusters {
        sizes.push((Topology::fat_tree(8, 8, 16, 100, 400), 16));
    }
    // Real numbers: no rounding of the reference simulator, and no acknowledgement per packet, which
    // alone takes 5 % of a link that is used both ways.
    let config = Config {
        floor_ns: false,
        device_acks: true,
        ..options.config(Scheme::Auto)
    };
    for (topology, steps) in sizes {
        let hosts = topology.hosts;
        let order: Vec<u32> = (0..hosts).collect();
        let chunk = 1_000_000_000 / u64::from(hosts);
        let (messages, collective) = ring(&order, chunk, chunk / 8, steps);
        let traffic = Box::new(messages.into_iter());
        let mut world = World::with_collective(&topology, config, traffic, 1, collective);
        world.run(NEVER - 1);
        let last = world.done.iter().map(|done| done.fct).max();
        let percent = (steps * chunk) as f64 * 80.0 * 100.0 / last.unwrap_or(NEVER) as f64;
        let what = format!("ring of {hosts} E, {steps} steps, % of the link");
        lines.at_least(6, &what, percent, 94.0);
    }
    let pair = two_flows(&Topology::dumbbell(2, 2, 100, 100, 1000), [2, 3], config);
    let [a, b] = pair.shares;
    lines.at_least(6, "collision on one link: smaller share %", a.min(b), 46.0);
    lines.at_most(6, "collision on one link: larger share %", a.max(b), 50.0);
    lines.at_most(6, "RTT to 90 % after a collision ends", pair.leave, 5.0);
}

/// Row 7.
pub fn victim(lines: &mut Lines, options: &Options) {
    for gbps in [100, 400] {
        let o = Case::Victim.run_at(gbps, options.config(Scheme::Auto), 1);
        let name = format!("{gbps}G victim E");
        lines.at_least(7, &format!("{name} % of its link"), o.victim, 94.0);
        let makespan = o.fct_max / 1000.0;
        lines.at_most(7, &format!("{name} incast makespan ms"), makespan, 5.1);
    }
}

/// What came out of a run with a slow receiver X, to which three hosts send, and a victim that
/// shares the trunk with them on its way to Y.
struct SlowRun {
    /// Of the victim in percent of its link.
    victim: f64,
    /// Share of the time for which a port was held that is more than one hop upstream of X.
    upstream: f64,
    /// Milliseconds from the stop to the event of the pause watch, if there is one.
    noticed: f64,
    /// Payload that X took in the millisecond that began 1 ms after the stop, in percent of what
    /// it took in one before it.
    recovered: f64,
}

const STOP: Time = 2 * MS;

fn slow_run(config: Config) -> SlowRun {
    let topology = Topology::dumbbell(4, 2, 100, 400, 1000);
    let message = |src, dst, bytes, tag| Message {
        start: 0,
        src,
        dst,
        bytes,
        tag,
    };
    let messages: Vec<_> = (0..3)
        .map(|src| message(src, 4, 80_000_000, 0))
        .chain([message(3, 5, 160_000_000, 1)])
        .collect();
    let mut world = World::new(&topology, config, Box::new(messages.into_iter()), 1);
    let to_x = world.ports[world.hosts[4].port as usize].peer;
    let mut watch = PauseWatch::default();
    let (mut held, mut noticed) = (0, f64::INFINITY);
    let mut taken = Vec::new();
    let mut upstream = 0.0;
    for ms in 1..=16 {
        world.run(ms * MS);
        let now = world.held(to_x);
        if watch.sample(((now - held) / 1000) as u32) {
            noticed = (ms * MS - STOP) as f64 / MS as f64;
        }
        held = now;
        taken.push((0..3).map(|flow| world.received(flow)).sum::<u64>());
        if ms == 12 {
            let others = (0..world.ports.len() as u32).filter(|&port| port != to_x);
            let longest = others.map(|port| world.held(port)).max().unwrap_or(0);
            upstream = 100.0 * longest as f64 / (ms * MS) as f64;
        }
    }
    let victim = world.received(3);
    let took = |ms: usize| (taken[ms] - taken[ms - 1]) as f64;
    SlowRun {
        victim: victim as f64 * 80.0 * 100.0 / (16 * MS).min(done_at(&world, 1)) as f64,
        upstream,
        noticed,
        recovered: 100.0 * took(13) / took(1),
    }
}

/// When the message with `tag` was complete.
fn done_at(world: &World, tag: u8) -> Time {
    let done = world.done.iter().find(|done| done.message.tag == tag);
    done.map_or(NEVER, |done| done.message.start + done.fct)
}

/// Row 8: X takes half of what its link brings, then nothing for 10 ms.
pub fn slow_receiver(lines: &mut Lines, options: &Options) {
    let slow = |percent, stop| Config {
        slow: Some(Slow {
            host: 4,
            percent,
            stop,
        }),
        ..options.config(Scheme::Auto)
    };
    let half = slow_run(slow(50, None));
    lines.at_least(
        8,
        "victim E % of its link, X half as fast",
        half.victim,
        90.0,
    );
    let what = "held beyond one hop from X, % of the time, X half as fast";
    lines.at_most(8, what, half.upstream, 1.0);
    let storm = slow_run(slow(100, Some((STOP, 10 * MS))));
    lines.at_least(
        8,
        "victim E % of its link, X stops for 10 ms",
        storm.victim,
        90.0,
    );
    let what = "held beyond one hop from X, % of the time, X stops";
    lines.at_most(8, what, storm.upstream, 1.0);
    let what = "rate of X 1 ms after it goes on, % of before";
    lines.at_least(8, what, storm.recovered, 90.0);
    lines.at_most(8, "ms to the event of the pause watch", storm.noticed, 10.0);
    // The same flows without congestion control show that the scenario spreads.
    let without = slow_run(Config {
        slow: Some(Slow {
            host: 4,
            percent: 50,
            stop: None,
        }),
        ..options.config(Scheme::Off)
    });
    let what = "victim % of its link, X half as fast, flow control only";
    lines.at_most(8, what, without.victim, 50.0);
}

/// Row 9: one flow alone, a second one joins, and leaves again.
pub fn convergence(lines: &mut Lines, options: &Options) {
    for gbps in [100, 400] {
        for (mode, scheme, leave) in [
            ("E", Scheme::Auto, 30.0),
            ("D", Scheme::AutoDelay, 10.0),
            ("I", Scheme::AutoInt, 3.0),
        ] {
            let topology = Topology::single(3, gbps, 1000);
            let pair = two_flows(&topology, [2, 2], options.config(scheme));
            let what = format!("{gbps}G join {mode} RTT to within 20 % of fair");
            lines.at_most(9, &what, pair.join, 20.0);
            let what = format!("{gbps}G leave {mode} RTT to 90 % of the freed rate");
            lines.at_most(9, &what, pair.leave, leave);
        }
    }
}

/// A flow of host 0, joined after 1 ms for a while by one of host 1.
pub struct Pair {
    /// Round trips until both stay within 20 % of fair for ten round trips.
    pub join: f64,
    /// Round trips until the first one has 90 % of what it had alone for three round trips.
    pub leave: f64,
    /// Payload of both in percent of the link, in the second half of the time that they share.
    pub shares: [f64; 2],
}

/// Runs it to the receivers `to`, which share one link.
pub fn two_flows(topology: &Topology, to: [u32; 2], config: Config) -> Pair {
    let scale = u64::from(topology.links[0].gbps / 100);
    let message = |src: u32, start, bytes| Message {
        start,
        src,
        dst: to[src as usize],
        bytes: bytes * scale,
        tag: src as u8,
    };
    let messages = vec![message(0, 0, 40_000_000), message(1, MS, 6_000_000)];
    let mut world = World::new(topology, config, Box::new(messages.into_iter()), 1);
    let rtt = world.base_rtt(0, to[0]);
    let byte_ps = world.ports[world.hosts[0].port as usize].byte_ps as f64;
    let mut acked: Vec<[u64; 2]> = Vec::new();
    let mut left = None;
    let mut at: Time = 0;
    while at < 3 * MS {
        at += rtt;
        world.run(at);
        let second = if world.flows.len() > 1 {
            world.acked(1)
        } else {
            0
        };
        acked.push([world.acked(0), second]);
        if left.is_none() && !world.done.is_empty() {
            left = Some(acked.len());
        }
    }
    let rate = |i: usize, span: usize, flow: usize| {
        (acked[i + span][flow].saturating_sub(acked[i][flow])) as f64 / span as f64
    };
    let joined = (MS / rtt) as usize;
    let alone = rate(joined - 60, 50, 0);
    let fair = |i: &usize| {
        let (a, b) = (rate(*i, 10, 0), rate(*i, 10, 1));
        (a - b).abs() <= 0.2 * (a + b) && a + b >= 0.8 * alone
    };
    let until = left.unwrap_or(acked.len()) - 11;
    let join = (joined..until)
        .find(fair)
        .map_or(f64::INFINITY, |i| (i - joined) as f64);
    let left = left.unwrap_or(acked.len() - 4);
    let half = (left - joined) / 2;
    let shares =
        [0, 1].map(|flow| 100.0 * rate(joined + half, half - 2, flow) * byte_ps / rtt as f64);
    let full = |i: &usize| rate(*i, 3, 0) >= 0.9 * alone;
    let leave = (left..acked.len() - 4)
        .find(full)
        .map_or(f64::INFINITY, |i| (i - left) as f64);
    Pair {
        join,
        leave,
        shares,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_flows_share_and_recover() {
        let topology = Topology::single(3, 100, 1000);
        let pair = two_flows(&topology, [2, 2], Scheme::Auto.reference());
        assert!(pair.join <= 20.0, "{}", pair.join);
        assert!(pair.leave <= 30.0, "{}", pair.leave);
    }

    #[test]
    fn a_receiver_that_stops_is_noticed_and_harms_nobody_else() {
        let slow = Slow {
            host: 4,
            percent: 100,
            stop: Some((STOP, 10 * MS)),
        };
        let run = slow_run(Config {
            slow: Some(slow),
            ..Scheme::Auto.reference()
        });
        assert!(run.noticed <= 10.0 && run.victim >= 90.0);
    }
}
