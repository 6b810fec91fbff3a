// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The lab: boots guests with the distribution's own kernel on stock QEMU, attaches Qiao HCAs to them, and runs scenarios.
//!
//! Started through make; see `make help`.

mod agent;
mod artefacts;
mod bench;
mod check;
mod coverage;
mod figures;
mod info;
mod initramfs;
mod kernel;
mod kernlog;
mod ktap;
mod model;
mod process;
mod qemu;
mod report;
mod scenario;
mod session;
mod shell;
mod topology;

use std::process::ExitCode;

use anyhow::{ensure, Result};
use clap::{Args, Parser, Subcommand};

use crate::{
    artefacts::Artefacts,
    check::Stage,
    coverage::{kept_runs, Coverage},
    kernel::KernelKind,
    report::Report,
    scenario::{Scenario, ALL, DEBUG_ONLY, ON_DEMAND},
};

#[derive(Parser)]
#[command(about = "Boots guests with Qiao HCAs on stock QEMU and runs scenarios in them")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run scenarios and print a table of what they found
    Run {
        #[command(flatten)]
        guests: Guests,
        /// Names, as `list` prints them
        #[arg(required = true)]
        scenarios: Vec<String>,
    },
    /// List the scenarios
    List,
    /// Boot a scenario's guests and stay at a shell in them
    Shell {
        #[command(flatten)]
        guests: Guests,
        /// Name; by default the demo, or soft-RoCE while there is no driver
        scenario: Option<String>,
    },
    /// Print what of the device interface the runs that are kept have used
    Coverage,
    /// Measure Qiao beside soft-RoCE, and the device model beside memcpy
    Bench,
    /// Print the versions of everything that is used
    Info,
    /// Run all tests, or those of the stages named
    Check {
        #[command(flatten)]
        guests: Guests,
        /// Stages; all if none is named
        stages: Vec<Stage>,
    },
}

#[derive(Args)]
struct Guests {
    /// What they boot
    #[arg(long, value_enum, default_value_t)]
    kernel: KernelKind,
}

fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lab: error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all that was to hold does hold.
fn run(command: Command) -> Result<bool> {
    match command {
        Command::List => {
            list();
            Ok(true)
        }
        Command::Run { guests, scenarios } => {
            run_scenarios(&Artefacts::from_env(guests.kernel)?, &scenarios)
        }
        Command::Shell { guests, scenario } => {
            let artefacts = Artefacts::from_env(guests.kernel)?;
            shell::run(&artefacts, scenario.as_deref()).map(|()| true)
        }
        Command::Info => {
            info::print(&Artefacts::from_env(KernelKind::Stock)?)?;
            Ok(true)
        }
        Command::Coverage => {
            let runs = kept_runs(&Artefacts::from_env(KernelKind::Stock)?.runs())?;
            let coverage = Coverage::of_runs(&runs)?;
            ensure!(
                !coverage.is_empty(),
                "no run with a device model is kept: run make check"
            );
            println!("{}", coverage.table());
            println!("{} runs", coverage.runs());
            Ok(true)
        }
        Command::Bench => bench::run(&Artefacts::from_env(KernelKind::Stock)?),
        Command::Check { guests, stages } => {
            check::run(&Artefacts::from_env(guests.kernel)?, &stages)
        }
    }
}

fn list() {
    for scenario in ALL {
        println!("{:10} {}", scenario.name, scenario.about);
    }
    println!("\nnot part of make check:");
    for scenario in ON_DEMAND {
        println!("{:10} {}", scenario.name, scenario.about);
    }
    println!("\nwith DEBUG=1 also:");
    for scenario in DEBUG_ONLY {
        println!("{:10} {}", scenario.name, scenario.about);
    }
}

fn run_scenarios(artefacts: &Artefacts, names: &[String]) -> Result<bool> {
    let scenarios = names
        .iter()
        .map(|name| Scenario::wanted(name, artefacts))
        .collect::<Result<Vec<_>>>()?;
    info::print(artefacts)?;
    let mut report = Report::new();
    report.expect(scenarios.len());
    for scenario in scenarios {
        scenario.execute(artefacts, &mut report);
    }
    report.finish();
    println!("{}", report.table());
    print!("{}", report.failures());
    println!("report: {}", report::write(&report, artefacts)?.display());
    println!("{}", report.summary());
    Ok(report.failed() == 0)
}
