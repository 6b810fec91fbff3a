// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Prints the interface: the C header for firmware teams, and the tables of its specification.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

mod header;
mod page;

#[derive(Parser)]
#[command(about = "Prints the Qiao device interface")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the C header.
    Header,
    /// Check that the tables of a page are those of the code.
    Check {
        /// The page.
        page: PathBuf,
    },
    /// Replace the tables of a page by those of the code.
    Update {
        /// The page.
        page: PathBuf,
    },
}

fn main() -> Result<ExitCode> {
    match Args::parse().command {
        Command::Header => print!("{}", header::header()),
        Command::Check { page } => {
            let text = read(&page)?;
            let stale = page::stale(&text)?;
            if !stale.is_empty() {
                let mut names = String::new();
                for name in &stale {
                    write!(names, " {name}")?;
                }
                eprintln!(
                    "{}: tables differ from the code:{names}; run make interface",
                    page.display()
                );
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Update { page } => {
            let text = read(&page)?;
            fs::write(&page, page::update(&text)?)
                .with_context(|| format!("cannot write {}", page.display()))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn read(path: &PathBuf) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
