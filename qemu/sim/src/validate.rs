// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Reproduces published results and says where that fails.

use anyhow::Result;
use comfy_table::{presets::ASCII_MARKDOWN, Table};

use crate::anchors::{Anchors, ClusterAnchor, Small};
use crate::cluster::{Cluster, MS};
use crate::micro::{Case, Outcome};
use crate::stats::Bucket;

/// How much of it.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// Only what takes five minutes: small cases, and clusters at 30 % with wider bands.
    #[arg(long)]
    short: bool,
    /// Milliseconds before messages count.
    #[arg(long, default_value_t = 10)]
    warm_up: u64,
    /// Milliseconds that count.
    #[arg(long, default_value_t = 50)]
    measured: u64,
    /// Only the small cases.
    #[arg(long)]
    small: bool,
    /// Runs of a small case with different seeds.
    #[arg(long, default_value_t = 20)]
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
    let mut score = small_cases(&anchors.small, options.seeds);
    if options.small {
        return Ok(score);
    }
    let (warm_up, measured, wider) = if options.short {
        (4, 4, 2.0)
    } else {
        (options.warm_up, options.measured, 1.0)
    };
    for anchor in &anchors.cluster {
        if options.short && anchor.load > 0.3 {
            continue;
        }
        let cluster = Cluster {
            warm_up: warm_up * MS,
            measured: measured * MS,
            ..Cluster::paper(anchor.traffic, anchor.load)
        };
        cluster_case(&mut score, anchor, &cluster, wider);
    }
    if !options.short {
        bursts(&mut score, &anchors, warm_up, measured);
    }
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

/// The bucket at a size percentile: at a boundary of two buckets, the mean of both.
pub fn at_percentiles(buckets: &[Bucket], value: fn(&Bucket) -> f64) -> [f64; 5] {
    let mean = |a: usize, b: usize| (value(&buckets[a]) + value(&buckets[b])) / 2.0;
    [
        mean(0, 0),
        mean(9, 10),
        mean(13, 14),
        mean(17, 18),
        mean(19, 19),
    ]
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
    type Row = (&'static str, fn(&Bucket) -> f64, [f64; 5], f64);
    let rows: [Row; 3] = [
        ("p50", |b| b.p50, anchor.p50, 0.10),
        ("p95", |b| b.p95, anchor.p95, 0.15),
        ("p99", |b| b.p99, anchor.p99, 0.20),
    ];
    for (name, value, published, band) in rows {
        let mut row = vec![name.to_owned()];
        for (got, want) in at_percentiles(&summary.buckets, value)
            .into_iter()
            .zip(published)
        {
            row.push(score.check(got, want, want * band * wider, 2));
        }
        table.add_row(row);
    }
    println!("{table}");
    println!(
        "{} messages, {} incomplete, pause {:.2} %, drops {}, {:.0} packets per second\n",
        summary.messages,
        summary.incomplete,
        summary.pause,
        summary.counters.drops,
        summary.counters.data as f64 / summary.elapsed.as_secs_f64()
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
            ..Cluster::paper(crate::cluster::Traffic::FbHadoop, 0.3)
        };
        let summary = cluster.run(anchor.scheme.reference(), anchor.scheme.name());
        let mut row = vec![anchor.scheme.name().to_owned()];
        for (bytes, want) in [1_000, 7_000, 120_000, 10_000_000]
            .into_iter()
            .zip(anchor.p95)
        {
            let bucket = summary
                .buckets
                .iter()
                .find(|b| b.bytes >= bytes)
                .or(summary.buckets.last());
            row.push(score.check(bucket.map_or(f64::NAN, |b| b.p95), want, want * 0.15, 2));
        }
        row.push(score.check(summary.pause, anchor.pause, 0.5, 2));
        table.add_row(row);
    }
    println!("{table}\n");
}
