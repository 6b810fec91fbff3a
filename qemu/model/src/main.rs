// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `qiao-model`: serves the HCAs of a configuration file to QEMU by vfio-user.

use anyhow::{Context, Result};
use clap::Parser;
use qiao_model::config::Config;
use qiao_model::model::Model;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Serves Qiao HCAs to QEMU's `vfio-user-pci`. Prints `ready` when every socket listens; SIGTERM and
/// SIGINT end it.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The configuration file.
    #[arg(long)]
    config: PathBuf,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let (stop, raise) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, raise.try_clone()?)?;
    }
    let path = arguments.config.display();
    let text = std::fs::read_to_string(&arguments.config).with_context(|| format!("{path}"))?;
    let config = Config::parse(&text).with_context(|| format!("{path}"))?;
    let model = Model::new(&config)?;
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    model.run(stop.as_fd())
}
