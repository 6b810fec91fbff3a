// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Rows 10 to 13: open-loop traffic on fat-trees. They run with `--clusters` only.

use super::{Lines, Options};
use crate::cluster::{Cluster, Summary, Traffic, MS};
use crate::scheme::Scheme;
use crate::validate::{at_percentiles, ENOUGH_FOR_P99};

fn cluster(options: &Options, traffic: Traffic, load: f64) -> Cluster {
    Cluster {
        measured: options.ms * MS,
        seed: options.seed,
        ..Cluster::paper(traffic, load)
    }
}

fn run(options: &Options, scheme: Scheme, cluster: &Cluster) -> Summary {
    cluster.run(options.config(scheme), scheme.name())
}

/// 99th percentile at the 90 % size percentile, read as the published curves are.
fn long(summary: &Summary) -> f64 {
    at_percentiles(&summary.slowdowns, ENOUGH_FOR_P99)[3].p99
}

/// Rows 10 and 11: 30 and 50 %, and 30 % with incasts.
pub fn paper(lines: &mut Lines, options: &Options) {
    if !options.clusters {
        return;
    }
    // Published p99 of DCQCN with window (long) and of HPCC (small) for the bounds.
    for (traffic, load, small, dcqcn, hpcc) in [
        (Traffic::WebSearch, 0.3, 3.0, 5.05, 1.72),
        (Traffic::WebSearch, 0.5, 4.5, 9.82, 1.95),
        (Traffic::FbHadoop, 0.3, 3.0, 3.56, 2.13),
        (Traffic::FbHadoop, 0.5, 4.5, 5.84, 2.68),
    ] {
        let cluster = cluster(options, traffic, load);
        let name = format!("{} {:.0} %", traffic.name(), 100.0 * load);
        for (mode, scheme, small, longest) in [
            ("E", Scheme::Auto, small, 1.05 * dcqcn),
            ("I", Scheme::AutoInt, 1.05 * hpcc, 1.15 * dcqcn),
        ] {
            let s = run(options, scheme, &cluster);
            lines.at_most(10, &format!("{name} {mode} small p99"), s.small_p99, small);
            lines.at_most(10, &format!("{name} {mode} long p99"), long(&s), longest);
            lines.at_most(10, &format!("{name} {mode} pause %"), s.pause, 0.0);
        }
    }
    let burst = Cluster {
        incast: 0.02,
        ..cluster(options, Traffic::FbHadoop, 0.3)
    };
    for (mode, scheme, small) in [("E", Scheme::Auto, 3.0), ("I", Scheme::AutoInt, 1.6)] {
        let s = run(options, scheme, &burst);
        let name = format!("60:1 and 30 % {mode}");
        lines.at_most(11, &format!("{name} small p95"), s.small_p95, small);
        lines.at_most(11, &format!("{name} pause %"), s.pause, 0.0);
    }
}

/// Row 12: 70 %.
pub fn overload(lines: &mut Lines, options: &Options) {
    if options.clusters {
        let cluster = cluster(options, Traffic::WebSearch, 0.7);
        let s = run(options, Scheme::AutoInt, &cluster);
        lines.at_most(12, "WebSearch 70 % I long p99", long(&s), 24.0);
    }
}

/// Row 13: 10,240 hosts and 1 % of 64:1 incasts against 320 hosts, half a millisecond each.
pub fn large(lines: &mut Lines, options: &Options) {
    if !options.clusters {
        return;
    }
    let small = Cluster {
        incast: 0.01,
        fan_in: 64,
        warm_up: MS / 5,
        measured: 3 * MS / 10,
        seed: options.seed,
        ..Cluster::paper(Traffic::FbHadoop, 0.3)
    };
    let large = Cluster {
        pods: 80,
        width: 8,
        ..small
    };
    let small = small.run_for(options.config(Scheme::Auto), "320 hosts", MS / 10);
    let large = large.run_for(options.config(Scheme::Auto), "10,240 hosts", MS / 10);
    let apart = 100.0 * (large.small_p95 / small.small_p95 - 1.0).abs();
    lines.at_most(
        13,
        "small p95 of 10,240 hosts, % from 320 hosts",
        apart,
        10.0,
    );
    let minutes = large.cpu.as_secs_f64() / 60.0 / 0.6;
    lines.at_most(13, "10,240 hosts, minutes of CPU for 1 ms", minutes, 6.0);
}
