// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Traffic.

use rand_xoshiro::rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::queue::Time;

/// A message from host to host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// When it is posted.
    pub start: Time,
    /// Sender.
    pub src: u32,
    /// Receiver.
    pub dst: u32,
    /// Payload bytes.
    pub bytes: u64,
    /// Group in the statistics.
    pub tag: u8,
}

/// A flow-size distribution: piecewise linear between (bytes, cumulative percent).
pub struct Sizes(&'static [(f64, f64)]);

/// Sizes of a web search cluster (DCTCP paper; points as in the HPCC artifact).
pub const WEB_SEARCH: Sizes = Sizes(&[
    (0.0, 0.0),
    (10e3, 15.0),
    (20e3, 20.0),
    (30e3, 30.0),
    (50e3, 40.0),
    (80e3, 53.0),
    (200e3, 60.0),
    (1e6, 70.0),
    (2e6, 80.0),
    (5e6, 90.0),
    (10e6, 97.0),
    (30e6, 100.0),
]);

/// Sizes of a Facebook Hadoop cluster (SIGCOMM'15; points as in the HPCC artifact).
pub const FB_HADOOP: Sizes = Sizes(&[
    (0.0, 0.0),
    (100.0, 1.0),
    (200.0, 2.0),
    (300.0, 5.0),
    (350.0, 15.0),
    (400.0, 20.0),
    (500.0, 30.0),
    (600.0, 40.0),
    (700.0, 50.0),
    (1e3, 60.0),
    (2e3, 67.0),
    (7e3, 70.0),
    (30e3, 72.0),
    (50e3, 82.0),
    (80e3, 87.0),
    (120e3, 90.0),
    (300e3, 95.0),
    (1e6, 97.5),
    (2e6, 99.0),
    (10e6, 100.0),
]);

impl Sizes {
    /// Mean size in bytes.
    pub fn mean(&self) -> f64 {
        let area = |w: &[(f64, f64)]| (w[0].0 + w[1].0) / 2.0 * (w[1].1 - w[0].1);
        self.0.windows(2).map(area).sum::<f64>() / 100.0
    }

    /// A size; `uniform` in 0..1.
    fn sample(&self, uniform: f64) -> u64 {
        let percent = uniform * 100.0;
        let piece = self.0.windows(2).find(|w| percent <= w[1].1);
        let size = piece.map_or(1.0, |w| {
            w[0].0 + (w[1].0 - w[0].0) / (w[1].1 - w[0].1) * (percent - w[0].1)
        });
        (size as u64).max(1)
    }
}

/// A uniform number in 0..1 with 53 bits.
pub fn uniform(rng: &mut Xoshiro256PlusPlus) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// A number below `limit`.
pub fn below(rng: &mut Xoshiro256PlusPlus, limit: u32) -> u32 {
    ((u64::from(rng.next_u32()) * u64::from(limit)) >> 32) as u32
}

/// A generator with its own stream.
pub fn rng(seed: u64, stream: u64) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn exponential(rng: &mut Xoshiro256PlusPlus, mean: f64) -> f64 {
    -(1.0 - uniform(rng)).ln() * mean
}

/// Open-loop traffic of all hosts, generated as it is needed.
pub struct Poisson {
    rng: Xoshiro256PlusPlus,
    sizes: &'static Sizes,
    hosts: u32,
    gap_ps: f64,
    next: f64,
    until: Time,
}

impl Poisson {
    /// Payload `load` of each host's link of `gbps`, uniform destinations, until `until`.
    ///
    /// Independent Poisson processes of all hosts are one process whose events have a uniform host.
    pub fn new(
        sizes: &'static Sizes,
        hosts: u32,
        gbps: u32,
        load: f64,
        until: Time,
        seed: u64,
    ) -> Self {
        let per_host = sizes.mean() * 8000.0 / (f64::from(gbps) * load);
        let mut rng = rng(seed, 1);
        let gap_ps = per_host / f64::from(hosts);
        let next = exponential(&mut rng, gap_ps);
        Self {
            rng,
            sizes,
            hosts,
            gap_ps,
            next,
            until,
        }
    }
}

impl Iterator for Poisson {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        let start = self.next as Time;
        if start >= self.until {
            return None;
        }
        self.next += exponential(&mut self.rng, self.gap_ps);
        let src = below(&mut self.rng, self.hosts);
        let dst = (src + 1 + below(&mut self.rng, self.hosts - 1)) % self.hosts;
        let bytes = self.sizes.sample(uniform(&mut self.rng));
        Some(Message {
            start,
            src,
            dst,
            bytes,
            tag: 0,
        })
    }
}

