// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reproduces published results and says where that fails.

use anyhow::{ensure, Result};
use clap::value_parser;
use comfy_table::{presets::ASCII_MARKDOWN, Table};

use crate::anchors::{Anchors, ClusterAnchor, Small};
use crate::cluster::{Cluster, Traffic, MOST_MS, MS};
use crate::micro::{Case, Outcome};
use crate::scheme::Scheme;
use crate::stats::{Bucket, Slowdowns};

/// How much of it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// Only what takes five minutes: small cases, and clusters at 30 % with wider bands.
    #[arg(long)]
    short: bool,
    /// Milliseconds before messages count.
    #[arg(long, default_value_t = 10, value_parser = value_parser!(u64).range(..=MOST_MS))]
    warm_up: u64,
    /// Milliseconds that count.
    #[arg(long, default_value_t = 50, value_parser = value_parser!(u64).range(1..=MOST_MS))]
    measured: u64,
    /// Only the small cases.
    #[arg(long)]
    small: bool,
    /// Only the clusters with incasts.
    #[arg(long)]
    bursts: bool,
    /// Only the clusters with this scheme.
    #[arg(long, value_enum)]
    scheme: Option<Scheme>,
    /// Only the clusters with this load.
    #[arg(long)]
    load: Option<f64>,
    /// Only the clusters with these flow sizes.
    #[arg(long, value_enum)]
    traffic: Option<Traffic>,
    /// Runs of a small case with different seeds.
    #[arg(long, default_value_t = 20, value_parser = value_parser!(u64).range(1..=1000))]
    seeds: u64,
}

/// Values compared and values outside their band.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score {
    /// Compared.
    pub compared: usize,
    /// Outside.
    pub outside: usize,
}

impl Score {
    /// Prints the mean of several runs beside an anchor that is itself one run of a random process,
    /// and counts it: the anchor must lie within the band around the range of the runs.
    fn check_runs(&mut self, runs: &[f64], anchor: f64, band: f64, digits: usize) -> String {
        self.compared += 1;
        let low = runs.iter().copied().fold(f64::INFINITY, f64::min);
        let high = runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mean = runs.iter().sum::<f64>() / runs.len() as f64;
        let outside = anchor < low - band || anchor > high + band;
        self.outside += usize::from(outside);
        let mark = if outside { " *" } else { "" };
        format!("{mean:.digits$} ({anchor:.digits$}){mark}")
    }

    /// Prints a value beside its anchor and counts it.
    fn check(&mut self, got: f64, anchor: f64, band: f64, digits: usize) -> String {
        self.compared += 1;
        let outside = (got - anchor).abs() > band;
        self.outside += usize::from(outside);
        let mark = if outside { " *" } else { "" };
        format!("{got:.digits$} ({anchor:.digits$}){mark}")
    }
}

/// Runs the validation and prints both sides; the score says how it went.
pub fn run(options: Options) -> Result<Score> {
    let anchors = Anchors::load()?;
    println!("Each cell: simulated (published). A * marks a value outside its band.\n");
    let part = options.bursts
        || options.scheme.is_some()
        || options.load.is_some()
        || options.traffic.is_some();
    let mut score = if part {
        Score::default()
    } else {
        small_cases(&anchors.small, options.seeds)
    };
    if options.small {
        return Ok(score);
    }
    let (warm_up, measured, wider) = if options.short {
        (4, 4, 2.0)
    } else {
        (options.warm_up, options.measured, 1.0)
    };
    for anchor in &anchors.cluster {
        let wanted = options.scheme.is_none_or(|scheme| scheme == anchor.scheme)
            && options.load.is_none_or(|load| load == anchor.load)
            && options
                .traffic
                .is_none_or(|traffic| traffic == anchor.traffic);
        if options.bursts || !wanted || (options.short && anchor.load > 0.3) {
            continue;
        }
        let cluster = Cluster {
            warm_up: warm_up * MS,
            measured: measured * MS,
            ..Cluster::paper(anchor.traffic, anchor.load)
        };
        cluster_case(&mut score, anchor, &cluster, wider);
    }
    if options.bursts || !(options.short || part) {
        bursts(&mut score, &anchors, warm_up, measured);
    }
    ensure!(score.compared > 0, "nothing is published for this choice");
    Ok(score)
}

