// SPDX-License-Identifier: GPL-2.0 OR MIT

//! `make bench`: Qiao beside soft-RoCE in the same guests, and the device model alone beside `memcpy`.

use std::process::Command;

use anyhow::{ensure, Context, Result};
use serde::Deserialize;

use crate::{
    artefacts::Artefacts,
    info,
    report::{self, Comparison, Report},
    scenario::Scenario,
};

/// Part of the speed of `memcpy` that the model alone aims at: it moves each byte twice, into a packet and out of it.
const MODEL_GOAL: f64 = 0.5;

/// Measures everything and prints a table; whether all that must be reached is.
pub fn run(artefacts: &Artefacts) -> Result<bool> {
    let scenario = Scenario::wanted("bench", artefacts)?;
    info::print(artefacts)?;
    let mut report = Report::new();
    scenario.execute(artefacts, &mut report);
    report.begin("model");
    report.doing("the device model alone");
    if let Err(error) = model(artefacts, &mut report) {
        report.add("bench of the device model", false, format!("{error:#}"));
    }
    report.finish();
    println!("{}", report.comparison_table());
    print!("{}", report.failures());
    println!("report: {}", report::write(&report, artefacts)?.display());
    println!("{}", report.summary());
    Ok(report.failed() == 0)
}

/// A line of `qemu/model/benches/data_path.rs`.
#[derive(Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Line {
    Speed {
        what: String,
        bytes: u32,
        gb_per_s: f64,
        memcpy_gb_per_s: f64,
    },
    Rate {
        what: String,
        bytes: u32,
        messages_per_s: f64,
    },
}

fn model(artefacts: &Artefacts, report: &mut Report) -> Result<()> {
    let output = Command::new("cargo")
        .args(["bench", "--locked", "--quiet", "--package", "qiao-model"])
        .args(["--bench", "data_path"])
        .current_dir(artefacts.top.join("qemu"))
        .output()
        .context("starting cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo bench failed:\n{said}");
    for line in String::from_utf8(output.stdout)?.lines() {
        match serde_json::from_str(line).with_context(|| format!("unexpected line {line:?}"))? {
            Line::Speed {
                what,
                bytes,
                gb_per_s,
                memcpy_gb_per_s,
            } => report.compare(Comparison {
                what: format!("model alone: {what}, {} KiB", bytes >> 10),
                unit: "GB/s",
                ours: gb_per_s,
                theirs: memcpy_gb_per_s,
                other: "memcpy",
                ratio: gb_per_s / memcpy_gb_per_s,
                must: None,
                goal: Some(MODEL_GOAL),
            }),
            Line::Rate {
                what,
                bytes,
                messages_per_s,
            } => report.add(
                format!("model alone: {what}, {bytes} bytes"),
                true,
                format!("{messages_per_s:.0} messages/s"),
            ),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_lines_are_read() {
        let speed = r#"{"bytes":65536,"gb_per_s":2.5,"memcpy_gb_per_s":10.0,"what":"write"}"#;
        let rate = r#"{"bytes":8,"messages_per_s":525208.3,"what":"send"}"#;
        assert!(matches!(
            serde_json::from_str(speed).unwrap(),
            Line::Speed { bytes: 65536, .. }
        ));
        assert!(matches!(
            serde_json::from_str(rate).unwrap(),
            Line::Rate { bytes: 8, .. }
        ));
    }
}
