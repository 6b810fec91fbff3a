// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The rows as JUnit XML, which every CI system reads.

use std::time::Duration;

use anyhow::Result;
use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};

use super::{Report, Row};

/// The text of the file.
pub(super) fn xml(report: &Report) -> Result<String> {
    let mut document = quick_junit::Report::new("qiao");
    for suite in report.filled() {
        let name = if suite.name.is_empty() {
            "qiao"
        } else {
            &suite.name
        };
        let mut element = TestSuite::new(name);
        element.add_test_cases(suite.rows.iter().map(|row| test_case(name, row)));
        document.add_test_suite(element);
    }
    Ok(document.to_string()?)
}

fn test_case(suite: &str, row: &Row) -> TestCase {
    let status = if row.passed {
        TestCaseStatus::success()
    } else {
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
        status.set_message(row.figure.lines().next().unwrap_or_default());
        status.set_description(row.figure.as_str());
        status
    };
    let mut case = TestCase::new(row.name.as_str(), status);
    case.set_classname(suite);
    if row.passed && !row.figure.is_empty() {
        case.set_system_out(row.figure.as_str());
    }
    if let Some(seconds) = row.seconds {
        case.set_time(Duration::from_secs_f64(seconds));
    }
    case
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_is_a_test_case_of_its_suite() {
        let mut report = Report::new();
        report.begin("demo");
        report.add("a <good> one", true, "7 us");
        report.add("bad", false, "first line\nsecond");
        let text = xml(&report).unwrap();
        assert!(text.contains(r#"<testsuite name="demo" tests="2""#));
        assert!(text.contains(r#"failures="1""#));
        assert!(text.contains("a &lt;good&gt; one"));
        assert!(text.contains("second"));
        assert_eq!(text.matches("<testcase").count(), 2);
    }
}
