// SPDX-License-Identifier: GPL-2.0 OR MIT

//! The page with goals and plots.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{anyhow, Result};
use plotters::prelude::*;

use crate::anchors::{Anchors, ClusterAnchor};
use crate::canvas::Canvas;
use crate::cluster::{Cluster, MS};
use crate::goals::{self, Line};
use crate::micro::{Case, Outcome};
use crate::scheme::Scheme;
use crate::validate::READ_AT;

const SIZE: (u32, u32) = (800, 500);

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
    let anchors = Anchors::load()?;
    let lines = goals::measure(&options.goals)?;
    std::fs::write(
        options.out.join("goals.json"),
        serde_json::to_string_pretty(&lines)?,
    )?;
    std::fs::write(options.out.join("goals.csv"), goals::csv(&lines))?;
    let mut plots = incast_plots(&anchors);
    if options.goals.clusters {
        plots.extend(cluster_plots(&anchors, options.goals.ms));
    }
    let mut page = page_head(&lines);
    for plot in &plots {
        plot.save(&options.out)?;
        let name = &plot.name;
        let _ = writeln!(
            page,
            "<p><a href=\"{name}.png\"><img src=\"{name}.svg\" alt=\"{}\"></a>",
            plot.title
        );
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
    page + "</table>\n<h1>Plots</h1>Lines are simulated here, dots are published.\n"
}

/// What is seen over x.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    /// Numbers of others, which are drawn as dots.
    published: bool,
}

struct Plot {
    name: String,
    title: String,
    x_name: &'static str,
    curves: Vec<Curve>,
}

impl Plot {
    /// Writes it as SVG and as PNG.
    fn save(&self, folder: &Path) -> Result<()> {
        let svg = folder.join(format!("{}.svg", self.name));
        let png = folder.join(format!("{}.png", self.name));
        self.draw(SVGBackend::new(&svg, SIZE))
            .map_err(|error| anyhow!("{}: {error}", svg.display()))?;
        self.draw(Canvas::new(png.clone(), SIZE))
            .map_err(|error| anyhow!("{}: {error}", png.display()))
    }

    fn draw<B: DrawingBackend>(
        &self,
        backend: B,
    ) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
        let all = || self.curves.iter().flat_map(|curve| &curve.points);
        let right = all().map(|point| point.0).fold(1.0, f64::max);
        let top = all().map(|point| point.1).fold(1.0, f64::max) * 1.1;
        let area = backend.into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(0.0..right, 0.0..top)?;
        chart.configure_mesh().x_desc(self.x_name).draw()?;
        for (index, curve) in self.curves.iter().enumerate() {
            let colour = Palette99::pick(index).to_rgba();
            let points = curve.points.iter().copied();
            let series = if curve.published {
                chart.draw_series(points.map(|point| Circle::new(point, 4, colour.filled())))?
            } else {
                chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?
            };
            series.label(&curve.name).legend(move |(x, y)| {
                Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled())
            });
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
        area.present()
    }
}

