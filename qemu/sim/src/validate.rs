// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reproduces published results and says where that fails.

use anyhow::{ensure, Result};
use clap::value_parser;
use comfy_table::{presets::ASCII_MARKDOWN, Table};

use crate::anchors::{Anchors, ClusterAnchor, Figure, Small};
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
    /// Only figure 11 of the HPCC paper: 60:1 incasts over 30 %, and 50 %.
    #[arg(long)]
    figure: bool,
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

/// Milliseconds of warm-up and of measurement where there is no time for more, and how much wider
/// the bands are then.
const SHORT: (u64, u64, f64) = (4, 4, 2.0);

/// Values compared and values outside their band.
#[derive(Clone, Copy, Debug, Default)]
pub struct Score {
    /// Compared.
    pub compared: usize,
    /// Outside.
    pub outside: usize,
}

impl Score {
    /// Counts a value and prints it beside its anchor.
    fn cell(&mut self, got: f64, anchor: f64, digits: usize, outside: bool) -> String {
        self.compared += 1;
        self.outside += usize::from(outside);
        let mark = if outside { " *" } else { "" };
        format!("{got:.digits$} ({anchor:.digits$}){mark}")
    }

    /// The mean of several runs beside an anchor that is itself one run of a random process: the
    /// anchor must lie within the band around the range of the runs.
    fn check_runs(&mut self, runs: &[f64], anchor: f64, band: f64, digits: usize) -> String {
        let low = runs.iter().copied().fold(f64::INFINITY, f64::min);
        let high = runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mean = runs.iter().sum::<f64>() / runs.len() as f64;
        let outside = anchor < low - band || anchor > high + band;
        self.cell(mean, anchor, digits, outside)
    }

    /// A value beside its anchor.
    fn check(&mut self, got: f64, anchor: f64, band: f64, digits: usize) -> String {
        self.cell(got, anchor, digits, (got - anchor).abs() > band)
    }

    /// Percent of time in pause. Only whether there is any can be compared: of which ports the
    /// published share is one is not published.
    fn check_pause(&mut self, got: f64, anchor: f64) -> String {
        self.cell(got, anchor, 2, (got > 0.0) != (anchor > 0.0))
    }
}

/// Runs the validation and prints both sides; the score says how it went.
pub fn run(options: Options) -> Result<Score> {
    let anchors = Anchors::load()?;
    println!("Each cell: simulated (published). A * marks a value outside its band.\n");
    let part = options.figure
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
        SHORT
    } else {
        (options.warm_up, options.measured, 1.0)
    };
    for anchor in &anchors.cluster {
        let wanted = options.scheme.is_none_or(|scheme| scheme == anchor.scheme)
            && options.load.is_none_or(|load| load == anchor.load)
            && options
                .traffic
                .is_none_or(|traffic| traffic == anchor.traffic);
        if options.figure || !wanted || (options.short && anchor.load > 0.3) {
            continue;
        }
        cluster_case(&mut score, anchor, (warm_up, measured), wider);
    }
    if options.figure || !(options.short || part) {
        figure(&mut score, &options, &anchors.figure);
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

fn cluster_case(score: &mut Score, anchor: &ClusterAnchor, times: (u64, u64), wider: f64) {
    let cluster = Cluster {
        warm_up: times.0 * MS,
        measured: times.1 * MS,
        ..Cluster::paper(anchor.traffic, anchor.load)
    };
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

/// Bytes on the wire for each byte of payload in full packets. Loads of the authors' result set are
/// payload, as they say there. Those of figure 11 are taken to be of the links, headers included: it
/// is what makes all its curves fit, and the paper does not say.
const WIRE: f64 = 1.048;

/// Messages by percentile of size at the ticks of figure 11, whose points are five percent wide: all
/// below 1 KB, up to 7 KB, from 120 KB on, and the largest.
const TICKS: [(f64, f64); 4] = [(0.0, 60.0), (65.0, 70.0), (90.0, 95.0), (95.0, 100.0)];

/// Runs of a cluster with bursts, each with a part of the time. In ten milliseconds are 25 bursts, and
/// how many of them meet is chance, so that runs differ by half.
const BURST_RUNS: u64 = 3;

fn figure(score: &mut Score, options: &Options, anchors: &[Figure]) {
    let mut table = Table::new();
    table.load_preset(ASCII_MARKDOWN);
    table.set_header([
        "figure 11, p95",
        "scheme",
        "<1 KB",
        "7 KB",
        "120 KB",
        "10 MB",
        "pause %",
    ]);
    for anchor in anchors {
        if options.scheme.is_some_and(|scheme| scheme != anchor.scheme)
            || options.load.is_some_and(|load| load != anchor.load)
        {
            continue;
        }
        let (bursts, seeds) = if anchor.incast > 0.0 {
            (" and 60:1", BURST_RUNS)
        } else {
            ("", 1)
        };
        let run = |seed| {
            let cluster = Cluster {
                incast: anchor.incast / WIRE,
                warm_up: options.warm_up * MS,
                measured: (options.measured * MS / seeds).max(MS),
                seed,
                ..Cluster::paper(Traffic::FbHadoop, anchor.load / WIRE)
            };
            cluster.run(anchor.scheme.reference(), anchor.scheme.name())
        };
        let runs: Vec<_> = (1..=seeds).map(run).collect();
        let mut row = vec![
            format!("{:.0} %{bursts}", 100.0 * anchor.load),
            anchor.scheme.name().to_owned(),
        ];
        for ((from, to), want) in TICKS.into_iter().zip(anchor.p95) {
            let got: Vec<_> = runs
                .iter()
                .map(|run| run.slowdowns.part(from, to).p95)
                .collect();
            row.push(score.check_runs(&got, want, want * 0.15, 2));
        }
        let pause = runs.iter().map(|run| run.pause).sum::<f64>() / seeds as f64;
        row.push(score.check_pause(pause, anchor.pause));
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

    /// The same for the clusters: those that have most messages in least time.
    #[test]
    fn clusters_lie_in_wider_bands() {
        let mut anchors = Anchors::load().unwrap().cluster;
        anchors.retain(|anchor| anchor.traffic == Traffic::FbHadoop && anchor.load == 0.3);
        let (warm_up, measured, wider) = SHORT;
        let mut score = Score::default();
        for anchor in &anchors {
            cluster_case(&mut score, anchor, (warm_up, measured), wider);
        }
        assert_eq!((score.compared, score.outside), (30, 0));
    }
}
