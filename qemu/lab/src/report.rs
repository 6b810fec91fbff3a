// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What was found out: rows of passed and failed, printed while they come, as a table at the end.

use std::{
    fmt::Display,
    io::IsTerminal,
    time::{Duration, Instant},
};

use anyhow::Result;
use comfy_table::{presets::UTF8_FULL_CONDENSED, Cell, CellAlignment, Color, Table};
use indicatif::{ProgressBar, ProgressStyle};

/// One thing that was tried.
#[derive(Clone, Debug)]
struct Row {
    name: String,
    passed: bool,
    figure: String,
}

/// All that was tried in a run.
#[derive(Debug)]
pub struct Report {
    rows: Vec<Row>,
    spinner: Option<ProgressBar>,
}

impl Report {
    /// An empty report. On a terminal that can redraw a line a spinner shows what is going on; elsewhere plain lines do.
    pub fn new() -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let spinner = (std::io::stderr().is_terminal() && !dumb).then(|| {
            let spinner = ProgressBar::new_spinner();
            let style = ProgressStyle::with_template("{spinner} {msg} ({elapsed})")
                .expect("the template is a constant");
            spinner.set_style(style);
            spinner
        });
        Self {
            rows: Vec::new(),
            spinner,
        }
    }

    /// Says what happens now.
    pub fn doing(&self, what: &str) {
        match &self.spinner {
            Some(spinner) => {
                spinner.reset_elapsed();
                spinner.enable_steady_tick(Duration::from_millis(100));
                spinner.set_message(what.to_owned());
            }
            None => eprintln!("lab: {what}"),
        }
    }

    /// Runs a test; what it returns is its figure, an error makes it a failed one.
    pub fn test<T: Display>(&mut self, name: impl Into<String>, test: impl FnOnce() -> Result<T>) {
        let name = name.into();
        self.doing(&name);
        let start = Instant::now();
        let result = test();
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(figure) => self.record(name, true, figure.to_string(), Some(seconds)),
            Err(error) => self.record(name, false, format!("{error:#}"), Some(seconds)),
        }
    }

    /// Adds a result that was found out elsewhere.
    pub fn add(&mut self, name: impl Into<String>, passed: bool, figure: impl Into<String>) {
        self.record(name.into(), passed, figure.into(), None);
    }

    fn record(&mut self, name: String, passed: bool, figure: String, seconds: Option<f64>) {
        let word = if passed { "passed" } else { "FAILED" };
        let time = seconds
            .map(|seconds| format!(" ({seconds:.1} s)"))
            .unwrap_or_default();
        // All lines of a failure are in `failures`.
        let text = figure
            .lines()
            .next()
            .map(|line| format!(": {line}"))
            .unwrap_or_default();
        self.say(&format!("{word} {name}{time}{text}"));
        self.rows.push(Row {
            name,
            passed,
            figure,
        });
    }

    /// Prints a line above the spinner.
    pub fn say(&self, line: &str) {
        match &self.spinner {
            Some(spinner) => spinner.suspend(|| println!("{line}")),
            None => println!("{line}"),
        }
    }

    /// Takes over the rows of another report, each with `prefix` before its name.
    pub fn absorb(&mut self, prefix: &str, other: Self) {
        self.rows.extend(other.rows.into_iter().map(|row| Row {
            name: format!("{prefix}{}", row.name),
            ..row
        }));
    }

    /// Stops the spinner.
    pub fn finish(&self) {
        if let Some(spinner) = &self.spinner {
            spinner.finish_and_clear();
        }
    }

    /// Number of failed rows.
    pub fn failed(&self) -> usize {
        self.rows.iter().filter(|row| !row.passed).count()
    }

    /// The rows as a table.
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        table.set_header(["program", "result", "figure"]);
        for row in &self.rows {
            let result = if row.passed {
                Cell::new("passed").fg(Color::Green)
            } else {
                Cell::new("FAILED").fg(Color::Red)
            };
            let figure = Cell::new(row.figure.lines().next().unwrap_or_default());
            table.add_row([
                Cell::new(&row.name),
                result,
                figure.set_alignment(CellAlignment::Right),
            ]);
        }
        table
    }

    /// The failed rows with everything they said.
    pub fn failures(&self) -> String {
        let failed = self.rows.iter().filter(|row| !row.passed);
        failed.fold(String::new(), |text, row| {
            text + "FAILED " + &row.name + ": " + &row.figure + "\n"
        })
    }

    /// `N passed, N failed`.
    pub fn summary(&self) -> String {
        let failed = self.failed();
        format!("{} passed, {failed} failed", self.rows.len() - failed)
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn an_error_is_a_failed_row() {
        let mut report = Report::new();
        report.test("good", || Ok("1 MB/s"));
        report.test("bad", || Err::<String, _>(anyhow!("lost\nsecond line")));
        assert_eq!(report.summary(), "1 passed, 1 failed");
        assert_eq!(report.failures(), "FAILED bad: lost\nsecond line\n");
        assert!(!report.table().to_string().contains("second line"));
    }

    #[test]
    fn absorbed_rows_count() {
        let mut inner = Report::new();
        inner.add("x", false, "");
        let mut outer = Report::new();
        outer.absorb("demo: ", inner);
        assert_eq!(outer.summary(), "0 passed, 1 failed");
        assert_eq!(outer.failures(), "FAILED demo: x: \n");
    }
}
