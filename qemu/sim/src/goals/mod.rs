// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The goal table: what the default must reach, and what it does.

mod clusters;
mod incast;
mod infiniband;
mod robust;
mod sensitivity;
mod shared;

use std::fmt::Write as _;
use std::process::ExitCode;

use anyhow::{ensure, Result};
use comfy_table::{presets::ASCII_MARKDOWN, Table};
use serde::Serialize;

use crate::scheme::Scheme;
use crate::world::Config;

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Also the rows on fat-trees, which take minutes.
    #[arg(long)]
    pub clusters: bool,
    /// Milliseconds of measurement on fat-trees, after 5 of warm-up.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub ms: u64,
    /// Seed of the traffic on fat-trees, and of marking everywhere.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The default with the acknowledgements of Qiao devices in all rows. Otherwise rows that are
    /// compared with published numbers have one per packet, as those.
    #[arg(long)]
    pub device_acks: bool,
    /// Measure this algorithm in place of the default with marks and round trips (mode E).
    #[arg(long, value_enum)]
    instead: Option<Scheme>,
    /// Print JSON.
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print CSV.
    #[arg(long)]
    csv: bool,
    /// Only these rows of the goal table.
    #[arg(long, value_delimiter = ',')]
    rows: Vec<u32>,
}

/// One number against its goal.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    /// Row of the goal table.
    pub row: u32,
    /// Scenario, mode and metric.
    pub what: String,
    /// Result.
    pub got: f64,
    /// Bound.
    pub must: f64,
    /// Whether the bound is an upper one.
    pub at_most: bool,
}

impl Line {
    /// Whether the goal is met.
    pub fn met(&self) -> bool {
        if self.at_most {
            self.got <= self.must
        } else {
            self.got >= self.must
        }
    }
}

impl Options {
    /// The settings of `scheme` in these runs.
    fn config(&self, scheme: Scheme) -> Config {
        let scheme = match self.instead {
            Some(other) if scheme == Scheme::Auto => other,
            _ => scheme,
        };
        Config {
            device_acks: self.device_acks,
            ..scheme.reference()
        }
    }
}

struct Lines(Vec<Line>);

impl Lines {
    fn at_least(&mut self, row: u32, what: &str, got: f64, must: f64) {
        self.0.push(Line {
            row,
            what: what.to_owned(),
            got,
            must,
            at_most: false,
        });
    }

    fn at_most(&mut self, row: u32, what: &str, got: f64, must: f64) {
        self.0.push(Line {
            row,
            what: what.to_owned(),
            got,
            must,
            at_most: true,
        });
    }
}

/// Runs and prints; exit status 1 if a goal is missed.
pub fn run(options: Options) -> Result<ExitCode> {
    let lines = measure(&options)?;
    let missed = lines.iter().filter(|line| !line.met()).count();
    if options.json {
        println!("{}", serde_json::to_string_pretty(&lines)?);
    } else if options.csv {
        print!("{}", csv(&lines));
    } else {
        println!("{}", table(&lines));
        println!("{} numbers, {missed} miss their goal", lines.len());
    }
    Ok(if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Measures all rows that were asked for; fails if a row is not there to be measured.
pub fn measure(options: &Options) -> Result<Vec<Line>> {
    type Part = (&'static [u32], fn(&mut Lines, &Options));
    const PARTS: [Part; 14] = [
        (&[1, 2, 3], incast::small),
        (&[4], incast::graceful),
        (&[5], shared::all_to_all),
        (&[6], shared::all_reduce),
        (&[7], shared::victim),
        (&[8], shared::slow_receiver),
        (&[9], shared::convergence),
        (&[10, 11], clusters::paper),
        (&[12], clusters::overload),
        (&[13], clusters::large),
        (&[14], infiniband::rows),
        (&[15], robust::driver),
        (&[16], robust::coexistence),
        (&[17], sensitivity::grid),
    ];
    let mut lines = Lines(Vec::new());
    for row in &options.rows {
        let here = PARTS.iter().any(|(rows, _)| rows.contains(row));
        ensure!(here, "the goal table has no row {row}");
        let large = (10..=13).contains(row) && !options.clusters;
        ensure!(!large, "row {row} runs with --clusters only");
    }
    for (rows, part) in PARTS {
        let wanted = |row| options.rows.is_empty() || options.rows.contains(row);
        if rows.iter().any(wanted) {
            part(&mut lines, options);
        }
    }
    lines.0.sort_by_key(|line| line.row);
    Ok(lines.0)
}

/// Goals as CSV.
pub fn csv(lines: &[Line]) -> String {
    let mut text = String::from("row,what,result,must,at_most,met\n");
    for line in lines {
        let _ = writeln!(
            text,
            "{},\"{}\",{},{},{},{}",
            line.row,
            line.what,
            line.got,
            line.must,
            line.at_most,
            line.met()
        );
    }
    text
}

/// Goals as a Markdown table.
pub fn table(lines: &[Line]) -> Table {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header(["row", "what", "result", "must", "met"]);
    for line in lines {
        let sign = if line.at_most { "<=" } else { ">=" };
        table.add_row([
            line.row.to_string(),
            line.what.clone(),
            format!("{:.3}", line.got),
            format!("{sign} {}", line.must),
            if line.met() { "yes" } else { "NO" }.to_owned(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::Case;

    #[test]
    fn the_default_holds_what_the_documentation_says() {
        let o = Case::Incast(64).run(Scheme::Auto.reference(), 1);
        assert!(
            o.goodput >= 94.0 && o.jain >= 0.995 && o.pauses == 0,
            "{o:?}"
        );
        let o = Case::Victim.run(Scheme::Auto.reference(), 1);
        assert!(o.victim >= 94.0, "{o:?}");
    }

    /// Pause of the own port is the poorest signal, and still keeps a switch from pausing for long.
    #[test]
    fn pause_alone_is_a_signal() {
        let run = |scheme: Scheme| Case::Incast(64).run(scheme.reference(), 1);
        let (without, with) = (run(Scheme::Off), run(Scheme::AutoPause));
        assert!(
            2 * with.pauses < without.pauses,
            "{} {}",
            with.pauses,
            without.pauses
        );
        assert!(with.goodput >= 90.0 && with.jain >= 0.9, "{with:?}");
    }

    #[test]
    fn flow_control_alone_starves_a_victim() {
        let ethernet = Case::Victim.run(Scheme::Off.reference(), 1);
        assert!(ethernet.victim < 45.0 && ethernet.pauses > 0 && ethernet.drops == 0);
        let infiniband = Case::Victim.run(Scheme::IbOff.reference(), 1);
        assert!(infiniband.victim < 45.0 && infiniband.drops == 0);
    }
}
