// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The tests of the Cargo workspaces, each counted on its own.

use std::process::Command;

use anyhow::{Context, Result};

use super::workspaces;
use crate::{artefacts::Artefacts, report::Report};

/// Runs `cargo test` in each workspace.
pub(super) fn check(artefacts: &Artefacts, report: &mut Report) {
    for dir in workspaces(&artefacts.top) {
        let name = dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        report.doing(&format!("cargo test ({name})"));
        let output = Command::new("cargo")
            .args([
                "test",
                "--workspace",
                "--locked",
                "--no-fail-fast",
                "--quiet",
                "--",
                "--format=pretty",
            ])
            .current_dir(&dir)
            .output()
            .context("starting cargo");
        let result = output.map(|output| {
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.success(), text, errors)
        });
        if let Err(error) = result
            .and_then(|(success, text, errors)| add_tests(report, &name, success, &text, &errors))
        {
            report.add(format!("cargo test ({name})"), false, format!("{error:#}"));
        }
    }
}

/// A row for each test; one more if cargo failed for another reason than a failed test.
fn add_tests(
    report: &mut Report,
    name: &str,
    success: bool,
    text: &str,
    errors: &str,
) -> Result<()> {
    let mut any_failed = false;
    for (test, passed) in test_lines(text) {
        any_failed |= !passed;
        let details = if passed {
            String::new()
        } else {
            failure_text(text, test)
        };
        report.add(format!("{name}: {test}"), passed, details);
    }
    anyhow::ensure!(success || any_failed, "{errors}\n{text}");
    Ok(())
}

/// The tests in the output of libtest with their results; ignored ones are neither passed nor failed.
fn test_lines(text: &str) -> impl Iterator<Item = (&str, bool)> {
    text.lines().filter_map(|line| {
        let (name, result) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
        match result {
            "ok" => Some((name, true)),
            "FAILED" => Some((name, false)),
            _ => None,
        }
    })
}

/// What libtest printed for a failed test.
fn failure_text(text: &str, test: &str) -> String {
    let start = format!("---- {test} stdout ----");
    text.lines()
        .skip_while(|line| *line != start)
        .skip(1)
        .take_while(|line| !line.starts_with("---- ") && *line != "failures:")
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "
running 3 tests
test cq::a_full_queue_overflows ... ok
test cq::arms ... FAILED
test slow ... ignored

failures:

---- cq::arms stdout ----
thread 'cq::arms' panicked at src/cq.rs:1:2:
left is not right

failures:
    cq::arms

test result: FAILED. 1 passed; 1 failed; 1 ignored
";

    #[test]
    fn each_test_is_a_row() {
        let mut report = Report::new();
        add_tests(&mut report, "qemu", false, OUTPUT, "").unwrap();
        assert_eq!(report.summary(), "1 passed, 1 failed");
        assert!(report.failures().contains("left is not right"));
    }

    #[test]
    fn a_build_error_is_not_lost() {
        let mut report = Report::new();
        let error = add_tests(&mut report, "qemu", false, "", "error[E0308]").unwrap_err();
        assert!(error.to_string().contains("E0308"));
        assert!(add_tests(&mut report, "qemu", true, "", "").is_ok());
    }
}
