// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The versions of what a run uses.

use std::process::Command;

use anyhow::{ensure, Context, Result};

use crate::{artefacts::Artefacts, qemu};

/// Prints them, a line each.
pub fn print(artefacts: &Artefacts) -> Result<()> {
    println!("kernel       {}", artefacts.kernel);
    println!("QEMU         {}", qemu::version()?);
    println!("rustc        {}", first_line("rustc", &["--version"])?);
    println!(
        "rdma-core    {}",
        first_line(
            "dpkg-query",
            &["--show", "--showformat=${Version}", "rdma-core"]
        )?
    );
    println!("cache        {}", artefacts.cache.display());
    Ok(())
}

fn first_line(program: &str, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("starting {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {arguments:?}: {}",
        output.status
    );
    Ok(String::from_utf8(output.stdout)?
        .lines()
        .next()
        .unwrap_or_default()
        .into())
}
