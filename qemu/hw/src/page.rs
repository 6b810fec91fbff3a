// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Tables of the specification. A table stands between `<!-- table NAME -->` and `<!-- end -->`.

use anyhow::{ensure, Context, Result};
use qiao_hw::{bar, catalogue};
use std::fmt::Write;

const BEGIN: &str = "<!-- table ";
const END: &str = "<!-- end -->";

/// Returns the text with all tables made anew.
///
/// # Errors
///
/// If a table is unknown, has no end, or one that the code defines is missing.
pub fn update(text: &str) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    let mut seen = Vec::new();
    while let Some(at) = rest.find(BEGIN) {
        let (before, from) = rest.split_at(at);
        let name = from[BEGIN.len()..]
            .split(' ')
            .next()
            .context("a table without a name")?;
        let end = from
            .find(END)
            .with_context(|| format!("table {name} has no end"))?;
        let table = table(name).with_context(|| format!("no such table: {name}"))?;
        write!(out, "{before}{BEGIN}{name} -->\n{table}{END}")?;
        rest = &from[end + END.len()..];
        seen.push(name.to_owned());
    }
    out.push_str(rest);
    for name in names() {
        ensure!(
            seen.iter().any(|s| s == name),
            "the page lacks table {name}"
        );
    }
    Ok(out)
}

/// Returns the names of the tables that differ from the code.
///
/// # Errors
///
/// As [`update`].
pub fn stale(text: &str) -> Result<Vec<String>> {
    let fresh = update(text)?;
    let tables = |t: &str| {
        t.split(BEGIN)
            .skip(1)
            .map(|t| t.split(END).next().unwrap_or("").to_owned())
            .collect::<Vec<_>>()
    };
    let differ = tables(text)
        .into_iter()
        .zip(tables(&fresh))
        .filter(|(a, b)| a != b)
        .map(|(a, _)| a.split(' ').next().unwrap_or("").to_owned());
    Ok(differ.collect())
}

/// Returns the names of all tables.
pub fn names() -> impl Iterator<Item = &'static str> {
    std::iter::once("registers")
        .chain(catalogue::STRUCTURES.iter().map(|s| s.name))
        .chain(catalogue::NUMBERS.iter().map(|n| n.name))
}

fn table(name: &str) -> Option<String> {
    let mut out = String::new();
    if name == "registers" {
        out.push_str("| offset | bytes | name | access | meaning |\n|---|---|---|---|---|\n");
        for r in bar::REGISTERS {
            row(
                &mut out,
                &[
                    &hex(r.offset as u64),
                    &r.size,
                    &code(r.name),
                    &r.access,
                    &r.doc.trim(),
                ],
            );
        }
        return Some(out);
    }
    if let Some(s) = catalogue::STRUCTURES.iter().find(|s| s.name == name) {
        out.push_str("| offset | bytes | field | meaning |\n|---|---|---|---|\n");
        for f in s.fields {
            row(
                &mut out,
                &[&f.offset, &f.size, &code(f.name), &f.doc.trim()],
            );
        }
        return Some(out);
    }
    let set = catalogue::NUMBERS.iter().find(|n| n.name == name)?;
    out.push_str("| value | name | meaning |\n|---|---|---|\n");
    for n in set.numbers {
        row(&mut out, &[&hex(n.value), &code(n.name), &n.doc.trim()]);
    }
    Some(out)
}

fn hex(value: u64) -> String {
    format!("{value:#x}")
}

fn code(name: &str) -> String {
    format!("`{name}`")
}

fn row(out: &mut String, cells: &[&dyn std::fmt::Display]) {
    for cell in cells {
        out.push_str("| ");
        out.push_str(&cell.to_string());
        out.push(' ');
    }
    out.push_str("|\n");
}
