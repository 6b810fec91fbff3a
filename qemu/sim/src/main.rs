// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Simulator of fabrics that runs the driver's congestion control.

mod anchors;
mod bench;
mod canvas;
mod cluster;
mod collective;
mod command;
mod config;
mod control;
mod cpu;
mod goals;
mod host;
mod micro;
mod queue;
mod receive;
mod report;
mod scheme;
mod stats;
mod switch;
mod topo;
mod validate;
mod workload;
mod world;

#[cfg(test)]
use qiao_cc as cc;

#[cfg(test)]
#[path = "../../../drivers/infiniband/hw/qiao/cc/golden.rs"]
mod golden;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Discrete-event simulator of fabrics that runs the driver's congestion control.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Reproduce published results; exit status 1 if a value is outside its band.
    Validate(validate::Options),
    /// Measure the speed at 320 and 10,240 hosts.
    Bench(bench::Options),
    /// Measure the default against the goal table; exit status 1 if a goal is missed.
    Goals(goals::Options),
    /// Write the page with goals and plots.
    Report(report::Options),
    /// Run open-loop traffic on a fat-tree.
    Cluster(cluster::Options),
    /// Run the small cases.
    Small(micro::Options),
    /// Run one workload on one topology.
    Run(command::Options),
}

fn main() -> Result<ExitCode> {
    match Cli::parse().command {
        Command::Validate(options) => {
            let score = validate::run(options)?;
            println!(
                "{} values compared, {} outside their band",
                score.compared, score.outside
            );
            Ok(if score.outside == 0 {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            })
        }
        Command::Bench(options) => bench::run(options),
        Command::Goals(options) => goals::run(options),
        Command::Report(options) => report::run(options),
        Command::Cluster(options) => cluster::command(options),
        Command::Small(options) => micro::command(options),
        Command::Run(options) => command::run(options),
    }
}

#[cfg(test)]
mod tests {
    use crate::golden::{answers, GOLDEN};

    #[test]
    fn golden_vectors() {
        assert_eq!(answers(), GOLDEN);
    }
}
