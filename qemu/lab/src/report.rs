// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What was found out: rows of passed and failed, and what was measured, printed while they come; a table at the end, and files
//! ([`html`], [`junit`]) for those who were not there.

mod html;
mod junit;
mod live;
mod plot;
mod results;

pub use results::write;

use std::{fmt::Display, path::PathBuf, time::Instant};

use anyhow::Result;
use comfy_table::{presets::UTF8_FULL_CONDENSED, Cell, CellAlignment, Color, Table};

use self::live::Live;

/// One thing that was tried.
#[derive(Clone, Debug)]
struct Row {
    name: String,
    passed: bool,
    figure: String,
    seconds: Option<f64>,
}

/// Values of one thing by another, such as bandwidth by message size.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is, as the title of a plot.
    pub title: String,
    /// What the first number of a point is; plotted by its logarithm.
    pub x: &'static str,
    /// What the second number is.
    pub y: &'static str,
    /// In the order of the first number, which is above zero.
    pub points: Vec<(f64, f64)>,
}

/// What Qiao reached beside what something else reached in the same run.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// What was measured.
    pub what: String,
    /// Of both values.
    pub unit: &'static str,
    /// Qiao's value.
    pub ours: f64,
    /// The other's value.
    pub theirs: f64,
    /// Who the other is.
    pub other: &'static str,
    /// How many times better Qiao is.
    pub ratio: f64,
    /// The least ratio that is accepted.
    pub must: Option<f64>,
    /// The ratio that is aimed at.
    pub goal: Option<f64>,
}

impl Comparison {
    fn verdict(&self) -> &'static str {
        let reaches = |wanted: Option<f64>| wanted.is_none_or(|wanted| self.ratio >= wanted);
        match (reaches(self.must), reaches(self.goal)) {
            (false, _) => "missed",
            (true, false) if self.must.is_none() => "below the goal",
            (true, false) => "must",
            (true, true) if self.goal.is_none() => "",
            (true, true) => "goal",
        }
    }
}

/// Counters of a guest's devices before and after something; only those that changed.
#[derive(Clone, Debug)]
pub struct Changes {
    /// What happened between.
    pub during: String,
    /// Name, before, after.
    pub counters: Vec<(String, u64, u64)>,
}

/// What belongs together: a scenario, or a stage of the tests.
#[derive(Clone, Debug, Default)]
struct Suite {
    name: String,
    rows: Vec<Row>,
    series: Vec<Series>,
    changes: Vec<Changes>,
    dir: Option<PathBuf>,
}

/// All that was tried in a run.
#[derive(Debug)]
pub struct Report {
    suites: Vec<Suite>,
    comparisons: Vec<Comparison>,
    live: Live,
}

impl Report {
    /// An empty report.
    pub fn new() -> Self {
        Self {
            suites: vec![Suite::default()],
            comparisons: Vec::new(),
            live: Live::new(),
        }
    }

    /// Starts the suite `name`, to which everything belongs that is added from now on.
    pub fn begin(&mut self, name: &str) {
        self.suites.push(Suite {
            name: name.into(),
            ..Suite::default()
        });
    }

    /// How many steps there are: suites of a run, for the progress bar.
    pub fn expect(&mut self, steps: usize) {
        self.live.expect(steps as u64);
    }

    /// Notes that a step is done.
    pub fn step(&self) {
        self.live.step();
    }

    fn suite(&mut self) -> &mut Suite {
        self.suites.last_mut().expect("there is one from the start")
    }

    /// Where the consoles, logs and captures of this suite lie.
    pub fn files(&mut self, dir: PathBuf) {
        self.suite().dir = Some(dir);
    }

    /// Adds values to be plotted.
    pub fn series(&mut self, series: Series) {
        self.suite().series.push(series);
    }

    /// Adds counters.
    pub fn changes(&mut self, changes: Changes) {
        self.suite().changes.push(changes);
    }

    /// Adds a comparison; one that misses what it must reach is a failed row.
    pub fn compare(&mut self, comparison: Comparison) {
        let Comparison {
            what,
            unit,
            ours,
            theirs,
            other,
            ratio,
            must,
            ..
        } = &comparison;
        let passed = must.is_none_or(|must| *ratio >= must);
        let figure =
            format!("{ours:.4} {unit}, {other} {theirs:.4} {unit}: {ratio:.2} times better");
        self.add(what.clone(), passed, figure);
        self.comparisons.push(comparison);
    }

    /// Says what happens now.
    pub fn doing(&self, what: &str) {
        self.live.doing(what);
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
        self.suite().rows.push(Row {
            name,
            passed,
            figure,
            seconds,
        });
    }

    /// Prints a line above the progress.
    pub fn say(&self, line: &str) {
        self.live.say(line);
    }

