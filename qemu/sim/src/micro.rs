// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Small scenarios: incast, victim, all-to-all.

use std::process::ExitCode;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::queue::Time;
use crate::scheme::Scheme;
use crate::stats::{jain, quantile};
use crate::topo::Topology;
use crate::workload::{self, Message};
use crate::world::{Config, World};

/// How often a queue is looked at.
const SAMPLE: Time = 100_000;
/// Longest run.
const LIMIT: Time = 200_000_000_000;

/// A small scenario with links of 1 us.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Case {
    /// Senders with 5 MB each to one receiver, at 100 Gb/s; at others as much more.
    Incast(u32),
    /// Three senders to X; the victim shares a 400G trunk with them on the way to idle Y.
    Victim,
    /// Hosts with 1 MB for each other one.
    AllToAll(u32),
}

/// What came out.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Outcome {
    /// Payload over what the links of the receivers can carry, in percent.
    pub goodput: f64,
    /// Fairness of the flows' throughput.
    pub jain: f64,
    /// Completion times in microseconds.
    pub fct_min: f64,
    /// Median.
    pub fct_med: f64,
    /// Last.
    pub fct_max: f64,
    /// Queue at the receiver in KB.
    pub q_p50: f64,
    /// 95 %.
    pub q_p95: f64,
    /// 99 %.
    pub q_p99: f64,
    /// Peak.
    pub q_max: f64,
    /// Pause frames.
    pub pauses: u64,
    /// Throughput of the victim in percent of its link.
    pub victim: f64,
    /// Dropped packets.
    pub drops: u64,
    /// Packets sent again, in percent of those that had to be sent.
    pub resent: f64,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Incast(fan_in) => write!(f, "{fan_in}:1"),
            Self::Victim => write!(f, "victim"),
            Self::AllToAll(hosts) => write!(f, "all-to-all {hosts}"),
        }
    }
}

impl Case {
    /// Topology, traffic and the host whose queue is watched.
    pub fn build(self, gbps: u32) -> (Topology, Vec<Message>, u32) {
        let bytes = |at_100| at_100 * u64::from(gbps) / 100;
        match self {
            Self::Incast(fan_in) => {
                let topology = Topology::single(fan_in + 1, gbps, 1000);
                (topology, workload::incast(fan_in, bytes(5_000_000)), fan_in)
            }
            Self::Victim => {
                // Hosts 0..=2 send to 4 (X), host 3 to 5 (Y).
                let topology = Topology::dumbbell(4, 2, gbps, 4 * gbps, 1000);
                let message = |src, dst, bytes, tag| Message {
                    start: 0,
                    src,
                    dst,
                    bytes,
                    tag,
                };
                let mut messages: Vec<_> = (0..3)
                    .map(|src| message(src, 4, bytes(20_000_000), 0))
                    .collect();
                messages.push(message(3, 5, bytes(20_000_000), 1));
                (topology, messages, 4)
            }
            Self::AllToAll(hosts) => (
                Topology::single(hosts, gbps, 1000),
                workload::all_to_all(hosts, bytes(1_000_000)),
                0,
            ),
        }
    }

    /// Runs it at 100 Gb/s.
    pub fn run(self, config: Config, seed: u64) -> Outcome {
        self.run_at(100, config, seed)
    }

    /// Runs it at `gbps`.
    pub fn run_at(self, gbps: u32, config: Config, seed: u64) -> Outcome {
        let (topology, messages, watched) = self.build(gbps);
        self.run_on(&topology, messages, watched, config, seed)
    }

    /// Runs other messages on another topology, and watches the queue before one host.
    pub fn run_on(
        self,
        topology: &Topology,
        messages: Vec<Message>,
        watched: u32,
        config: Config,
        seed: u64,
    ) -> Outcome {
        let total = messages.len();
        let mut world = World::new(topology, config, Box::new(messages.into_iter()), seed);
        let port = world.ports[world.hosts[watched as usize].port as usize].peer as usize;
        let mut queue = Vec::new();
        let mut at = 0;
        while world.done.len() < total && at < LIMIT {
            world.run(at);
            queue.push(world.ports[port].data_bytes);
            at += SAMPLE;
        }
        self.sum_up(&world, queue, total)
    }

    fn sum_up(self, world: &World, mut queue: Vec<u64>, total: usize) -> Outcome {
        let receivers = if let Self::AllToAll(hosts) = self {
            f64::from(hosts)
        } else {
            1.0
        };
        // Picoseconds per byte, so that payload over time is a share of the link.
        let byte_ps = world.ports[world.hosts[0].port as usize].byte_ps as f64;
        let main: Vec<_> = world
            .done
            .iter()
            .filter(|done| done.message.tag == 0)
            .collect();
        let mut fct: Vec<Time> = main.iter().map(|done| done.fct).collect();
        fct.sort_unstable();
        let bytes: u64 = main.iter().map(|done| done.message.bytes).sum();
        let last = fct.last().copied().unwrap_or(LIMIT);
        let rates: Vec<f64> = main
            .iter()
            .map(|done| done.message.bytes as f64 / done.fct as f64)
            .collect();
        queue.sort_unstable();
        let kb = |q| quantile(&queue, q) as f64 / 1000.0;
        let us = |q| quantile(&fct, q) as f64 / 1e6;
        let victim = world.done.iter().find(|done| done.message.tag == 1);
        let complete = world.done.len() == total;
        Outcome {
            goodput: if complete {
                100.0 * bytes as f64 * byte_ps / last as f64 / receivers
            } else {
                0.0
            },
            jain: jain(&rates),
            fct_min: us(0.0),
            fct_med: us(0.5),
            fct_max: us(1.0),
            q_p50: kb(0.5),
            q_p95: kb(0.95),
            q_p99: kb(0.99),
            q_max: kb(1.0),
            pauses: world.counters.pauses,
            victim: victim.map_or(0.0, |done| {
                100.0 * done.message.bytes as f64 * byte_ps / done.fct as f64
            }),
            drops: world.counters.drops,
            resent: 100.0 * world.counters.resent as f64 / (world.counters.data as f64).max(1.0),
        }
    }
}

/// Small cases from the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Algorithm.
    #[arg(value_enum)]
    scheme: Scheme,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Switches take the shortest queue of all shortest paths, per packet.
    #[arg(long)]
    adaptive: bool,
}

/// Runs all small cases with one algorithm and prints one JSON object per line.
pub fn command(options: Options) -> Result<ExitCode> {
    let config = Config {
        adaptive: options.adaptive,
        ..options.scheme.reference()
    };
    let incasts = [2, 8, 64, 256].map(Case::Incast);
    for case in incasts
        .into_iter()
        .chain([Case::Victim, Case::AllToAll(16)])
    {
        let outcome = case.run(config, options.seed);
        println!("{case} {}", serde_json::to_string(&outcome)?);
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheme::Scheme;

    /// Runs are alone in their thread, so neither the number of threads nor other runs matter.
    #[test]
    fn the_same_seed_gives_the_same_bits_on_one_and_on_two_threads() {
        let run = || {
            let outcome = Case::Incast(8).run(Scheme::Dcqcn.reference(), 5);
            serde_json::to_string(&outcome).unwrap()
        };
        let alone = run();
        let both = std::thread::scope(|scope| {
            let threads = [scope.spawn(run), scope.spawn(run)];
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(both, [alone.clone(), alone]);
    }
}