fn small_cases(anchors: &[Small], seeds: u64) -> Score {
    let mut score = Score::default();
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([
        "case",
        "scheme",
        "goodput %",
        "q p50 KB",
        "q p95",
        "q p99",
        "q max",
        "pause",
    ]);
    for anchor in anchors {
        let runs: Vec<Outcome> = (0..seeds)
            .map(|seed| anchor.case.run(anchor.scheme.reference(), seed))
            .collect();
        let mean =
            |value: fn(&Outcome) -> f64| runs.iter().map(value).sum::<f64>() / runs.len() as f64;
        let all = |value: fn(&Outcome) -> f64| runs.iter().map(value).collect::<Vec<_>>();
        let goodput = if anchor.case == Case::Victim {
            all(|o| o.victim)
        } else {
            all(|o| o.goodput)
        };
        let mut row = vec![anchor.case.to_string(), anchor.scheme.name().to_owned()];
        row.push(score.check_runs(&goodput, anchor.goodput, 1.5, 1));
        match anchor.queue {
            Some([p50, p95, p99, max]) => {
                row.push(format!("{:.0} ({p50:.0})", mean(|o| o.q_p50)));
                // Queues are counted in bins of one KB and a packet is more than that.
                let band = |anchor: f64| (anchor * 0.1).max(2.1);
                row.push(score.check_runs(&all(|o| o.q_p95), p95, band(p95), 0));
                row.push(score.check_runs(&all(|o| o.q_p99), p99, band(p99), 0));
                row.push(format!("{:.0} ({max:.0})", mean(|o| o.q_max)));
            }
            None => row.extend(std::iter::repeat_n(String::new(), 4)),
        }
        let paused = runs.iter().filter(|run| run.pauses > 0).count() * 2 > runs.len();
        score.compared += 1;
        score.outside += usize::from(paused != anchor.pause);
        let yes = |pause| if pause { "yes" } else { "no" };
        let mark = if paused == anchor.pause { "" } else { " *" };
        row.push(format!("{} ({}){mark}", yes(paused), yes(anchor.pause)));
        table.add_row(row);
    }
    println!("{table}\n");
    score
}

/// Size percentiles at which the published curves were read.
pub const READ_AT: [f64; 5] = [2.0, 50.0, 70.0, 90.0, 99.0];

/// Messages that a 99th percentile needs.
pub const ENOUGH_FOR_P99: usize = 5000;

/// Slowdowns where the published curves were read. A point of those curves is one percent of the
/// messages by size (the step of the authors' script) and lies at its upper end.
///
/// A quantile needs messages: where one percent has fewer than `enough`, as much more around its
/// middle is taken, up to ten percent.
pub fn at_percentiles(slowdowns: &Slowdowns, enough: usize) -> [Bucket; 5] {
    let width = 100.0 * enough as f64 / slowdowns.len().max(1) as f64;
    READ_AT.map(|percent| {
        let middle = percent - 0.5;
        let half = (width.clamp(1.0, 10.0) / 2.0)
            .min(middle)
            .min(100.0 - middle);
        slowdowns.part(middle - half, middle + half)
    })
}

fn cluster_case(score: &mut Score, anchor: &ClusterAnchor, cluster: &Cluster, wider: f64) {
    let label = format!(
        "{} {} {:.0} %",
        anchor.scheme.name(),
        anchor.traffic.name(),
        100.0 * anchor.load
    );
    let summary = cluster.run(anchor.scheme.reference(), &label);
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([label.as_str(), "size 2 %", "50 %", "70 %", "90 %", "99 %"]);
    type Row = (&'static str, fn(&Bucket) -> f64, [f64; 5], f64, usize);
    let rows: [Row; 3] = [
        ("p50", |b| b.p50, anchor.p50, 0.10, 500),
        ("p95", |b| b.p95, anchor.p95, 0.15, 2000),
        ("p99", |b| b.p99, anchor.p99, 0.20, ENOUGH_FOR_P99),
    ];
    for (name, value, published, band, enough) in rows {
        let mut row = vec![name.to_owned()];
        let got = at_percentiles(&summary.slowdowns, enough);
        for (got, want) in got.iter().map(value).zip(published) {
            row.push(score.check(got, want, want * band * wider, 2));
        }
        table.add_row(row);
    }
    println!("{table}");
    println!(
        "{} messages, {} incomplete, pause {:.2} %, drops {}, {:.0} packets per second of CPU\n",
        summary.messages,
        summary.incomplete,
        summary.pause,
        summary.counters.drops,
        summary.counters.data as f64 / summary.cpu.as_secs_f64()
    );
}

fn bursts(score: &mut Score, anchors: &Anchors, warm_up: u64, measured: u64) {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([
        "FB_Hadoop 30 % and 60:1",
        "<1 KB p95",
        "7 KB",
        "120 KB",
        "10 MB",
        "pause %",
    ]);
    for anchor in &anchors.burst {
        let cluster = Cluster {
            incast: 0.02,
            warm_up: warm_up * MS,
            measured: measured * MS,
            ..Cluster::paper(Traffic::FbHadoop, 0.3)
        };
        let summary = cluster.run(anchor.scheme.reference(), anchor.scheme.name());
        let mut row = vec![anchor.scheme.name().to_owned()];
        for (bytes, want) in [1_000, 7_000, 120_000, 10_000_000]
            .into_iter()
            .zip(anchor.p95)
        {
            let bucket = summary.slowdowns.parts(50).find(|b| b.bytes >= bytes);
            let got = bucket.unwrap_or(summary.slowdowns.part(98.0, 100.0)).p95;
            row.push(score.check(got, want, want * 0.15, 2));
        }
        row.push(score.check(summary.pause, anchor.pause, 0.5, 2));
        table.add_row(row);
    }
    println!("{table}\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of the validation that `make check` has time for: the small cases of the schemes
    /// that hardly depend on chance.
    #[test]
    fn small_cases_lie_in_their_bands() {
        const STEADY: [Scheme; 3] = [Scheme::Hpcc, Scheme::DcqcnWindow, Scheme::Dctcp];
        let mut anchors = Anchors::load().unwrap().small;
        anchors.retain(|anchor| STEADY.contains(&anchor.scheme));
        let score = small_cases(&anchors, 2);
        assert_eq!((score.compared, score.outside), (48, 0));
    }
}
