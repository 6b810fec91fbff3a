// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Format, lints and licences of the sources.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::LazyLock,
};

use anyhow::{ensure, Context, Result};
use ignore::WalkBuilder;
use regex::Regex;

use super::{kernel, run_tool, workspaces};
use crate::{artefacts::Artefacts, report::Report};

/// The driver: no `unsafe`, no way around the lint that forbids it, and no raw bindings.
const DRIVER_DIR: &str = "drivers";
/// Folders with Rust code that Kbuild compiles.
const KERNEL_RUST_DIRS: [&str; 4] = ["rust-ext", DRIVER_DIR, "kunit", "qemu/lab/hello"];

/// Licence expressions by folder; the first prefix that fits decides. The empty one is the default.
const LICENCES: [(&str, &str); 11] = [
    ("uapi/", "((GPL-2.0 WITH Linux-syscall-note) OR MIT)"),
    ("drivers/infiniband/hw/qiao/hw/", "GPL-2.0 OR MIT"),
    ("drivers/infiniband/hw/qiao/cc/", "GPL-2.0 OR MIT"),
    ("drivers/", "GPL-2.0"),
    ("rust-ext/", "GPL-2.0"),
    ("kunit/", "GPL-2.0"),
    ("Kbuild", "GPL-2.0"),
    ("qemu/lab/hello/", "GPL-2.0"),
    ("provider/", "GPL-2.0 OR MIT"),
    ("qemu/", "GPL-2.0 OR MIT"),
    ("", "GPL-2.0 OR MIT"),
];
/// Files that hold licence texts or are written by a tool.
const WITHOUT_LICENCE_LINE: [&str; 3] = ["LICENSES/", "COPYING", "Cargo.lock"];
/// Lines in which the licence must stand: the first, or the second after `#!`, or further down in a page with a title.
const LICENCE_LINES: usize = 5;

/// Runs every check of the sources.
pub(super) fn check(artefacts: &Artefacts, report: &mut Report) {
    let top = artefacts.top.as_path();
    let files = match repository_files(top) {
        Ok(files) => files,
        Err(error) => return report.add("list the sources", false, format!("{error:#}")),
    };
    report.test("SPDX licence lines", || licence_lines(top, &files));
    report.test("no unsafe and no raw bindings in drivers/", || {
        safe_driver(top, &files)
    });
    report.test("shellcheck", || shellcheck(top, &files));
    report.test("rustfmt of kernel code", || {
        kernel_rustfmt(artefacts, &files)
    });
    report.test("codespell", || {
        // Static variables of Rust are called statics.
        let options = ["--ignore-words-list", "aer,statics"];
        run_tool(
            Command::new("codespell")
                .args(options)
                .args(&files)
                .current_dir(top),
        )
    });
    kernel::check(artefacts, &files, report);
    for dir in workspaces(top) {
        let name = dir
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        report.test(format!("rustfmt ({name})"), || {
            run_tool(
                Command::new("cargo")
                    .args(["fmt", "--all", "--check"])
                    .current_dir(&dir),
            )
        });
        report.test(format!("clippy ({name})"), || {
            let mut clippy = Command::new("cargo");
            clippy.args([
                "clippy",
                "--workspace",
                "--all-targets",
                "--locked",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ]);
            run_tool(clippy.current_dir(&dir))
        });
    }
}

/// Every file that Git would track, relative to the top.
fn repository_files(top: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in WalkBuilder::new(top)
        .hidden(false)
        .require_git(false)
        .build()
    {
        let entry = entry?;
        let path = entry.path().strip_prefix(top)?;
        if entry.file_type().is_some_and(|kind| kind.is_file()) && !path.starts_with(".git") {
            files.push(path.to_owned());
        }
    }
    files.sort();
    Ok(files)
}

fn licence_lines(top: &Path, files: &[PathBuf]) -> Result<String> {
    let mut wrong = String::new();
    let mut count = 0;
    for file in files {
        let name = file.to_string_lossy();
        if WITHOUT_LICENCE_LINE
            .iter()
            .any(|part| name.starts_with(part) || name.ends_with(part))
        {
            continue;
        }
        count += 1;
        let content = fs::read(top.join(file)).with_context(|| format!("reading {name}"))?;
        let expected = expected_licence(&name);
        match licence(&String::from_utf8_lossy(&content)) {
            Some(found) if found == expected => {}
            Some(found) => wrong += &format!("\n{name}: {found:?} instead of {expected:?}"),
            None => {
                wrong += &format!(
                    "\n{name}: no SPDX-License-Identifier in the first {LICENCE_LINES} lines"
                )
            }
        }
    }
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(format!("{count} files"))
}

