// SPDX-License-Identifier: GPL-2.0 OR MIT

//! What of the device interface the scenarios have used, of all runs together.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use comfy_table::{presets::UTF8_FULL_CONDENSED, CellAlignment, ContentArrangement, Table};

use crate::topology::coverage_file;

/// For each table of the interface, how often each of its entries was used.
type Tables = BTreeMap<String, BTreeMap<String, u64>>;

/// Columns of a table that is not printed to a terminal.
const WIDTH: u16 = 120;

/// Coverage of runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    tables: Tables,
    runs: usize,
}

impl Coverage {
    /// Of those of the folders `runs` that had a device model.
    pub fn of_runs(runs: &[PathBuf]) -> Result<Self> {
        let mut coverage = Self::default();
        for path in runs
            .iter()
            .map(|run| coverage_file(run))
            .filter(|path| path.exists())
        {
            let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
            let tables = serde_json::from_slice(&text);
            coverage.add(tables.with_context(|| format!("reading {}", path.display()))?);
        }
        Ok(coverage)
    }

    fn add(&mut self, tables: Tables) {
        self.runs += 1;
        for (name, entries) in tables {
            let sums = self.tables.entry(name).or_default();
            for (entry, count) in entries {
                *sums.entry(entry).or_default() += count;
            }
        }
    }

    /// Whether no run had a device model.
    pub fn is_empty(&self) -> bool {
        self.runs == 0
    }

    /// A row for each table, with the names of what was not used.
    pub fn table(&self) -> Table {
        let mut table = Table::new();
        table.load_preset(UTF8_FULL_CONDENSED);
        table.set_content_arrangement(ContentArrangement::Dynamic);
        if !table.is_tty() {
            table.set_width(WIDTH);
        }
        table.set_header(["of the interface", "used", "not used"]);
        for (name, entries) in &self.tables {
            let unused: Vec<&str> = entries
                .iter()
                .filter(|(_, count)| **count == 0)
                .map(|(entry, _)| entry.as_str())
                .collect();
            let used = entries.len() - unused.len();
            table.add_row([
                name,
                &format!("{used} of {}", entries.len()),
                &unused.join(", "),
            ]);
        }
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// How many runs it is of.
    pub fn runs(&self) -> usize {
        self.runs
    }
}

/// The folders of the runs that are kept, the oldest first.
pub fn kept_runs(runs: &Path) -> Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(runs) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("reading {}", runs.display()))?,
    };
    let mut found = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tables(text: &str) -> Tables {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn runs_add_up_and_what_none_has_used_is_named() {
        let mut coverage = Coverage::default();
        assert!(coverage.is_empty());
        coverage.add(tables(
            r#"{"events": {"SrqLimit": 0, "SqDrained": 2, "CqError": 0}}"#,
        ));
        coverage.add(tables(
            r#"{"events": {"SrqLimit": 0, "SqDrained": 0, "CqError": 1}}"#,
        ));
        let text = coverage.table().to_string();
        assert!(text.contains("2 of 3"), "{text}");
        assert!(
            text.contains("SrqLimit") && !text.contains("CqError"),
            "{text}"
        );
    }

    #[test]
    fn runs_without_a_device_model_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        let runs = ["1-hello", "2-demo"].map(|name| dir.path().join(name));
        runs.iter().for_each(|run| fs::create_dir(run).unwrap());
        fs::write(coverage_file(&runs[1]), r#"{"commands": {"Nop": 1}}"#).unwrap();
        assert_eq!(kept_runs(dir.path()).unwrap(), runs);
        assert_eq!(Coverage::of_runs(&runs).unwrap().runs(), 1);
        assert_eq!(
            kept_runs(&dir.path().join("none")).unwrap(),
            [] as [PathBuf; 0]
        );
    }
}
