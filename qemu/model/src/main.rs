// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `qiao-model`: serves the HCAs of a configuration file to QEMU by vfio-user.

use anyhow::{Context, Result};
use clap::Parser;
use qiao_fabric::shape::Shape;
use qiao_model::config::Config;
use qiao_model::model::Model;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// Serves Qiao HCAs to QEMU's `vfio-user-pci`. Prints `ready` when every socket listens; SIGTERM and
/// SIGINT end it.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The configuration file.
    #[arg(long, required_unless_present = "print_topology")]
    config: Option<PathBuf>,
    /// Prints a topology for the configuration in the form of ibnetdiscover: single:HOSTS or fat-tree:PORTS.
    #[arg(long, value_name = "SHAPE", conflicts_with = "config")]
    print_topology: Option<Shape>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(shape) = arguments.print_topology {
        print!("{shape}");
    }
    arguments.config.map_or(Ok(()), |file| serve(&file))
}

/// Serves what the configuration file describes, until a signal comes.
fn serve(file: &Path) -> Result<()> {
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("info")).init();
    let (stop, raise) = UnixStream::pair()?;
    for signal in [SIGTERM, SIGINT] {
        signal_hook::low_level::pipe::register(signal, raise.try_clone()?)?;
    }
    let path = file.display();
    let text = std::fs::read_to_string(file).with_context(|| format!("{path}"))?;
    let config = Config::parse(&text).with_context(|| format!("{path}"))?;
    let model = Model::new(&config)?;
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    model.run(stop.as_fd())
}
