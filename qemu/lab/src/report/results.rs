// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The files that a run leaves beside the folders of its scenarios.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::{html, junit, Report};
use crate::{artefacts::Artefacts, info, scenario};

/// Writes `index.html` and `junit.xml` into a new folder of the runs, which it returns.
pub fn write(report: &Report, artefacts: &Artefacts) -> Result<PathBuf> {
    let dir = scenario::new_run_dir(&artefacts.runs(), "results")?;
    let record = info::record(artefacts)?;
    put(&dir.join("junit.xml"), &junit::xml(report)?)?;
    put(&dir.join("index.html"), &html::page(report, &record, &dir)?)?;
    Ok(dir)
}

fn put(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
