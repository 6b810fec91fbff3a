// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The goal table: what the default must reach, and what it does.

use std::process::ExitCode;

use anyhow::Result;
use comfy_table::{presets::ASCII_MARKDOWN, Table};
use serde::Serialize;

use crate::cluster::{Cluster, Summary, Traffic, MS};
use crate::micro::{Case, Outcome};
use crate::queue::Time;
use crate::scheme::Scheme;
use crate::topo::Topology;
use crate::validate::at_percentiles;
use crate::workload::Message;
use crate::world::{Config, World};

/// What to run.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// Also the rows on fat-trees, which take minutes.
    #[arg(long)]
    pub clusters: bool,
    /// Milliseconds of warm-up and of measurement on fat-trees.
    #[arg(long, default_value_t = 5)]
    pub ms: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
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
    let lines = measure(options);
    if options.json {
        println!("{}", serde_json::to_string_pretty(&lines)?);
    } else {
        println!("{}", table(&lines));
    }
    let missed = lines.iter().filter(|line| !line.met()).count();
    println!("{} numbers, {missed} miss their goal", lines.len());
    Ok(if missed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Measures all rows that there are scenarios for.
pub fn measure(options: Options) -> Vec<Line> {
    let mut lines = Lines(Vec::new());
    incasts(&mut lines);
    others(&mut lines);
    convergence(&mut lines);
    robustness(&mut lines);
    infiniband(&mut lines);
    if options.clusters {
        clusters(&mut lines, options.ms);
    }
    lines.0.sort_by_key(|line| line.row);
    lines.0
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

fn incasts(lines: &mut Lines) {
    let run = |n, scheme: Scheme| Case::Incast(n).run(scheme.reference(), 1);
    let o = run(2, Scheme::Auto);
    lines.at_least(1, "2:1 E goodput %", o.goodput, 94.0);
    lines.at_most(1, "2:1 E queue p99 KB", o.q_p99, 60.0);
    lines.at_least(1, "2:1 E Jain", o.jain, 0.99);
    let o = run(2, Scheme::AutoInt);
    lines.at_least(1, "2:1 I goodput %", o.goodput, 90.0);
    lines.at_most(1, "2:1 I queue p99 KB", o.q_p99, 20.0);
    let o = run(8, Scheme::Auto);
    lines.at_least(2, "8:1 E goodput %", o.goodput, 94.0);
    lines.at_most(2, "8:1 E queue p99 KB", o.q_p99, 200.0);
    lines.at_most(2, "8:1 E pauses", o.pauses as f64, 0.0);
    let o = run(8, Scheme::AutoInt);
    lines.at_least(2, "8:1 I goodput %", o.goodput, 90.0);
    lines.at_most(2, "8:1 I queue p99 KB", o.q_p99, 83.0);
    let o = run(64, Scheme::Auto);
    lines.at_least(3, "64:1 E goodput %", o.goodput, 94.0);
    lines.at_most(3, "64:1 E queue p95 KB", o.q_p95, 400.0);
    lines.at_most(3, "64:1 E queue max KB", o.q_max, 3500.0);
    lines.at_most(
        3,
        "64:1 E slowest over fastest",
        o.fct_max / o.fct_min,
        1.15,
    );
    lines.at_least(3, "64:1 E Jain", o.jain, 0.995);
    lines.at_most(
        3,
        "64:1 E pauses and drops",
        (o.pauses + o.drops) as f64,
        0.0,
    );
    graceful(lines);
}

/// Row 4: from 64 to 1024 senders, spread over a fat-tree so that no switch has 1025 ports.
fn graceful(lines: &mut Lines) {
    let mut last = f64::NAN;
    for fan_in in [64u32, 128, 256, 512, 1024] {
        let o = wide_incast(fan_in, Scheme::Auto.reference());
        lines.at_least(4, &format!("{fan_in}:1 E goodput %"), o.goodput, 90.0);
        lines.at_most(4, &format!("{fan_in}:1 E pauses"), o.pauses as f64, 0.0);
        if !last.is_nan() {
            lines.at_most(
                4,
                &format!("{fan_in}:1 E points lost by doubling"),
                last - o.goodput,
                2.0,
            );
        }
        last = o.goodput;
    }
}

/// `fan_in` hosts of a fat-tree with 1,280 hosts send 1 MB each to its last host.
fn wide_incast(fan_in: u32, config: Config) -> Outcome {
    let topology = Topology::fat_tree(10, 8, 16, 100, 400);
    let dst = topology.hosts - 1;
    let message = |i| Message {
        start: 0,
        src: i * (dst / fan_in),
        dst,
        bytes: 1_000_000,
        tag: 0,
    };
    let messages: Vec<_> = (0..fan_in).map(message).collect();
    Case::Incast(fan_in).run_on(&topology, messages, dst, config, 1)
}

fn others(lines: &mut Lines) {
    for hosts in [16, 128] {
        let o = Case::AllToAll(hosts).run(Scheme::Auto.reference(), 1);
        lines.at_least(
            5,
            &format!("all-to-all {hosts} E % of ideal"),
            o.goodput,
            91.0,
        );
        lines.at_least(5, &format!("all-to-all {hosts} E Jain"), o.jain, 0.99);
    }
    let o = Case::Victim.run(Scheme::Auto.reference(), 1);
    lines.at_least(7, "victim E % of its link", o.victim, 94.0);
    lines.at_most(7, "victim E incast makespan ms", o.fct_max / 1000.0, 5.1);
}

/// Row 9: one flow alone, a second one joins, and leaves again.
fn convergence(lines: &mut Lines) {
    for (mode, scheme, leave) in [
        ("E", Scheme::Auto, 30.0),
        ("D", Scheme::AutoDelay, 10.0),
        ("I", Scheme::AutoInt, 3.0),
    ] {
        let (join, left) = join_and_leave(scheme.reference());
        lines.at_most(
            9,
            &format!("join {mode} RTT to within 20 % of fair"),
            join,
            20.0,
        );
        lines.at_most(
            9,
            &format!("leave {mode} RTT to 90 % of the freed rate"),
            left,
            leave,
        );
    }
}

/// Round trips until both flows stay within 20 % of fair for ten round trips after one joins, and
/// until the other has 90 % of what it had alone for three after it leaves.
pub fn join_and_leave(config: Config) -> (f64, f64) {
    let topology = Topology::single(3, 100, 1000);
    let message = |src, start, bytes| Message {
        start,
        src,
        dst: 2,
        bytes,
        tag: src as u8,
    };
    let messages = vec![message(0, 0, 40_000_000), message(1, MS, 6_000_000)];
    let mut world = World::new(&topology, config, Box::new(messages.into_iter()), 1);
    let rtt = world.base_rtt(0, 2);
    let mut acked: Vec<[u64; 2]> = Vec::new();
    let mut left = None;
    let mut at: Time = 0;
    while at < 3 * MS {
        at += rtt;
        world.run(at);
        let second = if world.flows.len() > 1 {
            world.acked(1)
        } else {
            0
        };
        acked.push([world.acked(0), second]);
        if left.is_none() && !world.done.is_empty() {
            left = Some(acked.len());
        }
    }
    let rate = |i: usize, span: usize, flow: usize| {
        (acked[i + span][flow].saturating_sub(acked[i][flow])) as f64 / span as f64
    };
    let joined = (MS / rtt) as usize;
    let alone = rate(joined - 60, 50, 0);
    let fair = |i: &usize| {
        let (a, b) = (rate(*i, 10, 0), rate(*i, 10, 1));
        (a - b).abs() <= 0.2 * (a + b) && a + b >= 0.8 * alone
    };
    let until = left.unwrap_or(acked.len()) - 11;
    let join = (joined..until)
        .find(fair)
        .map_or(f64::INFINITY, |i| (i - joined) as f64);
    let left = left.unwrap_or(acked.len() - 4);
    let full = |i: &usize| rate(*i, 3, 0) >= 0.9 * alone;
    let leave = (left..acked.len() - 4)
        .find(full)
        .map_or(f64::INFINITY, |i| (i - left) as f64);
    (join, leave)
}

/// Row 15: the host is late, stalls or misses events.
fn robustness(lines: &mut Lines) {
    const US: Time = 1_000_000;
    let base = Config {
        host: 6 * US,
        ..Scheme::Auto.reference()
    };
    let run = |config| Case::Incast(8).run(config, 1);
    let prompt = run(base);
    lines.at_least(
        15,
        "8:1 E goodput % with 6 us of host latency",
        prompt.goodput,
        94.0,
    );
    for loss in [0.01, 0.1] {
        let o = run(Config {
            event_loss: loss,
            ..base
        });
        let what = format!("8:1 E points lost at {:.0} % event loss", 100.0 * loss);
        lines.at_most(15, &what, prompt.goodput - o.goodput, 3.0);
    }
    for stall in [20, 100, 1000] {
        let o = run(Config {
            stall: Some((US * 300, stall * US)),
            ..base
        });
        lines.at_most(
            15,
            &format!("8:1 E points lost by a stall of {stall} us"),
            prompt.goodput - o.goodput,
            3.0,
        );
        lines.at_most(
            15,
            &format!("8:1 E pauses at a stall of {stall} us"),
            o.pauses as f64,
            0.0,
        );
    }
}

/// Row 14 in part: incasts and a victim on native InfiniBand.
fn infiniband(lines: &mut Lines) {
    for fan_in in [2, 8, 64] {
        let o = Case::Incast(fan_in).run(Scheme::IbAuto.reference(), 1);
        lines.at_least(14, &format!("{fan_in}:1 IB goodput %"), o.goodput, 94.0);
        lines.at_least(14, &format!("{fan_in}:1 IB Jain"), o.jain, 0.95);
    }
    let o = Case::Victim.run(Scheme::IbAuto.reference(), 1);
    lines.at_least(14, "IB victim % of its link, auto", o.victim, 90.0);
    let o = Case::Victim.run(Scheme::IbCca.reference(), 1);
    lines.at_least(
        14,
        "IB victim % of its link, annex A10 example values",
        o.victim,
        90.0,
    );
}

fn clusters(lines: &mut Lines, ms: u64) {
    let run = |scheme: Scheme, traffic, load, incast| {
        let cluster = Cluster {
            incast,
            warm_up: ms * MS,
            measured: ms * MS,
            ..Cluster::paper(traffic, load)
        };
        cluster.run(scheme.reference(), scheme.name())
    };
    let long = |s: &Summary| at_percentiles(&s.buckets, |b| b.p99)[3];
    for (traffic, load, small, dcqcn) in [
        (Traffic::WebSearch, 0.3, 3.0, 5.05),
        (Traffic::WebSearch, 0.5, 4.5, 9.82),
        (Traffic::FbHadoop, 0.3, 3.0, 3.56),
        (Traffic::FbHadoop, 0.5, 4.5, 5.84),
    ] {
        let s = run(Scheme::Auto, traffic, load, 0.0);
        let name = format!("{} {:.0} % E", traffic.name(), 100.0 * load);
        lines.at_most(10, &format!("{name} small p99"), s.small_p99, small);
        lines.at_most(
            10,
            &format!("{name} long (90 %) p99"),
            long(&s),
            1.05 * dcqcn,
        );
        lines.at_most(10, &format!("{name} pause %"), s.pause, 0.0);
    }
    let s = run(Scheme::AutoInt, Traffic::FbHadoop, 0.5, 0.0);
    lines.at_most(10, "FB_Hadoop 50 % I small p99", s.small_p99, 1.05 * 2.68);
    lines.at_most(
        10,
        "FB_Hadoop 50 % I long (90 %) p99",
        long(&s),
        1.15 * 5.84,
    );
    let s = run(Scheme::Auto, Traffic::FbHadoop, 0.3, 0.02);
    lines.at_most(11, "60:1 and 30 % E small p95", s.small_p95, 3.0);
    lines.at_most(11, "60:1 and 30 % E pause %", s.pause, 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows 1 to 3, 5 and 7, 9 of the default without telemetry must hold.
    #[test]
    fn the_default_holds_what_the_documentation_says() {
        let mut lines = Lines(Vec::new());
        let o = Case::Incast(64).run(Scheme::Auto.reference(), 1);
        lines.at_least(3, "64:1 goodput", o.goodput, 94.0);
        lines.at_least(3, "64:1 Jain", o.jain, 0.995);
        let o = Case::Victim.run(Scheme::Auto.reference(), 1);
        lines.at_least(7, "victim", o.victim, 94.0);
        let (join, leave) = join_and_leave(Scheme::Auto.reference());
        lines.at_most(9, "join", join, 20.0);
        lines.at_most(9, "leave", leave, 30.0);
        for line in &lines.0 {
            assert!(line.met(), "{line:?}");
        }
    }

    #[test]
    fn flow_control_alone_starves_a_victim() {
        let ethernet = Case::Victim.run(Scheme::Off.reference(), 1);
        assert!(ethernet.victim < 45.0 && ethernet.pauses > 0 && ethernet.drops == 0);
        let infiniband = Case::Victim.run(Scheme::IbOff.reference(), 1);
        assert!(infiniband.victim < 45.0 && infiniband.drops == 0);
    }
}
