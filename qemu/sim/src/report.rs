// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The page with goals and plots.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, Result};
use plotters::prelude::*;

use crate::anchors::{Anchors, ClusterAnchor};
use crate::cluster::{Cluster, MS};
use crate::goals::{self, Line};
use crate::scheme::Scheme;
use crate::validate::at_percentiles;

/// What to write.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Folder for index.html, goals.json, goals.csv and the plots.
    #[arg(long)]
    out: PathBuf,
    #[command(flatten)]
    goals: goals::Options,
}

/// Measures and writes everything.
pub fn run(options: Options) -> Result<ExitCode> {
    std::fs::create_dir_all(&options.out)?;
    let lines = goals::measure(&options.goals);
    std::fs::write(
        options.out.join("goals.json"),
        serde_json::to_string_pretty(&lines)?,
    )?;
    std::fs::write(options.out.join("goals.csv"), goals::csv(&lines))?;
    let mut page = page_head(&lines);
    if options.goals.clusters {
        for anchor in Anchors::load()?
            .cluster
            .iter()
            .filter(|a| a.scheme == Scheme::DcqcnWindow)
        {
            let name = format!("{}-{:.0}.svg", anchor.traffic.name(), 100.0 * anchor.load);
            plot(&options.out.join(&name), anchor, options.goals.ms)?;
            let _ = writeln!(
                page,
                "<img src=\"{name}\" alt=\"p99 slowdown by size percentile\">"
            );
        }
    }
    std::fs::write(options.out.join("index.html"), page + "</body></html>\n")?;
    println!("{}", options.out.join("index.html").display());
    Ok(ExitCode::SUCCESS)
}

fn page_head(lines: &[Line]) -> String {
    let mut page = String::from(
        "<!DOCTYPE html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <title>Qiao congestion control</title></head><body><h1>Goals</h1><table border=\"1\">\n",
    );
    for line in lines {
        let sign = if line.at_most { "&le;" } else { "&ge;" };
        let met = if line.met() { "met" } else { "<b>missed</b>" };
        let _ = writeln!(
            page,
            "<tr><td>{}<td>{}<td>{:.3}<td>{sign} {}<td>{met}</tr>",
            line.row, line.what, line.got, line.must
        );
    }
    page + "</table>\n"
}

/// 99th percentile slowdown of the default by size, with the published DCQCN with window.
fn plot(path: &Path, anchor: &ClusterAnchor, ms: u64) -> Result<()> {
    const SIZES: [f64; 5] = [2.0, 50.0, 70.0, 90.0, 99.0];
    let cluster = Cluster {
        warm_up: ms * MS,
        measured: ms * MS,
        ..Cluster::paper(anchor.traffic, anchor.load)
    };
    let summary = cluster.run(Scheme::Auto.reference(), Scheme::Auto.name());
    let ours = at_percentiles(&summary.slowdowns, 5000).map(|bucket| bucket.p99);
    let top = ours.iter().chain(&anchor.p99).copied().fold(1.0, f64::max) * 1.1;
    let title = format!(
        "{} {:.0} %: p99 slowdown",
        anchor.traffic.name(),
        100.0 * anchor.load
    );
    let failed = |error: DrawingAreaErrorKind<_>| anyhow!("{}: {error}", path.display());
    let area = SVGBackend::new(path, (640, 400)).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 18))
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(45)
        .build_cartesian_2d(0.0..100.0, 0.0..top)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("flow size percentile")
        .draw()
        .map_err(failed)?;
    for (name, values, colour) in [
        ("auto", ours, BLUE),
        ("DCQCN+w (published)", anchor.p99, RED),
    ] {
        chart
            .draw_series(LineSeries::new(SIZES.into_iter().zip(values), colour))
            .map_err(failed)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour));
    }
    chart
        .configure_series_labels()
        .border_style(BLACK)
        .draw()
        .map_err(failed)?;
    area.present().map_err(failed)
}
