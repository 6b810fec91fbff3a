// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `make check`: every test there is, each counted by its name.

mod cargo;
mod kernel;
mod sources;
mod symbols;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{bail, Context, Result};
use clap::ValueEnum;

use crate::{
    artefacts::Artefacts,
    coverage::{kept_runs, Coverage},
    info,
    report::{self, Report},
    scenario::Scenario,
};

/// A part of the tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Stage {
    /// Format, lints and licences of the sources
    Lint,
    /// Tests that need no guest
    Unit,
    /// The overlay against the distribution's kernel
    Symbols,
    /// Scenarios in guests
    Guests,
}

/// Runs the tests of the stages given, or of all. Ends with the line `N passed, N failed`; whether none failed.
pub fn run(artefacts: &Artefacts, stages: &[Stage]) -> Result<bool> {
    let stages = if stages.is_empty() {
        Stage::value_variants()
    } else {
        stages
    };
    info::print(artefacts)?;
    let mut report = Report::new();
    for stage in stages {
        let name = stage.to_possible_value().expect("no stage is hidden");
        report.begin(name.get_name());
        match stage {
            Stage::Lint => sources::check(artefacts, &mut report),
            Stage::Unit => cargo::check(artefacts, &mut report),
            Stage::Symbols => symbols::check(artefacts, &mut report),
            Stage::Guests => run_guests(artefacts, &mut report),
        }
    }
    report.finish();
    print!("{}", report.failures());
    println!("report: {}", report::write(&report, artefacts)?.display());
    println!("{}", report.summary());
    Ok(report.failed() == 0)
}

fn run_guests(artefacts: &Artefacts, report: &mut Report) {
    let before = kept_runs(&artefacts.runs());
    let scenarios = Scenario::checked(artefacts.guest.kind);
    report.expect(scenarios.len());
    for scenario in scenarios {
        if !scenario.in_tree(artefacts) {
            report.say(&format!(
                "scenario {}: its parts are not in this work tree yet, so it is not run",
                scenario.name
            ));
            continue;
        }
        scenario.execute(artefacts, report);
    }
    report.test("coverage of the interface", || {
        let before = before?;
        let mut runs = kept_runs(&artefacts.runs())?;
        runs.retain(|run| !before.contains(run));
        let coverage = Coverage::of_runs(&runs)?;
        println!("{}", coverage.table());
        Ok(format!("{} runs", coverage.runs()))
    });
}

/// The Cargo workspaces of the repository that exist so far.
fn workspaces(top: &Path) -> Vec<PathBuf> {
    ["qemu", "provider"]
        .iter()
        .map(|dir| top.join(dir))
        .filter(|dir| dir.join("Cargo.toml").exists())
        .collect()
}

/// Runs a command; an error with all that it said unless it exits with 0.
fn run_tool(command: &mut Command) -> Result<&'static str> {
    let output = command
        .output()
        .with_context(|| format!("starting {command:?}"))?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!(
            "{} from {command:?}\n{}",
            output.status,
            String::from_utf8_lossy(&said)
        );
    }
    Ok("")
}
