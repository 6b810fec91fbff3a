// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Lints of what Kbuild compiles: Clippy as the kernel runs it, and checkpatch.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{bail, ensure, Context, Result};

use super::run_tool;
use crate::{artefacts::Artefacts, report::Report};

/// Modules by the folder of their Kbuild file and the name of an object folder.
const MODULES: [(&str, &str); 3] = [
    ("qemu/lab/hello", "clippy-hello"),
    ("kunit/kclient", "warnings-kclient"),
    ("", "clippy-module"),
];
/// Folders whose files go upstream.
const UPSTREAM_DIRS: [&str; 4] = ["drivers", "rust-ext", "uapi", "kunit"];

/// A test for each module that is in the tree, and one for the files that go upstream.
pub(super) fn check(artefacts: &Artefacts, files: &[PathBuf], report: &mut Report) {
    for (dir, name) in MODULES {
        if artefacts.top.join(dir).join("Kbuild").exists() {
            report.test(format!("{name} (Kbuild)"), || clippy(artefacts, dir, name));
        }
    }
    report.test("checkpatch", || checkpatch(artefacts, files));
}

/// Builds a module with Clippy in place of the compiler. No warning may be left.
fn clippy(artefacts: &Artefacts, dir: &str, name: &str) -> Result<&'static str> {
    let objects = artefacts.build.join(name);
    fs::create_dir_all(&objects)?;
    let output = Command::new("make")
        .arg("-C")
        .arg(&artefacts.kernel_objects)
        .arg(format!("CC={}", artefacts.kernel_cc()?))
        .arg(format!("M={}", artefacts.top.join(dir).display()))
        .arg(format!("MO={}", objects.display()))
        .args(["CLIPPY=1", "modules"])
        .output()
        .context("starting make")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() || said.contains("warning:") {
        // Make would not compile an object again, and so not warn again.
        remove(&objects)?;
        bail!("{} from make\n{said}", output.status);
    }
    Ok("")
}

fn remove(dir: &Path) -> Result<()> {
    fs::remove_dir_all(dir).with_context(|| format!("removing {}", dir.display()))
}

/// The kernel's own style checker over every file that goes upstream: no error and no warning.
fn checkpatch(artefacts: &Artefacts, files: &[PathBuf]) -> Result<String> {
    let files: Vec<&PathBuf> = files
        .iter()
        .filter(|file| UPSTREAM_DIRS.iter().any(|dir| file.starts_with(dir)))
        .filter(|file| {
            ["c", "h", "rs"]
                .iter()
                .any(|kind| file.extension().is_some_and(|extension| extension == *kind))
        })
        .collect();
    if files.is_empty() {
        return Ok("nothing goes upstream yet".into());
    }
    let script = artefacts.kernel_source.join("scripts/checkpatch.pl");
    ensure!(script.exists(), "{} is missing", script.display());
    let mut checkpatch = Command::new("perl");
    checkpatch.arg(script).args([
        "--no-tree",
        "--strict",
        "--terse",
        "--no-summary",
        "--show-types",
        "--quiet",
        "--file",
    ]);
    run_tool(checkpatch.args(&files).current_dir(&artefacts.top))?;
    Ok(format!("{} files", files.len()))
}
