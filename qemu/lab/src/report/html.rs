// SPDX-License-Identifier: GPL-2.0 OR MIT

//! One page with all that a run did: rows, what was measured, counters, and the logs and captures of each scenario.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use maud::{html, Markup, PreEscaped, DOCTYPE};

use super::{comparison_cells, plot, Report, Suite, COMPARISON_HEADER};
use crate::info::Record;

const STYLE: &str = "body{font-family:sans-serif;margin:2em;max-width:75em}\
    table{border-collapse:collapse;margin:1em 0}td,th{border:1px solid #bbb;padding:.2em .6em;text-align:left}\
    td.n{text-align:right}.failed{background:#fdd}pre{background:#f4f4f4;padding:.6em;overflow-x:auto;max-height:40em}";

/// Logs larger than this are linked and not shown.
const SHOWN_BYTES: u64 = 512 * 1024;

/// The text of the page, which will lie in `dir`: logs are in it, captures are linked.
pub(super) fn page(report: &Report, record: &Record, dir: &Path) -> Result<String> {
    let suites = report
        .filled()
        .map(|suite| section(suite, dir))
        .collect::<Result<Vec<_>>>()?;
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                title { "Qiao: " (report.summary()) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { (report.summary()) }
                @if !report.comparisons.is_empty() { (comparisons(report)) }
                @for suite in suites { (suite) }
                h2 { "Configuration" }
                table {
                    @for (name, value) in record { tr { th { (name) } td { (value) } } }
                }
            }
        }
    };
    Ok(page.into_string())
}

fn comparisons(report: &Report) -> Markup {
    html! {
        h2 { "Measured side by side" }
        table {
            tr { @for heading in COMPARISON_HEADER { th { (heading) } } }
            @for comparison in &report.comparisons {
                tr { @for cell in comparison_cells(comparison) { td { (cell) } } }
            }
        }
    }
}

fn section(suite: &Suite, dir: &Path) -> Result<Markup> {
    let plots = suite
        .series
        .iter()
        .map(plot::svg)
        .collect::<Result<Vec<_>>>()?;
    let files = suite.dir.as_deref().map(files).transpose()?;
    Ok(html! {
        h2 { @if suite.name.is_empty() { "Tests" } @else { (suite.name) } }
        (rows(suite))
        @for plot in plots { (PreEscaped(plot)) }
        @for changes in &suite.changes {
            h3 { "Counters during " (changes.during) }
            table {
                tr { th { "counter" } th { "before" } th { "after" } th { "change" } }
                @for (name, before, after) in &changes.counters {
                    tr {
                        td { (name) } td.n { (before) } td.n { (after) }
                        td.n { (after.wrapping_sub(*before)) }
                    }
                }
            }
        }
        @if let Some(files) = files {
            h3 { "Files" }
            @for file in &files { (shown(file, dir)?) }
        }
    })
}

fn rows(suite: &Suite) -> Markup {
    html! {
        table {
            tr { th { "test" } th { "result" } th { "seconds" } th { "figure" } }
            @for row in &suite.rows {
                tr.failed[!row.passed] {
                    td { (row.name) }
                    td { @if row.passed { "passed" } @else { "FAILED" } }
                    td.n { @if let Some(seconds) = row.seconds { (format!("{seconds:.1}")) } }
                    td {
                        @if row.figure.lines().count() > 1 { pre { (row.figure) } } @else { (row.figure) }
                    }
                }
            }
        }
    }
}

/// Everything that a scenario left, by name.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut files = fs::read_dir(dir)
        .with_context(|| format!("reading {}", dir.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.is_file());
    files.sort();
    Ok(files)
}

/// A log folded up, or a link to what is no text.
fn shown(file: &Path, dir: &Path) -> Result<Markup> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let size = fs::metadata(file)
        .with_context(|| format!("reading {}", file.display()))?
        .len();
    if file.extension().is_some_and(|kind| kind == "pcap") || size > SHOWN_BYTES {
        let link = link(file, dir);
        return Ok(html! { p { a href=(link) { (name) } " (" (size) " bytes)" } });
    }
    let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(html! { details { summary { (name) } pre { (text) } } })
}

/// The way from the page to a file of a scenario, whose folder is beside that of the page.
fn link(file: &Path, dir: &Path) -> String {
    let beside = dir
        .parent()
        .and_then(|parent| file.strip_prefix(parent).ok());
    match beside {
        Some(path) => format!("../{}", path.display()),
        None => file.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Changes;
    use super::*;

    #[test]
    fn the_page_has_logs_links_counters_and_what_failed() {
        let runs = tempfile::tempdir().unwrap();
        let (run, own) = (runs.path().join("1-demo"), runs.path().join("2-results"));
        fs::create_dir(&run).unwrap();
        fs::write(run.join("a.console"), "Linux <version>").unwrap();
        fs::write(run.join("a0-1.pcap"), [0; 24]).unwrap();
        let mut report = Report::new();
        report.begin("demo");
        report.add("pingpong", false, "lost");
        report.files(run);
        report.changes(Changes {
            during: "it".into(),
            counters: vec![("port_xmit_data".into(), 3, 10)],
        });
        let record = vec![("kernel".to_owned(), "7.3".to_owned())];
        let text = page(&report, &record, &own).unwrap();
        for wanted in [
            "0 passed, 1 failed",
            "Linux &lt;version&gt;",
            "href=\"../1-demo/a0-1.pcap\"",
            "port_xmit_data",
            "<td class=\"n\">7</td>",
            "<th>kernel</th><td>7.3</td>",
        ] {
            assert!(text.contains(wanted), "{wanted} is not in {text}");
        }
    }
}