/// Goodput and queue by the number of senders, with the small anchors.
fn incast_plots(anchors: &Anchors) -> Vec<Plot> {
    const SENDERS: [u32; 8] = [2, 4, 8, 16, 32, 64, 128, 256];
    let x = |senders: u32| f64::from(senders).log2();
    type Value = (&'static str, &'static str, fn(&Outcome) -> f64);
    const VALUES: [Value; 2] = [
        ("incast-goodput", "goodput in %", |o| o.goodput),
        ("incast-queue", "queue p99 in KB", |o| o.q_p99),
    ];
    let ours = [Scheme::Auto, Scheme::AutoInt].map(|scheme| {
        let run = |senders| Case::Incast(senders).run(scheme.reference(), 1);
        (scheme, SENDERS.map(|senders| (senders, run(senders))))
    });
    VALUES
        .into_iter()
        .map(|(name, what, value)| {
            let mut curves: Vec<Curve> = ours
                .iter()
                .map(|(scheme, runs)| Curve {
                    name: scheme.name().to_owned(),
                    points: runs.iter().map(|(n, o)| (x(*n), value(o))).collect(),
                    published: false,
                })
                .collect();
            for scheme in [Scheme::Hpcc, Scheme::DcqcnWindow, Scheme::Dctcp] {
                let of_scheme = anchors
                    .small
                    .iter()
                    .filter(|anchor| anchor.scheme == scheme);
                let points = of_scheme.filter_map(|anchor| {
                    let (Case::Incast(n), Some(queue)) = (anchor.case, anchor.queue) else {
                        return None;
                    };
                    let published = Outcome {
                        goodput: anchor.goodput,
                        q_p99: queue[2],
                        ..Outcome::default()
                    };
                    Some((x(n), value(&published)))
                });
                curves.push(Curve {
                    name: format!("{} (published)", scheme.name()),
                    points: points.collect(),
                    published: true,
                });
            }
            Plot {
                name: name.to_owned(),
                title: format!("Incast at 100 Gb/s: {what}"),
                x_name: "log2 of the number of senders",
                curves,
            }
        })
        .collect()
}

/// 99th percentile slowdown by size, with the anchors of the same traffic.
fn cluster_plots(anchors: &Anchors, ms: u64) -> Vec<Plot> {
    let all = &anchors.cluster;
    let of_window = all.iter().filter(|a| a.scheme == Scheme::DcqcnWindow);
    of_window
        .map(|anchor| {
            let mut curves: Vec<Curve> = [Scheme::Auto, Scheme::AutoInt]
                .map(|scheme| simulated(anchor, scheme, ms))
                .into();
            let same = |a: &&ClusterAnchor| (a.traffic, a.load) == (anchor.traffic, anchor.load);
            curves.extend(all.iter().filter(same).map(|published| Curve {
                name: format!("{} (published)", published.scheme.name()),
                points: READ_AT.into_iter().zip(published.p99).collect(),
                published: true,
            }));
            let percent = 100.0 * anchor.load;
            Plot {
                name: format!("{}-{percent:.0}", anchor.traffic.name()),
                title: format!("{} {percent:.0} %: p99 slowdown", anchor.traffic.name()),
                x_name: "flow size percentile",
                curves,
            }
        })
        .collect()
}

fn simulated(anchor: &ClusterAnchor, scheme: Scheme, ms: u64) -> Curve {
    const PARTS: usize = 20;
    let cluster = Cluster {
        warm_up: ms * MS,
        measured: ms * MS,
        ..Cluster::paper(anchor.traffic, anchor.load)
    };
    let summary = cluster.run(scheme.reference(), scheme.name());
    let parts = summary.slowdowns.parts(PARTS).enumerate();
    let middle = |i: usize| (i as f64 + 0.5) * 100.0 / PARTS as f64;
    Curve {
        name: scheme.name().to_owned(),
        points: parts.map(|(i, part)| (middle(i), part.p99)).collect(),
        published: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The plot is there in both forms: the curve as pixels of its colour, and its name as text.
    #[test]
    fn a_plot_is_written_as_svg_and_as_png() {
        let folder = std::env::temp_dir().join(format!("qiao-plot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let plot = Plot {
            name: "test".to_owned(),
            title: "title".to_owned(),
            x_name: "x",
            curves: vec![Curve {
                name: "curve".to_owned(),
                points: vec![(0.0, 0.0), (1.0, 1.0)],
                published: false,
            }],
        };
        plot.save(&folder).unwrap();
        let svg = std::fs::read_to_string(folder.join("test.svg")).unwrap();
        let file = std::fs::File::open(folder.join("test.png")).unwrap();
        let mut reader = png::Decoder::new(std::io::BufReader::new(file))
            .read_info()
            .unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(svg.contains("curve"));
        let (red, green, blue) = Palette99::pick(0).to_rgba().rgb();
        let of_curve = |pixel: &&[u8]| **pixel == [red, green, blue];
        assert!(pixels.chunks(3).filter(of_curve).count() > 100);
    }
}
