// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Open-loop traffic on a fat-tree.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{ensure, Result};
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::cpu;
use crate::queue::Time;
use crate::scheme::Scheme;
use crate::stats::{quantile, slowdown, Slowdowns};
use crate::topo::Topology;
use crate::workload::{incasts, Message, Poisson, Sizes, FB_HADOOP, WEB_SEARCH};
use crate::world::{Config, Counters, Done, World};

/// A millisecond.
pub const MS: Time = 1_000_000_000;

/// Flow sizes by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// Web search.
    WebSearch,
    /// Facebook Hadoop.
    FbHadoop,
}

impl Traffic {
    /// The name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::WebSearch => "WebSearch",
            Self::FbHadoop => "FB_Hadoop",
        }
    }

    fn sizes(self) -> &'static Sizes {
        match self {
            Self::WebSearch => &WEB_SEARCH,
            Self::FbHadoop => &FB_HADOOP,
        }
    }
}

/// An open-loop experiment.
#[derive(Clone, Copy, Debug)]
pub struct Cluster {
    /// Pods of four leaves with 16 hosts each.
    pub pods: u32,
    /// Leaves per pod.
    pub width: u32,
    /// Flow sizes.
    pub traffic: Traffic,
    /// Payload load of the hosts' links.
    pub load: f64,
    /// Additional load by incasts of 500 KB from each sender.
    pub incast: f64,
    /// Senders of an incast.
    pub fan_in: u32,
    /// Time before messages count.
    pub warm_up: Time,
    /// Time in which the messages that count start.
    pub measured: Time,
    /// Seed.
    pub seed: u64,
}

/// What came out.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// Slowdowns by size.
    #[serde(skip)]
    pub slowdowns: Slowdowns,
    /// Messages that count.
    pub messages: usize,
    /// Messages that should count but were not complete at the end.
    pub incomplete: usize,
    /// Slowdown of messages up to 10 KB.
    pub small_p95: f64,
    /// The same.
    pub small_p99: f64,
    /// Share of port time in pause, in percent.
    pub pause: f64,
    /// Queue of the ports to hosts in KB.
    pub q_p99: f64,
    /// Longest queue in KB.
    pub q_max: f64,
    /// Counters.
    #[serde(skip)]
    pub counters: Counters,
    /// CPU time of the run.
    #[serde(skip)]
    pub cpu: Duration,
    /// Events.
    pub events: u64,
}

impl Cluster {
    /// The fabric of the HPCC paper.
    pub fn paper(traffic: Traffic, load: f64) -> Self {
        Self {
            pods: 5,
            width: 4,
            traffic,
            load,
            incast: 0.0,
            fan_in: 60,
            warm_up: 5 * MS,
            measured: 5 * MS,
            seed: 1,
        }
    }

    /// Runs it, with a progress bar of simulated time.
    ///
    /// Messages that started late get as much time again to end under unchanged load.
    pub fn run(&self, config: Config, label: &str) -> Summary {
        self.run_for(config, label, self.measured)
    }

    /// Runs it for at most `tail` longer than messages count.
    pub fn run_for(&self, config: Config, label: &str, tail: Time) -> Summary {
        let started = cpu::time();
        let topology = Topology::fat_tree(self.pods, self.width, 16, 100, 400);
        let until = self.warm_up + self.measured;
        let traffic = self.messages(topology.hosts, until + tail);
        let mut world = World::new(&topology, config, traffic, self.seed);
        let bar = progress((until + tail) / MS, label);
        let mut queues = Vec::new();
        let step = MS / 20;
        let to_hosts: Vec<usize> = world
            .hosts
            .iter()
            .map(|host| world.ports[host.port as usize].peer as usize)
            .collect();
        let mut at = 0;
        let counts = |message: &Message| (self.warm_up..until).contains(&message.start);
        let mut due = self.messages(topology.hosts, until).filter(counts).count();
        while at < until + tail {
            at += step;
            world.run(at);
            if at > self.warm_up && at <= until {
                queues.extend(to_hosts.iter().map(|&port| world.ports[port].data_bytes));
            }
            bar.set_position(at / MS);
            if at >= until
                && world
                    .done
                    .iter()
                    .filter(|done| counts(&done.message))
                    .count()
                    == due
            {
                break;
            }
        }
        bar.finish_and_clear();
        let done: Vec<_> = world
            .done
            .iter()
            .copied()
            .filter(|done| counts(&done.message))
            .collect();
        due -= done.len();
        let normal: Vec<_> = done
            .iter()
            .copied()
            .filter(|done| done.message.tag == 0)
            .collect();
        let small = small_slowdowns(&normal);
        queues.sort_unstable();
        Summary {
            slowdowns: Slowdowns::new(&normal),
            messages: done.len(),
            incomplete: due,
            small_p95: quantile(&small, 0.95),
            small_p99: quantile(&small, 0.99),
            pause: 100.0 * world.pause_share(),
            q_p99: quantile(&queues, 0.99) as f64 / 1000.0,
            q_max: quantile(&queues, 1.0) as f64 / 1000.0,
            counters: world.counters,
            cpu: cpu::time() - started,
            events: world.events.popped(),
        }
    }

