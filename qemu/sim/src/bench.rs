// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Speed of the simulator, in data packets per second of CPU time.

use std::process::ExitCode;

use anyhow::Result;

use crate::cluster::{Cluster, Traffic, MS};
use crate::cpu::peak_gib;
use crate::scheme::Scheme;

/// What to measure.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// Microseconds simulated with 10,240 hosts; 0 leaves that out.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(..=100_000))]
    large_us: u64,
    /// Algorithm.
    #[arg(long, value_enum, default_value = "dcqcn-window")]
    scheme: Scheme,
}

/// Runs and prints; fails if a goal is missed.
pub fn run(options: Options) -> Result<ExitCode> {
    let small = Cluster {
        warm_up: MS,
        measured: 2 * MS,
        ..Cluster::paper(Traffic::FbHadoop, 0.3)
    };
    let mut met = measure("320 hosts, 3 ms", &small, options.scheme, 250e3)?;
    if options.large_us > 0 {
        let large = Cluster {
            pods: 80,
            width: 8,
            warm_up: 0,
            measured: options.large_us * MS / 1000,
            ..small
        };
        met &= measure("10,240 hosts", &large, options.scheme, 105e3)?;
    }
    Ok(if met {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn measure(label: &str, cluster: &Cluster, scheme: Scheme, goal: f64) -> Result<bool> {
    let summary = cluster.run_for(scheme.reference(), label, 0);
    let cpu = summary.cpu.as_secs_f64();
    let rate = summary.counters.data as f64 / cpu;
    println!(
        "{label}: {} data packets, {:.1} events each, {cpu:.1} s of CPU, {rate:.0} packets/s \
         (goal {goal:.0}), {:.1} M events/s, {:.2} GiB peak",
        summary.counters.data,
        summary.events as f64 / summary.counters.data as f64,
        summary.events as f64 / cpu / 1e6,
        peak_gib()?
    );
    Ok(rate >= goal)
}
