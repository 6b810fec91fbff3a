// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `qiao-sim run`: any workload on any topology.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{ensure, Result};
use clap::{value_parser, ValueEnum};
use serde::Serialize;

use crate::collective::{ring, tree, Collective};
use crate::queue::Time;
use crate::scheme::Scheme;
use crate::stats::{jain, quantile};
use crate::topo::Topology;
use crate::workload::{self, Message};
use crate::world::{Config, World};

/// Largest message, and most steps of a ring.
const MOST_BYTES: u64 = 1 << 40;
const MOST_STEPS: u64 = 1 << 20;
/// Most messages of an all-to-all.
const MOST_PAIRS: u64 = 1 << 24;

/// Longest run.
const LIMIT: Time = 10_000_000_000_000;

/// Who sends to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Workload {
    /// All hosts to the last one.
    Incast,
    /// Every host to one other.
    Permutation,
    /// Every host to every other.
    AllToAll,
    /// Ring all-reduce in the order of hosts.
    Ring,
    /// All-reduce over a binary tree.
    Tree,
}

/// Built-in topologies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shape {
    /// Sixteen hosts on one switch.
    Single,
    /// 320 hosts, the fat-tree of the HPCC paper.
    FatTree,
    /// 72 hosts in nine groups of four routers.
    Dragonfly,
}

/// What to run.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Algorithm.
    #[arg(value_enum)]
    scheme: Scheme,
    /// Who sends to whom.
    #[arg(value_enum)]
    workload: Workload,
    /// Topology.
    #[arg(long, value_enum, default_value = "single")]
    topology: Shape,
    /// Instead: the topology of a TOML file with `hosts`, `switches` and `[[links]]`.
    #[arg(long)]
    file: Option<PathBuf>,
    /// Bytes of each message, or of the vector of an all-reduce.
    #[arg(long, default_value_t = 1_000_000, value_parser = value_parser!(u64).range(1..=MOST_BYTES))]
    bytes: u64,
    /// Steps of the ring; a whole all-reduce if it is not given.
    #[arg(long, value_parser = value_parser!(u64).range(1..=MOST_STEPS))]
    steps: Option<u64>,
    /// Switches take the shortest queue of all shortest paths, per packet; needs --selective.
    #[arg(long, requires = "selective")]
    adaptive: bool,
    /// Selective repeat instead of go-back-N.
    #[arg(long)]
    selective: bool,
    /// Share of data packets that are lost.
    #[arg(long, default_value_t = 0.0)]
    loss: f64,
    /// Microseconds between two notifications of a flow; 0 notifies with every marked packet.
    #[arg(long, default_value_t = 0, value_parser = value_parser!(u64).range(..=1_000_000))]
    notify_us: u64,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print CSV instead of JSON.
    #[arg(long)]
    csv: bool,
}

/// What came out.
#[derive(Clone, Copy, Debug, Serialize)]
struct Outcome {
    messages: usize,
    incomplete: usize,
    /// Until the last message was complete, in microseconds.
    makespan_us: f64,
    /// Payload of all over what all hosts' links carry in that time, in percent.
    goodput: f64,
    jain: f64,
    fct_p50_us: f64,
    fct_p99_us: f64,
    pauses: u64,
    drops: u64,
    lost: u64,
    resent: u64,
    timeouts: u64,
    notifications: u64,
}

impl Options {
    fn topology(&self) -> Result<Topology> {
        match (&self.file, self.topology) {
            (Some(path), _) => Topology::from_file(path),
            (None, Shape::Single) => Ok(Topology::single(16, 100, 1000)),
            (None, Shape::FatTree) => Ok(Topology::fat_tree(5, 4, 16, 100, 400)),
            (None, Shape::Dragonfly) => Ok(Topology::dragonfly(9, 4, 2, 100)),
        }
    }

    fn config(&self) -> Config {
        Config {
            adaptive: self.adaptive,
            selective: self.selective,
            loss: self.loss,
            notify_interval: self.notify_us * 1_000_000,
            ..self.scheme.reference()
        }
    }