/// Incasts of `fan_in` senders with `bytes` each that add `load` of all host links.
pub fn incasts(
    hosts: u32,
    gbps: u32,
    load: f64,
    fan_in: u32,
    bytes: u64,
    until: Time,
    seed: u64,
) -> Vec<Message> {
    let mut rng = rng(seed, 2);
    let volume = f64::from(fan_in) * bytes as f64;
    let gap = volume * 8000.0 / (f64::from(gbps) * load * f64::from(hosts));
    let mut messages = Vec::new();
    let mut at = exponential(&mut rng, gap);
    while (at as Time) < until {
        let dst = below(&mut rng, hosts);
        let mut others: Vec<u32> = (0..hosts).filter(|&host| host != dst).collect();
        for i in 0..fan_in.min(hosts - 1) {
            let pick = i + below(&mut rng, others.len() as u32 - i);
            others.swap(i as usize, pick as usize);
            messages.push(Message {
                start: at as Time,
                src: others[i as usize],
                dst,
                bytes,
                tag: 1,
            });
        }
        at += exponential(&mut rng, gap);
    }
    messages
}

/// `fan_in` senders to the host after them, all at time zero.
pub fn incast(fan_in: u32, bytes: u64) -> Vec<Message> {
    (0..fan_in)
        .map(|src| Message {
            start: 0,
            src,
            dst: fan_in,
            bytes,
            tag: 0,
        })
        .collect()
}

/// Every host to one other, each to a different one.
pub fn permutation(hosts: u32, bytes: u64, seed: u64) -> Vec<Message> {
    let mut rng = rng(seed, 4);
    // Sattolo's shuffle makes one cycle, so that nobody is its own receiver.
    let mut to: Vec<u32> = (0..hosts).collect();
    for i in (1..hosts).rev() {
        to.swap(i as usize, below(&mut rng, i) as usize);
    }
    let pair = |(src, dst): (usize, u32)| Message {
        start: 0,
        src: src as u32,
        dst,
        bytes,
        tag: 0,
    };
    to.into_iter().enumerate().map(pair).collect()
}

/// Every host to every other.
pub fn all_to_all(hosts: u32, bytes: u64) -> Vec<Message> {
    let pairs = (0..hosts).flat_map(|src| (1..hosts).map(move |i| (src, (src + i) % hosts)));
    pairs
        .map(|(src, dst)| Message {
            start: 0,
            src,
            dst,
            bytes,
            tag: 0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offered_load_is_what_was_asked() {
        let until = 20_000_000_000;
        let traffic = Poisson::new(&FB_HADOOP, 320, 100, 0.3, until, 7);
        let bytes: u64 = traffic.map(|message| message.bytes).sum();
        let load = bytes as f64 * 8000.0 / until as f64 / (320.0 * 100.0);
        assert!((load - 0.3).abs() < 0.02, "{load}");
    }

    #[test]
    fn the_same_seed_gives_the_same_traffic() {
        let make = |seed| Poisson::new(&WEB_SEARCH, 32, 100, 0.5, 1_000_000_000, seed);
        assert!(make(3).eq(make(3)));
        assert!(!make(3).eq(make(4)));
    }

    #[test]
    fn a_permutation_has_no_fixed_point() {
        let messages = permutation(100, 1, 3);
        let mut receivers: Vec<u32> = messages.iter().map(|message| message.dst).collect();
        assert!(messages.iter().all(|message| message.src != message.dst));
        receivers.sort_unstable();
        assert!(receivers.into_iter().eq(0..100));
    }

    #[test]
    fn an_incast_has_distinct_senders() {
        let messages = incasts(320, 100, 0.02, 60, 500_000, 20_000_000_000, 1);
        assert!(messages.len() >= 60);
        let mut senders: Vec<u32> = messages[..60].iter().map(|message| message.src).collect();
        senders.sort_unstable();
        senders.dedup();
        assert_eq!(senders.len(), 60);
        assert!(!senders.contains(&messages[0].dst));
    }
}
