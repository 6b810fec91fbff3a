// SPDX-License-Identifier: GPL-2.0 OR MIT

//! An all-reduce between all guests, by message size: what training jobs do most.

use anyhow::{ensure, Context, Result};

use super::{cases, counters, driver, Part, Scenario};
use crate::{
    report::{Report, Series},
    session::{Session, LONG},
    topology::Topology,
};

pub(super) const SCENARIO: Scenario = Scenario {
    name: "allreduce",
    about: "a ring all-reduce between two guests by message size, with its result checked",
    alarm: None,
    parts: &[Part::Driver, Part::Provider, Part::Model, Part::Programs],
    topology: || {
        Topology::default()
            .guest("a", &["a0"])
            .guest("b", &["b0"])
            .link("a0", "b0")
    },
    run,
};

fn run(session: &Session, report: &mut Report) -> Result<()> {
    let devices = driver::load_all(session)?;
    let mut times = Vec::new();
    counters::watch(session, report, "the all-reduce", |report| {
        report.test("ring all-reduce", || {
            times = reduce(session, &devices)?;
            let (size, time) = times.last().context("no size was done")?;
            Ok(format!("{size:.0} bytes in {:.1} ms", time / 1000.0))
        });
    })?;
    report.series(Series {
        title: "all-reduce: time by message size".into(),
        x: "bytes",
        y: "ms",
        points: times.iter().map(|(size, us)| (*size, us / 1e3)).collect(),
    });
    // A ring moves each byte so often over each link.
    let ranks = session.guests.len() as f64;
    let factor = 2.0 * (ranks - 1.0) / ranks;
    report.series(Series {
        title: "all-reduce: bus bandwidth by message size".into(),
        x: "bytes",
        y: "MB/s",
        points: times
            .iter()
            .map(|(size, us)| (*size, factor * size / us))
            .collect(),
    });
    Ok(())
}

/// Runs a rank in each guest; bytes and microseconds of each size, as rank 0 saw them.
fn reduce(session: &Session, devices: &[String]) -> Result<Vec<(f64, f64)>> {
    let addresses: Vec<&str> = session
        .guests
        .iter()
        .map(|guest| guest.address.as_str())
        .collect();
    let mut ranks = Vec::new();
    for (rank, (guest, device)) in session.guests.iter().zip(devices).enumerate() {
        let command = format!(
            "python3 /{} {device} {rank} {}",
            cases::ALLREDUCE,
            addresses.join(" ")
        );
        ranks.push(guest.start(&command, LONG)?);
    }
    let outputs = ranks
        .into_iter()
        .map(|rank| Ok(rank.wait()?.stdout))
        .collect::<Result<Vec<_>>>()?;
    let times = outputs
        .iter()
        .map(|output| figures(output))
        .collect::<Result<Vec<_>>>()?;
    times.into_iter().next().context("there are no guests")
}

/// The lines of a rank.
fn figures(output: &str) -> Result<Vec<(f64, f64)>> {
    let (lines, end) = output.trim_end().rsplit_once('\n').unwrap_or(("", output));
    let times = lines
        .lines()
        .map(|line| {
            let (size, time) = line.split_once(' ').with_context(|| format!("{line:?}"))?;
            Ok((size.parse()?, time.parse()?))
        })
        .collect::<Result<Vec<_>>>()?;
    ensure!(
        end == format!("done {}", times.len()) && !times.is_empty(),
        "the program did not come to its end:\n{output}"
    );
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_stops_early_is_an_error() {
        assert_eq!(
            figures("64 10.5\n1024 20.0\ndone 2\n").unwrap(),
            [(64.0, 10.5), (1024.0, 20.0)]
        );
        for bad in [
            "",
            "64 10.5\n",
            "64 10.5\ndone 2\n",
            "done 0\n",
            "64\ndone 1\n",
        ] {
            assert!(figures(bad).is_err(), "{bad:?}");
        }
    }
}
