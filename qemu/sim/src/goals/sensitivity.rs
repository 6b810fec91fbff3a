// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Row 17: one default everywhere, against DCQCN tuned for each place and for each number.

use super::{Lines, Options};
use crate::cluster::{small_slowdowns, MS};
use crate::micro::Case;
use crate::scheme::Scheme;
use crate::stats::{quantile, Slowdowns};
use crate::topo::Topology;
use crate::workload::{self, Poisson, FB_HADOOP};
use crate::world::{Config, Red, World};

/// A place: what an operator finds.
#[derive(Clone, Copy)]
struct Cell {
    name: &'static str,
    gbps: u32,
    delay_ns: u32,
    mtu: u32,
    buffer: u64,
    /// Thresholds of the switches over the usual ones.
    red: f64,
}

/// Each axis on its own around the usual place, and its corners. The base round trip is four times
/// the delay of a link.
fn cells() -> Vec<Cell> {
    const USUAL: Cell = Cell {
        name: "100G, 4 us, 1 KB, 32 MB",
        gbps: 100,
        delay_ns: 1000,
        mtu: 1000,
        buffer: 32 << 20,
        red: 1.0,
    };
    let rate = |name, gbps| Cell {
        name,
        gbps,
        ..USUAL
    };
    let delay = |name, delay_ns| Cell {
        name,
        delay_ns,
        ..USUAL
    };
    let mtu = |name, mtu| Cell { name, mtu, ..USUAL };
    let buffer = |name, mb: u64| Cell {
        name,
        buffer: mb << 20,
        ..USUAL
    };
    let red = |name, red| Cell { name, red, ..USUAL };
    vec![
        USUAL,
        rate("25G", 25),
        rate("400G", 400),
        rate("800G", 800),
        delay("20 us", 5_000),
        delay("100 us", 25_000),
        mtu("4 KB packets", 4096),
        mtu("9 KB packets", 9000),
        buffer("8 MB", 8),
        buffer("64 MB", 64),
        red("marks from 1/4", 0.25),
        red("marks from 4 times", 4.0),
        Cell {
            name: "800G, 100 us, 9 KB",
            gbps: 800,
            delay_ns: 25_000,
            mtu: 9000,
            ..USUAL
        },
        Cell {
            name: "25G, 9 KB, 8 MB, marks from 1/4",
            gbps: 25,
            mtu: 9000,
            buffer: 8 << 20,
            red: 0.25,
            ..USUAL
        },
    ]
}

/// What is compared; the smaller the better.
const METRICS: [&str; 4] = [
    "completion of 8:1",
    "queue p99 of 8:1",
    "p99 of small messages at 50 %",
    "p99 of long messages at 50 %",
];

impl Cell {
    /// Settings of the place with marking thresholds `tuned` times what they are.
    fn config(self, base: Config, tuned: f64) -> Config {
        let scale = |bytes: u64| (bytes as f64 * self.red * tuned) as u64;
        Config {
            mtu: self.mtu,
            buffer: self.buffer,
            floor_ns: false,
            red: base.red.map(|red| Red {
                min: scale(red.min),
                max: scale(red.max),
                ..red
            }),
            ..base
        }
    }

    fn run(self, base: Config, tuned: f64, seed: u64) -> [f64; 4] {
        let config = self.config(base, tuned);
        let [time, queue] = self.incast(config, seed);
        let [small, long] = self.open_loop(config, seed);
        [time, queue, small, long]
    }

    /// Completion and queue of 8:1, as long everywhere: 50 bandwidth-delay products, at least 1 MB.
    fn incast(self, config: Config, seed: u64) -> [f64; 2] {
        let topology = Topology::single(9, self.gbps, self.delay_ns);
        let bdp = u64::from(self.gbps) * u64::from(self.delay_ns) * 4 / 8;
        let messages = workload::incast(8, (50 * bdp).max(1_000_000));
        let o = Case::Incast(8).run_on(&topology, messages, 8, config, seed);
        [o.fct_max, o.q_p99]
    }

    /// Slowdowns on one switch with 16 hosts, FB_Hadoop at 50 %, as many messages everywhere.
    fn open_loop(self, config: Config, seed: u64) -> [f64; 2] {
        let length = 400 * MS / u64::from(self.gbps);
        let (from, until) = (length / 4, length);
        let topology = Topology::single(16, self.gbps, self.delay_ns);
        let traffic = Poisson::new(&FB_HADOOP, 16, self.gbps, 0.5, until, seed);
        let mut world = World::new(&topology, config, Box::new(traffic), seed);
        // What is under way at the end may take as long again.
        world.run(2 * until);
        world.done.retain(|done| done.message.start >= from);
        let small = small_slowdowns(&world.done);
        let long = Slowdowns::new(&world.done).part(90.0, 100.0);
        [quantile(&small, 0.99), long.p99]
    }
}

/// How much worse than the best the default may be.
const MUST: f64 = 1.5;

/// The default over the best of nine tuned DCQCN, and that for each number on its own: an operator
/// has to choose one of the nine for all. One that is slow by more than what is asked of the default
/// is not well tuned, however short its queue is.
pub fn grid(lines: &mut Lines, options: &Options) {
    let rivals = [Scheme::Dcqcn, Scheme::DcqcnPaper, Scheme::DcqcnWindow];
    for cell in cells() {
        let auto = cell.run(options.config(Scheme::Auto), 1.0, options.seed);
        let runs: Vec<[f64; 4]> = rivals
            .into_iter()
            .flat_map(|scheme| [0.25, 1.0, 4.0].map(|tuned| (scheme, tuned)))
            .map(|(scheme, tuned)| cell.run(scheme.reference(), tuned, options.seed))
            .collect();
        let best = |runs: &mut dyn Iterator<Item = &[f64; 4]>, metric: usize| {
            runs.map(|run| run[metric]).fold(f64::INFINITY, f64::min)
        };
        let fastest = best(&mut runs.iter(), 0);
        for (metric, what) in METRICS.into_iter().enumerate() {
            let mut tuned = runs.iter().filter(|run| run[0] <= MUST * fastest);
            let best = best(&mut tuned, metric);
            let what = format!("{}: {what} over the best DCQCN", cell.name);
            lines.at_most(17, &what, auto[metric] / best, MUST);
        }
    }
}