    fn messages(&self, hosts: u32) -> (Vec<Message>, Option<Collective>) {
        let count = u64::from(hosts);
        let of_collective = |(messages, collective)| (messages, Some(collective));
        match self.workload {
            Workload::Incast => (workload::incast(hosts - 1, self.bytes), None),
            Workload::Permutation => (workload::permutation(hosts, self.bytes, self.seed), None),
            Workload::AllToAll => (workload::all_to_all(hosts, self.bytes), None),
            Workload::Ring => {
                let order: Vec<u32> = (0..hosts).collect();
                let chunk = (self.bytes / count).max(1);
                let steps = self.steps.unwrap_or(2 * (count - 1));
                of_collective(ring(&order, chunk, (chunk / 8).max(1), steps))
            }
            Workload::Tree => of_collective(tree(hosts, self.bytes, (self.bytes / 64).max(1))),
        }
    }
}

/// Runs and prints.
pub fn run(options: Options) -> Result<ExitCode> {
    ensure!(
        (0.0..1.0).contains(&options.loss),
        "--loss is a share below 1"
    );
    let topology = options.topology()?;
    let pairs = u64::from(topology.hosts).pow(2);
    ensure!(
        options.workload != Workload::AllToAll || pairs <= MOST_PAIRS,
        "all-to-all of so many hosts does not fit into memory"
    );
    let (messages, collective) = options.messages(topology.hosts);
    ensure!(
        messages.iter().all(|message| message.bytes <= MOST_BYTES),
        "a message has at most {MOST_BYTES} bytes"
    );
    let total = messages.len();
    let traffic = Box::new(messages.into_iter());
    let mut world = World::new(&topology, options.config(), traffic, options.seed);
    world.collective = collective;
    world.run(LIMIT);
    let outcome = sum_up(&world, total);
    if options.csv {
        print!("{}", csv(&outcome)?);
    } else {
        println!("{}", serde_json::to_string(&outcome)?);
    }
    Ok(if outcome.incomplete == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn sum_up(world: &World, total: usize) -> Outcome {
    let done = &world.done;
    let mut fct: Vec<Time> = done.iter().map(|done| done.fct).collect();
    fct.sort_unstable();
    let rate = |done: &crate::world::Done| done.message.bytes as f64 / done.fct as f64;
    let rates: Vec<f64> = done.iter().map(rate).collect();
    let bytes: u64 = done.iter().map(|done| done.message.bytes).sum();
    let link = |host: &crate::host::Host| 1.0 / world.ports[host.port as usize].byte_ps as f64;
    let capacity: f64 = world.hosts.iter().map(link).sum();
    let last = fct.last().copied().unwrap_or(LIMIT) as f64;
    let us = |q| quantile(&fct, q) as f64 / 1e6;
    Outcome {
        messages: total,
        incomplete: total - done.len(),
        makespan_us: last / 1e6,
        goodput: 100.0 * bytes as f64 / last / capacity,
        jain: jain(&rates),
        fct_p50_us: us(0.5),
        fct_p99_us: us(0.99),
        pauses: world.counters.pauses,
        drops: world.counters.drops,
        lost: world.counters.lost,
        resent: world.counters.resent,
        timeouts: world.counters.timeouts,
        notifications: world.counters.notifications,
    }
}

/// The fields as a header and a line.
fn csv(outcome: &Outcome) -> Result<String> {
    let value = serde_json::to_value(outcome)?;
    let fields = value.as_object().into_iter().flatten();
    let (names, values): (Vec<_>, Vec<_>) = fields
        .map(|(name, value)| (name.clone(), value.to_string()))
        .unzip();
    Ok(format!("{}\n{}\n", names.join(","), values.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(topology: &Topology, config: Config, messages: Vec<Message>) -> Outcome {
        let total = messages.len();
        let mut world = World::new(topology, config, Box::new(messages.into_iter()), 1);
        world.run(LIMIT);
        sum_up(&world, total)
    }

    #[test]
    fn lost_packets_are_sent_again_and_the_selective_way_sends_fewer() {
        let topology = Topology::single(5, 100, 1000);
        let resent = [false, true].map(|selective| {
            let config = Config {
                loss: 0.001,
                selective,
                ..Scheme::Auto.reference()
            };
            let outcome = run(&topology, config, workload::incast(4, 2_000_000));
            assert_eq!(outcome.incomplete, 0);
            assert!(
                outcome.lost > 0 && outcome.resent >= outcome.lost,
                "{outcome:?}"
            );
            outcome.resent
        });
        assert!(resent[1] < resent[0], "{resent:?}");
    }

    #[test]
    fn adaptive_routing_spreads_what_a_hash_puts_on_one_path() {
        let topology = Topology::dragonfly(5, 4, 2, 100);
        let messages = workload::permutation(40, 500_000, 2);
        let config = Config {
            selective: true,
            adaptive: true,
            ..Scheme::Auto.reference()
        };
        let outcome = run(&topology, config, messages);
        assert_eq!(
            (outcome.incomplete, outcome.resent, outcome.drops),
            (0, 0, 0)
        );
    }

    #[test]
    fn a_notification_point_spares_the_path_back() {
        let topology = Topology::single(9, 100, 1000);
        let notifications = [0, 50_000_000].map(|notify_interval| {
            let config = Config {
                notify_interval,
                ..Scheme::DcqcnPaper.reference()
            };
            run(&topology, config, workload::incast(8, 2_000_000)).notifications
        });
        assert!(notifications[1] > 0 && 10 * notifications[1] < notifications[0]);
    }

    /// Every scheme on every kind of topology, with all that is random: the same bits on one thread
    /// and on two at once.
    #[test]
    fn results_do_not_depend_on_threads() {
        let topologies = [
            Topology::single(6, 100, 1000),
            Topology::dumbbell(3, 3, 100, 100, 1000),
            Topology::fat_tree(2, 2, 2, 100, 400),
            Topology::dragonfly(5, 4, 1, 400),
        ];
        let all = || {
            let mut results = Vec::new();
            for (&scheme, topology) in Scheme::value_variants()
                .iter()
                .flat_map(|scheme| topologies.iter().map(move |topology| (scheme, topology)))
            {
                for lossy in [false, true] {
                    let config = Config {
                        loss: if lossy { 0.001 } else { 0.0 },
                        selective: lossy,
                        adaptive: lossy,
                        device_acks: lossy,
                        event_loss: if lossy { 0.1 } else { 0.0 },
                        host: if lossy { 3_000_000 } else { 0 },
                        ..scheme.reference()
                    };
                    let messages = workload::incast(topology.hosts - 1, 100_000)
                        .into_iter()
                        .chain(workload::permutation(topology.hosts, 100_000, 1));
                    let outcome = run(topology, config, messages.collect());
                    assert_eq!(outcome.incomplete, 0, "{scheme:?} {outcome:?}");
                    results.push(serde_json::to_string(&outcome).unwrap());
                }
            }
            results
        };
        let alone = all();
        let both = std::thread::scope(|scope| {
            let threads = [scope.spawn(all), scope.spawn(all)];
            threads.map(|thread| thread.join().unwrap())
        });
        assert_eq!(both, [alone.clone(), alone]);
    }

    /// The window of a flow that has not asked may shrink below what is in flight.
    #[test]
    fn flows_that_ask_now_and_then_never_wait_for_what_nobody_asked() {
        let topology = Topology::single(65, 100, 1000);
        let config = Config {
            device_acks: true,
            ..Scheme::Auto.reference()
        };
        let outcome = run(&topology, config, workload::incast(64, 300_000));
        assert_eq!((outcome.incomplete, outcome.resent), (0, 0));
    }

    #[test]
    fn results_as_csv_have_a_name_for_every_value() {
        let topology = Topology::single(3, 100, 1000);
        let messages = workload::incast(2, 10_000);
        let text = csv(&run(&topology, Scheme::Auto.reference(), messages)).unwrap();
        let columns: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
        assert_eq!(columns, [13, 13]);
    }
}
