// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Results of KUnit: the Kernel Test Anything Protocol (`Documentation/dev-tools/ktap.rst`) of one suite, as its file in debugfs
//! shows it.

use anyhow::{ensure, Context, Result};

use crate::report::Report;

/// Adds a row for each test of a suite. A test that was skipped did not pass.
pub fn add(report: &mut Report, text: &str) -> Result<()> {
    let nested = || text.lines().filter_map(|line| line.strip_prefix("    "));
    let suite = nested()
        .find_map(|line| line.strip_prefix("# Subtest: "))
        .context("the results name no suite")?;
    let planned: usize = nested()
        .find_map(|line| line.strip_prefix("1.."))
        .context("the results have no plan")?
        .parse()?;
    let mut tests = 0;
    // What a failed test says comes before its line.
    let mut said = String::new();
    for line in nested() {
        let (passed, rest) = match (line.strip_prefix("ok "), line.strip_prefix("not ok ")) {
            (Some(rest), _) => (!rest.contains("# SKIP"), rest),
            (_, Some(rest)) => (false, rest),
            _ => {
                said += line;
                said.push('\n');
                continue;
            }
        };
        let name = rest.split_once(' ').map_or(rest, |(_, name)| name);
        let figure = if passed { "" } else { said.as_str() };
        report.add(format!("{suite}: {name}"), passed, figure);
        tests += 1;
        said.clear();
    }
    ensure!(
        tests == planned,
        "{tests} of the {planned} tests of {suite} have a result:\n{text}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULTS: &str = "\
KTAP version 1
1..1
    KTAP version 1
    # Subtest: rdma_gate
    1..3
    ok 1 closed
    # open: ASSERTION FAILED at gate.rs:1
    Expected x to be true, but is false
    not ok 2 open
    ok 3 other # SKIP
# rdma_gate: pass:1 fail:1 skip:1 total:3
not ok 1 rdma_gate
";

    #[test]
    fn each_test_is_a_row_and_only_passed_ones_pass() {
        let mut report = Report::new();
        add(&mut report, RESULTS).unwrap();
        assert_eq!(report.summary(), "1 passed, 2 failed");
        let failures = report.failures();
        assert!(failures.contains("rdma_gate: open: # open: ASSERTION FAILED"));
        assert!(failures.contains("Expected x"));
    }

    #[test]
    fn tests_that_did_not_run_are_noticed() {
        let (cut, _) = RESULTS.split_once("    not ok").unwrap();
        assert!(add(&mut Report::new(), cut).is_err());
        assert!(add(&mut Report::new(), "KTAP version 1\n1..1\n").is_err());
    }
}
