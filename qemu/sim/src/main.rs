// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Simulator of fabrics that runs the driver's congestion control.

mod host;
mod micro;
mod queue;
mod scheme;
mod stats;
mod switch;
mod topo;
mod workload;
mod world;

use clap::ValueEnum;

fn main() {
    use micro::Case;
    let cases = [Case::Incast(2), Case::Incast(8), Case::Incast(64), Case::Victim, Case::AllToAll(16)];
    let arg = std::env::args().nth(1);
    for case in cases {
        for scheme in scheme::Scheme::value_variants() {
            if let Some(a) = &arg { if !scheme.name().contains(a.as_str()) { continue; } }
            let t = std::time::Instant::now();
            let o = case.run(scheme.reference(), 1);
            println!("{case:?} {:20} {:.1}% J{:.3} fct {:.0}/{:.0}/{:.0} q {:.0}/{:.0}/{:.0}/{:.0} pfc {} victim {:.1} drops {} [{:?}]", scheme.name(), o.goodput, o.jain, o.fct_min, o.fct_med, o.fct_max, o.q_p50, o.q_p95, o.q_p99, o.q_max, o.pauses, o.victim, o.drops, t.elapsed());
        }
    }
}