    fn messages(&self, hosts: u32, until: Time) -> Box<dyn Iterator<Item = Message>> {
        let base = Poisson::new(
            self.traffic.sizes(),
            hosts,
            100,
            self.load,
            until,
            self.seed,
        );
        if self.incast == 0.0 {
            return Box::new(base);
        }
        let bursts = incasts(
            hosts,
            100,
            self.incast,
            self.fan_in,
            500_000,
            until,
            self.seed,
        );
        Box::new(merge(base, bursts))
    }
}

/// Slowdowns of the messages up to 10 KB, sorted.
pub fn small_slowdowns(done: &[Done]) -> Vec<f64> {
    let is_small = |done: &&Done| done.message.bytes <= 10_000;
    let mut small: Vec<f64> = done.iter().filter(is_small).map(slowdown).collect();
    small.sort_by(f64::total_cmp);
    small
}

/// Two sequences in time order as one.
fn merge(
    base: impl Iterator<Item = Message>,
    extra: Vec<Message>,
) -> impl Iterator<Item = Message> {
    let mut base = base.peekable();
    let mut extra = extra.into_iter().peekable();
    std::iter::from_fn(move || match (base.peek(), extra.peek()) {
        (Some(a), Some(b)) if b.start < a.start => extra.next(),
        (None, _) => extra.next(),
        _ => base.next(),
    })
}

fn progress(length: u64, label: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template("{msg:40} {bar:30} {pos}/{len} ms simulated, {eta} left");
    let bar = ProgressBar::new(length).with_message(label.to_owned());
    match style {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// Longest run.
pub const MOST_MS: u64 = 10_000;

/// A load from the command line. What is offered beyond a whole link waits for ever.
pub fn load(text: &str) -> Result<f64> {
    let load: f64 = text.parse()?;
    ensure!((0.0..=1.0).contains(&load), "a load is from 0 to 1");
    Ok(load)
}

/// An open-loop run from the command line.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Options {
    /// Algorithm.
    #[arg(value_enum)]
    scheme: Scheme,
    /// Flow sizes.
    #[arg(value_enum)]
    traffic: Traffic,
    /// Payload load of the hosts' links.
    #[arg(long, default_value_t = 0.3, value_parser = load)]
    load: f64,
    /// Additional load by 60:1 incasts.
    #[arg(long, default_value_t = 0.0, value_parser = load)]
    incast: f64,
    /// Milliseconds before messages count.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(..=MOST_MS))]
    warm_up: u64,
    /// Milliseconds that count.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=MOST_MS))]
    measured: u64,
    /// Parts with as many messages each, by size. Published curves have 100.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u8).range(1..=100))]
    parts: u8,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs and prints the buckets, and the summary as JSON.
pub fn command(options: Options) -> Result<ExitCode> {
    let cluster = Cluster {
        incast: options.incast,
        warm_up: options.warm_up * MS,
        measured: options.measured * MS,
        seed: options.seed,
        ..Cluster::paper(options.traffic, options.load)
    };
    let summary = cluster.run(options.scheme.reference(), options.scheme.name());
    println!("bytes,p50,p95,p99");
    for bucket in summary.slowdowns.parts(options.parts.into()) {
        println!(
            "{},{:.2},{:.2},{:.2}",
            bucket.bytes, bucket.p50, bucket.p95, bucket.p99
        );
    }
    println!("{}", serde_json::to_string(&summary)?);
    Ok(ExitCode::SUCCESS)
}
