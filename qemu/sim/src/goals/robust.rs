// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rows 15 and 16: drivers that are late, stall, miss events or die, and other algorithms.

use super::{Lines, Options};
use crate::cluster::MS;
use crate::micro::Case;
use crate::queue::Time;
use crate::scheme::Scheme;
use crate::topo::Topology;
use crate::workload::Message;
use crate::world::{Config, World, RIVAL};

const US: Time = 1_000_000;
/// Latency of a driver that is woken by an interrupt.
const HOST: Time = 6 * US;

/// Row 15.
pub fn driver(lines: &mut Lines, options: &Options) {
    let base = Config {
        host: HOST,
        ..options.config(Scheme::Auto)
    };
    let run = |config| Case::Incast(8).run(config, 1);
    let prompt = run(base);
    let what = "8:1 E goodput % with 6 us of host latency";
    lines.at_least(15, what, prompt.goodput, 94.0);
    for loss in [0.01, 0.1] {
        let o = run(Config {
            event_loss: loss,
            ..base
        });
        let what = format!("8:1 E points lost at {:.0} % event loss", 100.0 * loss);
        lines.at_most(15, &what, prompt.goodput - o.goodput, 3.0);
    }
    for stall in [20, 100, 1000] {
        let o = run(Config {
            stall: Some((US * 300, stall * US)),
            ..base
        });
        let what = format!("8:1 E points lost by a stall of {stall} us");
        lines.at_most(15, &what, prompt.goodput - o.goodput, 3.0);
        let what = format!("8:1 E pauses at a stall of {stall} us");
        lines.at_most(15, &what, o.pauses as f64, 0.0);
    }
    let death = driver_death(options.config(Scheme::Auto));
    lines.at_most(
        15,
        "us from the first event without an answer to fallback",
        death.us,
        1000.0,
    );
    lines.at_least(
        15,
        "goodput % after the death of drivers",
        death.goodput,
        80.0,
    );
    lines.at_most(15, "pauses after the death of drivers", death.pauses, 0.0);
}

struct Death {
    us: f64,
    goodput: f64,
    pauses: f64,
}

/// The drivers of all hosts die while eight flows share a link. Half of the flows end soon, so
/// that the windows left behind are too small, and eight new ones come.
fn driver_death(base: Config) -> Death {
    const DEATH: Time = 300 * US;
    let topology = Topology::single(9, 100, 1000);
    let message = |src, start, bytes| Message {
        start,
        src,
        dst: 8,
        bytes,
        tag: 0,
    };
    let messages: Vec<_> = (0..8)
        .map(|src| message(src, 0, if src < 4 { 600_000 } else { 8_000_000 }))
        .chain((0..8).map(|src| message(src, 2 * MS, 2_000_000)))
        .collect();
    let total: u64 = messages.iter().map(|message| message.bytes).sum();
    let config = Config {
        host: HOST,
        death: Some(DEATH),
        ..base
    };
    let mut world = World::new(&topology, config, Box::new(messages.into_iter()), 1);
    world.run(100 * MS);
    let last = |done: &crate::world::Done| done.message.start + done.fct;
    let end = world.done.iter().map(last).max().unwrap_or(0);
    let complete = world.done.len() == 16;
    Death {
        us: if world.counters.fallbacks == 8 {
            world.counters.slowest_fallback as f64 / US as f64
        } else {
            f64::INFINITY
        },
        goodput: if complete {
            100.0 * total as f64 * 80.0 / end as f64
        } else {
            0.0
        },
        pauses: world.counters.pauses as f64,
    }
}

/// Row 16: as many flows of an adapter's DCQCN as of the default at one link.
pub fn coexistence(lines: &mut Lines, options: &Options) {
    for pairs in [1, 4] {
        let share = share_of_link(options.config(Scheme::Auto), pairs);
        let name = format!("{pairs} and {pairs} of DCQCN: share of the default %");
        lines.at_least(16, &name, share, 35.0);
        lines.at_most(16, &name, share, 65.0);
    }
}

/// Part of what is taken in that is the default's, in percent, from 2 to 10 ms.
fn share_of_link(base: Config, pairs: u32) -> f64 {
    let topology = Topology::single(2 * pairs + 1, 100, 1000);
    let messages = (0..2 * pairs).map(move |src| Message {
        start: 0,
        src,
        dst: 2 * pairs,
        bytes: 200_000_000,
        tag: if src < pairs { 0 } else { RIVAL },
    });
    let config = Config {
        rival: Some(Scheme::Dcqcn.reference().tuning),
        ..base
    };
    let mut world = World::new(&topology, config, Box::new(messages), 1);
    let taken = |world: &World| (0..2 * pairs).map(|flow| world.received(flow)).collect();
    world.run(2 * MS);
    let before: Vec<u64> = taken(&world);
    world.run(10 * MS);
    let after: Vec<u64> = taken(&world);
    let grown = |flow: usize| (after[flow] - before[flow]) as f64;
    let own: f64 = (0..pairs as usize).map(grown).sum();
    let all: f64 = (0..2 * pairs as usize).map(grown).sum();
    100.0 * own / all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_go_on_without_their_drivers() {
        let death = driver_death(Scheme::Auto.reference());
        assert!(death.us <= 1000.0 && death.goodput >= 80.0);
    }
}
