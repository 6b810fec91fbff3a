// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Accesses that the client has not allowed: counted by kind, each with a line in the log.

use super::Need;
use serde::Serialize;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Lines that one function writes. What follows is only counted.
const MAX_LINES: u64 = 100;

/// What is wrong with an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Breach {
    /// No range has the address, and none had it lately.
    Unmapped,
    /// The client has unmapped the range.
    Unmapping,
    /// The range is mapped without the right.
    Rights,
    /// Only the client can reach the memory of the range.
    NoMemory,
    /// The bus-master bit is clear.
    BusMaster,
    /// The address of a word is not a multiple of its size.
    Alignment,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unmapped => "not mapped",
            Self::Unmapping => "not mapped any more",
            Self::Rights => "mapped without the right",
            Self::NoMemory => "mapped without memory",
            Self::BusMaster => "no bus master",
            Self::Alignment => "not aligned",
        })
    }
}

/// How many accesses of each kind there were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are those of the kinds")]
pub struct Breaches {
    pub unmapped: u64,
    pub unmapping: u64,
    pub rights: u64,
    pub no_memory: u64,
    pub bus_master: u64,
    pub alignment: u64,
}

/// Counts and reports.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// Name of the function.
    name: String,
    counts: [AtomicU64; 6],
}

impl Log {
    pub fn new(name: String) -> Self {
        Self {
            name,
            counts: Default::default(),
        }
    }

    /// Takes an access at `addr`.
    pub fn add(&self, breach: Breach, need: Need, addr: u64) {
        let lines = self.total();
        self.counts[breach as usize].fetch_add(1, Ordering::Relaxed);
        let name = &self.name;
        match lines.cmp(&MAX_LINES) {
            Less => log::warn!("DMA breach: {name}: {need} at {addr:#x}: {breach}"),
            Equal => log::warn!("DMA breach: {name}: more are only counted"),
            Greater => {}
        }
    }

    pub fn total(&self) -> u64 {
        self.counts.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    pub fn counts(&self) -> Breaches {
        let count = |breach: Breach| self.counts[breach as usize].load(Ordering::Relaxed);
        Breaches {
            unmapped: count(Breach::Unmapped),
            unmapping: count(Breach::Unmapping),
            rights: count(Breach::Rights),
            no_memory: count(Breach::NoMemory),
            bus_master: count(Breach::BusMaster),
            alignment: count(Breach::Alignment),
        }
    }
}