    /// Takes over the rows of another report, each with `prefix` before its name.
    pub fn absorb(&mut self, prefix: &str, other: Self) {
        let rows = other.suites.into_iter().flat_map(|suite| suite.rows);
        let named = rows.map(|row| Row {
            name: format!("{prefix}{}", row.name),
            ..row
        });
        self.suite().rows.extend(named);
    }

    /// Ends the display of progress.
    pub fn finish(&self) {
        self.live.finish();
    }

    fn rows(&self) -> impl Iterator<Item = (&Suite, &Row)> {
        self.suites
            .iter()
            .flat_map(|suite| suite.rows.iter().map(move |row| (suite, row)))
    }

    /// Suites with anything in them.
    fn filled(&self) -> impl Iterator<Item = &Suite> {
        self.suites.iter().filter(|suite| !suite.rows.is_empty())
    }

    /// The name of a row, with that of its suite unless there is no other one.
    fn title(&self, suite: &Suite, row: &Row) -> String {
        if suite.name.is_empty() || self.filled().count() < 2 {
            row.name.clone()
        } else {
            format!("{}: {}", suite.name, row.name)
        }
    }

    /// Number of failed rows.
    pub fn failed(&self) -> usize {
        self.rows().filter(|(_, row)| !row.passed).count()
    }

    /// The rows as a table.
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        table.set_header(["program", "result", "figure"]);
        for (suite, row) in self.rows() {
            let result = if row.passed {
                Cell::new("passed").fg(Color::Green)
            } else {
                Cell::new("FAILED").fg(Color::Red)
            };
            let figure = Cell::new(row.figure.lines().next().unwrap_or_default());
            table.add_row([
                Cell::new(self.title(suite, row)),
                result,
                figure.set_alignment(CellAlignment::Right),
            ]);
        }
        table
    }

    /// The comparisons as a table.
    pub fn comparison_table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        table.set_header(COMPARISON_HEADER);
        for comparison in &self.comparisons {
            table.add_row(comparison_cells(comparison));
        }
        for column in table.column_iter_mut().skip(1).take(5) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// The failed rows with everything they said.
    pub fn failures(&self) -> String {
        let failed = self.rows().filter(|(_, row)| !row.passed);
        failed.fold(String::new(), |text, (suite, row)| {
            text + "FAILED " + &self.title(suite, row) + ": " + &row.figure + "\n"
        })
    }

    /// `N passed, N failed`.
    pub fn summary(&self) -> String {
        let failed = self.failed();
        format!("{} passed, {failed} failed", self.rows().count() - failed)
    }
}

impl Default for Report {
    fn default() -> Self {
        Self::new()
    }
}

/// Headings of [`comparison_cells`].
const COMPARISON_HEADER: [&str; 7] = [
    "measured",
    "Qiao",
    "beside it",
    "ratio",
    "must",
    "goal",
    "reached",
];

fn comparison_cells(comparison: &Comparison) -> [String; 7] {
    let wanted =
        |ratio: Option<f64>| ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.1}"));
    let Comparison {
        what,
        unit,
        ours,
        theirs,
        other,
        ratio,
        must,
        goal,
    } = comparison;
    [
        what.clone(),
        format!("{ours:.3} {unit}"),
        format!("{theirs:.3} {unit} ({other})"),
        format!("{ratio:.2}"),
        wanted(*must),
        wanted(*goal),
        comparison.verdict().into(),
    ]
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
    fn rows_of_several_suites_are_told_apart() {
        let mut report = Report::new();
        report.begin("demo");
        report.add("x", false, "");
        assert_eq!(report.failures(), "FAILED x: \n");
        report.begin("twins");
        report.add("x", true, "");
        assert_eq!(report.summary(), "1 passed, 1 failed");
        assert_eq!(report.failures(), "FAILED demo: x: \n");
    }

    #[test]
    fn a_ratio_below_what_it_must_be_fails() {
        let mut report = Report::new();
        let comparison = |ratio, must, goal| Comparison {
            what: "speed".into(),
            unit: "GB/s",
            ours: ratio,
            theirs: 1.0,
            other: "memcpy",
            ratio,
            must,
            goal,
        };
        for (ratio, must, goal, verdict) in [
            (1.0, Some(2.0), Some(5.0), "missed"),
            (2.0, Some(2.0), Some(5.0), "must"),
            (5.0, Some(2.0), Some(5.0), "goal"),
            (1.0, None, Some(5.0), "below the goal"),
            (1.0, None, None, ""),
        ] {
            let comparison = comparison(ratio, must, goal);
            assert_eq!(comparison.verdict(), verdict);
            report.compare(comparison);
        }
        assert_eq!(report.summary(), "4 passed, 1 failed");
    }
}