fn expected_licence(name: &str) -> &'static str {
    LICENCES
        .iter()
        .find(|(prefix, _)| name.starts_with(prefix))
        .map_or("", |(_, licence)| licence)
}

fn licence(content: &str) -> Option<&str> {
    let line = content
        .lines()
        .take(LICENCE_LINES)
        .find_map(|line| line.split_once("SPDX-License-Identifier:"))?
        .1;
    Some(line.trim_end_matches("*/").trim_end_matches("-->").trim())
}

fn safe_driver(top: &Path, files: &[PathBuf]) -> Result<String> {
    let mut wrong = String::new();
    let mut count = 0;
    for file in rust_files(files, &[DRIVER_DIR]) {
        count += 1;
        let content = fs::read_to_string(top.join(file))?;
        for (line, what) in unsafe_lines(&content) {
            wrong += &format!("\n{}:{line}: {what}", file.display());
        }
    }
    ensure!(wrong.is_empty(), "{wrong}");
    Ok(format!("{count} files"))
}

/// Lines, counted from 1, with what the driver may not have.
fn unsafe_lines(content: &str) -> Vec<(usize, &str)> {
    static FORBIDDEN: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"\bunsafe\b|\bunsafe_code\b|\b(?:bindings|rdma_bindings)::")
            .expect("the pattern is a constant")
    });
    content
        .lines()
        .enumerate()
        .filter(|(_, line)| {
            let code = line.split("//").next().unwrap_or_default();
            let lint = ["#![deny(unsafe_code)]", "#![forbid(unsafe_code)]"].contains(&code.trim());
            FORBIDDEN.is_match(code) && !lint
        })
        .map(|(index, line)| (index + 1, line.trim()))
        .collect()
}

fn shellcheck(top: &Path, files: &[PathBuf]) -> Result<&'static str> {
    let scripts = files.iter().filter(|file| {
        let first = fs::read_to_string(top.join(file)).unwrap_or_default();
        file.extension().is_some_and(|extension| extension == "sh")
            || first.starts_with("#!/bin/bash")
            || first.starts_with("#!/bin/sh")
    });
    run_tool(
        Command::new("shellcheck")
            .args(["--external-sources", "--source-path=SCRIPTDIR"])
            .args(scripts)
            .current_dir(top),
    )
}

fn kernel_rustfmt(artefacts: &Artefacts, files: &[PathBuf]) -> Result<&'static str> {
    let config = artefacts.kernel_source.join(".rustfmt.toml");
    let sources = rust_files(files, &KERNEL_RUST_DIRS);
    let mut rustfmt = Command::new("rustfmt");
    rustfmt
        .args(["--check", "--edition", "2021", "--config-path"])
        .arg(config)
        .args(sources);
    run_tool(rustfmt.current_dir(&artefacts.top))
}

fn rust_files<'a>(files: &'a [PathBuf], dirs: &[&str]) -> Vec<&'a PathBuf> {
    files
        .iter()
        .filter(|file| file.extension().is_some_and(|extension| extension == "rs"))
        .filter(|file| dirs.iter().any(|dir| file.starts_with(dir)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licences_by_folder() {
        assert_eq!(
            expected_licence("drivers/infiniband/hw/qiao/hw/wqe.rs"),
            "GPL-2.0 OR MIT"
        );
        assert_eq!(
            expected_licence("drivers/infiniband/hw/qiao/cq.rs"),
            "GPL-2.0"
        );
        assert_eq!(expected_licence("Makefile"), "GPL-2.0 OR MIT");
    }

    #[test]
    fn licence_of_each_kind_of_comment() {
        assert_eq!(
            licence("#!/bin/sh\n# SPDX-License-Identifier: GPL-2.0\n"),
            Some("GPL-2.0")
        );
        assert_eq!(
            licence("/* SPDX-License-Identifier: GPL-2.0 OR MIT */\n"),
            Some("GPL-2.0 OR MIT")
        );
        assert_eq!(
            licence("<!-- SPDX-License-Identifier: MIT -->\n"),
            Some("MIT")
        );
        assert_eq!(licence("\n\n\n\n\n// SPDX-License-Identifier: MIT\n"), None);
    }

    #[test]
    fn what_a_driver_may_not_have_is_found() {
        let code = "#![deny(unsafe_code)]\n// unsafe in a comment\n#[allow(unsafe_code)]\nunsafe { x() }\nbindings::ib_x();\n";
        let lines: Vec<usize> = unsafe_lines(code)
            .into_iter()
            .map(|(line, _)| line)
            .collect();
        assert_eq!(lines, [3, 4, 5]);
    }
}
