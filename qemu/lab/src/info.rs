// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The configuration record: what a run was made of and where it ran.

use std::{collections::HashMap, fs, process::Command};

use anyhow::{ensure, Context, Result};
use nix::sys::utsname::uname;

use crate::{artefacts::Artefacts, qemu};

/// Names and values.
pub type Record = Vec<(String, String)>;

/// Packages of the development root whose versions count.
const ROOT_PACKAGES: [&str; 8] = [
    "cargo",
    "bindgen",
    "llvm",
    "gcc-14",
    "pahole",
    "rdma-core",
    "libibverbs1",
    "tshark",
];

/// Packages of the guests whose versions count, as far as the image says.
const GUEST_PACKAGES: [&str; 5] = [
    "rdma-core",
    "perftest",
    "python3-pyverbs",
    "infiniband-diags",
    "opensm",
];

/// Prints the record, a line each.
pub fn print(artefacts: &Artefacts) -> Result<()> {
    for (name, value) in record(artefacts)? {
        println!("{name:24} {value}");
    }
    Ok(())
}

/// Everything.
pub fn record(artefacts: &Artefacts) -> Result<Record> {
    let mut record = Record::new();
    let mut add = |name: &str, value: String| record.push((name.into(), value));
    add("Qiao", artefacts.commit.clone());
    add("kernel", artefacts.guest.release.clone());
    add(
        "kernel package",
        package(&format!("linux-headers-{}", artefacts.kernel))?,
    );
    add("QEMU", qemu::version()?);
    add("accelerator", accelerator(artefacts)?);
    add("rustc", first_line("rustc", &["--version"])?);
    for name in ROOT_PACKAGES {
        add(name, package(name)?);
    }
    let installed = guest_packages(artefacts)?;
    for name in GUEST_PACKAGES {
        let version = installed
            .as_ref()
            .map(|packages| packages.get(name).cloned());
        let text = match version {
            Some(version) => version.with_context(|| format!("the guest image has no {name}"))?,
            None => "not known: no guest image yet (make image)".into(),
        };
        add(&format!("{name} (guest)"), text);
    }
    add("host kernel", host_kernel()?);
    add("processor", processor()?);
    add("cache", artefacts.cache.display().to_string());
    Ok(record)
}

fn accelerator(artefacts: &Artefacts) -> Result<String> {
    // Whether KVM works is found out by booting the guests' kernel, so it is not known before there is one.
    if !artefacts.agent().exists() {
        return Ok("not known: no guests yet (make guests)".into());
    }
    Ok(qemu::accelerator(artefacts)?.name().into())
}

/// Versions of the packages in the guest image by name; `None` if there is no image yet.
fn guest_packages(artefacts: &Artefacts) -> Result<Option<HashMap<String, String>>> {
    let image = artefacts.root_image();
    if !image.exists() {
        return Ok(None);
    }
    let output = Command::new("dump.erofs")
        .args(["--cat", "--path=/var/lib/dpkg/status"])
        .arg(&image)
        .output()
        .context("starting dump.erofs")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "dump.erofs {}: {said}",
        image.display()
    );
    Ok(Some(versions(&String::from_utf8(output.stdout)?)))
}

/// The packages in dpkg's status file.
fn versions(status: &str) -> HashMap<String, String> {
    let field = |entry: &str, name: &str| {
        let found = entry.lines().find_map(|line| line.strip_prefix(name));
        found.map(|value| value.trim().to_owned())
    };
    status
        .split("\n\n")
        .filter_map(|entry| Some((field(entry, "Package:")?, field(entry, "Version:")?)))
        .collect()
}

fn package(name: &str) -> Result<String> {
    first_line("dpkg-query", &["--show", "--showformat=${Version}", name])
}

fn host_kernel() -> Result<String> {
    let host = uname()?;
    Ok(format!(
        "{} {}",
        host.release().to_string_lossy(),
        host.machine().to_string_lossy()
    ))
}

fn processor() -> Result<String> {
    let text = fs::read_to_string("/proc/cpuinfo").context("reading /proc/cpuinfo")?;
    let values = |key: &'static str| {
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .filter(move |(name, _)| name.trim() == key)
            .map(|(_, value)| value.trim())
    };
    let model = values("model name").next().unwrap_or("unknown");
    Ok(format!("{} x {model}", values("processor").count()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read_from_dpkg_status() {
        let status = "Package: perftest\nStatus: install ok installed\nVersion: 25.01\n\n\
                      Package: opensm\nVersion: 3.3.23-2\nDescription: x\n Version: no\n";
        let versions = versions(status);
        assert_eq!(versions.len(), 2);
        assert_eq!(versions["perftest"], "25.01");
        assert_eq!(versions["opensm"], "3.3.23-2");
    }
}
