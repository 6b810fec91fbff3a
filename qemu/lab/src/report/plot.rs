// SPDX-License-Identifier: GPL-2.0 OR MIT

//! Plots as SVG.

use anyhow::{anyhow, Context, Result};
use plotters::prelude::*;

use super::Series;

const SIZE: (u32, u32) = (640, 300);

/// Draws a series, its first number by its logarithm.
pub(super) fn svg(series: &Series) -> Result<String> {
    let mut text = String::new();
    draw(series, &mut text).with_context(|| format!("plotting {}", series.title))?;
    Ok(text)
}

fn draw(series: &Series, text: &mut String) -> Result<()> {
    let failed = |error: DrawingAreaErrorKind<_>| anyhow!("{error}");
    let xs = series.points.iter().map(|(x, _)| *x);
    let (low, high) = xs.fold((f64::MAX, f64::MIN), |(low, high), x| {
        (low.min(x), high.max(x))
    });
    let top = series.points.iter().map(|(_, y)| *y).fold(0.0, f64::max) * 1.1;
    let area = SVGBackend::with_string(text, SIZE).into_drawing_area();
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(&series.title, ("sans-serif", 16))
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(60)
        .build_cartesian_2d((low..high).log_scale(), 0.0..top)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc(series.x)
        .y_desc(series.y)
        .draw()
        .map_err(failed)?;
    chart
        .draw_series(LineSeries::new(series.points.iter().copied(), BLUE))
        .map_err(failed)?;
    let dots = series
        .points
        .iter()
        .map(|point| Circle::new(*point, 3, BLUE.filled()));
    chart.draw_series(dots).map_err(failed)?;
    area.present().map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_its_title_and_a_dot_for_each_point() {
        let series = Series {
            title: "bandwidth".into(),
            x: "bytes",
            y: "MiB/s",
            points: vec![(8.0, 1.0), (1024.0, 30.0), (65536.0, 300.0)],
        };
        let text = svg(&series).unwrap();
        assert!(text.starts_with("<svg"));
        assert!(text.contains("bandwidth"));
        assert_eq!(text.matches("<circle").count(), 3);
    }
}
