// SPDX-License-Identifier: GPL-2.0 OR MIT

//! A hostile user of the driver: it knows no library, and calls the kernel in every wrong way.
//!
//! Prints a line for each case, `ok NAME: FOUND` or `FAIL NAME: FOUND`, and `done COUNT` at the end, which the lab reads.

mod abi;
mod calls;
mod checks;
mod churn;
mod failures;
mod flood;
mod hoard;
mod memory;
mod sweep;
mod uverbs;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "Calls the kernel part of an RDMA device in every wrong way")]
struct Arguments {
    /// Name of the RDMA device
    device: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make calls that must be refused
    Calls,
    /// Fail and succeed over and over, and see whether anything is left behind
    Churn {
        /// How often
        count: u32,
    },
    /// Make the device raise events, and read none
    Flood {
        /// How many
        count: u32,
    },
    /// Make each allocation and each copy in each call fail in turn
    Sweep,
    /// Exit with objects of every kind open
    Abandon,
    /// Hold objects of every kind until the device is lost
    Outlive,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let path = uverbs::device_file(&arguments.device)?;
    match arguments.command {
        Command::Calls => calls::run(&path),
        Command::Churn { count } => churn::run(&path, count),
        Command::Flood { count } => flood::run(&path, count),
        Command::Sweep => sweep::run(&arguments.device, &path),
        Command::Abandon => hoard::abandon(&path),
        Command::Outlive => hoard::outlive(&path),
    }
}
