// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Row 17: one default everywhere, against DCQCN tuned for each place.

use super::{Lines, Options};
use crate::micro::{Case, Outcome};
use crate::scheme::Scheme;
use crate::topo::Topology;
use crate::workload;
use crate::world::{Config, Red};

/// A place: what an operator finds.
#[derive(Clone, Copy)]
struct Cell {
    gbps: u32,
    delay_ns: u32,
    mtu: u32,
    buffer: u64,
    /// Thresholds of the switches over the usual ones.
    red: f64,
}

/// Each axis on its own around the usual place, and its corners.
fn cells() -> Vec<Cell> {
    const USUAL: Cell = Cell {
        gbps: 100,
        delay_ns: 1000,
        mtu: 1000,
        buffer: 32 << 20,
        red: 1.0,
    };
    let rates = [25, 400, 800].map(|gbps| Cell { gbps, ..USUAL });
    let delays = [5_000, 25_000].map(|delay_ns| Cell { delay_ns, ..USUAL });
    let mtus = [4096, 9000].map(|mtu| Cell { mtu, ..USUAL });
    let buffers = [8 << 20, 64 << 20].map(|buffer| Cell { buffer, ..USUAL });
    let reds = [0.25, 4.0].map(|red| Cell { red, ..USUAL });
    let corners = [
        Cell {
            gbps: 800,
            delay_ns: 25_000,
            mtu: 9000,
            ..USUAL
        },
        Cell {
            gbps: 25,
            mtu: 9000,
            buffer: 8 << 20,
            red: 0.25,
            ..USUAL
        },
    ];
    [
        &[USUAL][..],
        &rates,
        &delays,
        &mtus,
        &buffers,
        &reds,
        &corners,
    ]
    .concat()
}

impl Cell {
    /// 8:1 in this place, with marking thresholds `tuned` times those of the place.
    fn run(self, scheme: Scheme, tuned: f64) -> Outcome {
        let base = scheme.reference();
        let scale = |bytes: u64| (bytes as f64 * self.red * tuned) as u64;
        let config = Config {
            mtu: self.mtu,
            buffer: self.buffer,
            floor_ns: false,
            red: base.red.map(|red| Red {
                min: scale(red.min),
                max: scale(red.max),
                ..red
            }),
            ..base
        };
        let topology = Topology::single(9, self.gbps, self.delay_ns);
        // As long everywhere: 50 bandwidth-delay products, at least 1 MB.
        let bdp = u64::from(self.gbps) * u64::from(self.delay_ns) * 4 / 8;
        let messages = workload::incast(8, (50 * bdp).max(1_000_000));
        Case::Incast(8).run_on(&topology, messages, 8, config, 1)
    }
}

/// Completion of all, and queue, over those of the DCQCN that ends first in each place.
pub fn grid(lines: &mut Lines, _: &Options) {
    let (mut slowest, mut longest): (f64, f64) = (0.0, 0.0);
    for cell in cells() {
        let auto = cell.run(Scheme::Auto, 1.0);
        let best = [Scheme::Dcqcn, Scheme::DcqcnPaper, Scheme::DcqcnWindow]
            .into_iter()
            .flat_map(|scheme| [0.25, 1.0, 4.0].map(|tuned| cell.run(scheme, tuned)))
            .min_by(|a, b| a.fct_max.total_cmp(&b.fct_max))
            .unwrap_or_default();
        slowest = slowest.max(auto.fct_max / best.fct_max);
        longest = longest.max(auto.q_p99 / best.q_p99);
    }
    let count = cells().len();
    let what = format!("worst of {count} places: completion over the best tuned DCQCN");
    lines.at_most(17, &what, slowest, 1.5);
    let what = format!("worst of {count} places: queue p99 over the best tuned DCQCN");
    lines.at_most(17, &what, longest, 1.5);
}
