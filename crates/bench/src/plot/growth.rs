//! The plot of growing costs: a panel for each curve, a line for each peer, and both scales in
//! powers of ten.

use std::collections::BTreeMap;

use plotters::chart::ChartBuilder;
use plotters::prelude::{DrawingBackend, IntoLogRange, LineSeries};
use plotters::style::Color;
use plotters::style::text_anchor::HPos;

use super::canvas::{Area, Drawn, FAINT, INK, as_text, colour, foot, legend, origin, text, write};
use crate::samples::Results;
use crate::stats::summary;

const COLUMNS: usize = 3;
const PANEL: (u32, u32) = (330, 250);
const HEAD: u32 = 90;
const FOOT: u32 = 40;

/// The points of a peer.
type Curve = Vec<(f64, f64)>;

struct Panel<'a> {
    title: String,
    unit: &'a str,
    curves: Vec<(&'a str, Curve)>,
}

/// The plot.
pub struct Growth<'a> {
    panels: Vec<Panel<'a>>,
    peers: Vec<String>,
    origin: String,
}

impl<'a> Growth<'a> {
    /// Returns the plot, if there are curves of at least two points.
    pub fn of(results: &'a Results) -> Option<Self> {
        let mut panels = Vec::new();
        for case in
            results.cases.iter().filter(|case| matches!(case.workload.as_str(), "growth" | "snapshots" | "volume"))
        {
            let samples = results.samples.iter().filter(|sample| sample.case == case.name);
            let mut names: Vec<_> = samples.flat_map(|sample| &sample.measured.series).collect();
            names.sort_by_key(|(name, _)| *name);
            names.dedup_by_key(|(name, _)| *name);
            for (name, series) in names {
                let curve = |peer: &'a str| {
                    let curve = medians(results, &case.name, peer, name);
                    (curve.len() > 1).then_some((peer, curve))
                };
                let curves: Vec<_> = results.peers.iter().filter_map(|peer| curve(&peer.name)).collect();
                if !curves.is_empty() {
                    panels.push(Panel { title: format!("{name}, by {}", series.along), unit: &series.unit, curves });
                }
            }
        }
        let has = |peer: &String| panels.iter().any(|panel| panel.curves.iter().any(|(name, _)| name == peer));
        let peers: Vec<String> = results.peers.iter().map(|peer| peer.name.clone()).filter(has).collect();
        (!panels.is_empty()).then(|| Self { panels, peers, origin: origin(results) })
    }

    /// Returns the size in pixels.
    pub fn size(&self) -> (u32, u32) {
        let rows = self.panels.len().div_ceil(COLUMNS) as u32;
        (PANEL.0 * COLUMNS as u32, HEAD + rows * PANEL.1 + FOOT)
    }

    /// Draws the plot.
    pub fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Drawn {
        write(area, "How cost grows (less is better, flat is best)", (20, 26), 22, HPos::Left)?;
        legend(area, &self.peers, (20, 60))?;
        foot(area, &self.origin, self.size())?;
        for (number, panel) in self.panels.iter().enumerate() {
            let (column, row) = ((number % COLUMNS) as u32, (number / COLUMNS) as u32);
            let place = (column * PANEL.0, HEAD + row * PANEL.1);
            panel.draw(&area.clone().shrink(place, PANEL))?;
        }
        Ok(())
    }
}

impl Panel<'_> {
    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Drawn {
        let points = || self.curves.iter().flat_map(|(_, curve)| curve);
        let range = |of: fn(&(f64, f64)) -> f64| {
            let all = points().map(of).filter(|value| *value > 0.0);
            let (low, high) = all.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
            (low, high.max(low * 1.01))
        };
        let (left, right) = range(|point| point.0);
        let (low, high) = range(|point| point.1);
        let power = |value: f64| 10_f64.powf(value);
        let (low, high) = (power(low.log10().floor()), power(high.log10().ceil().max(low.log10().floor() + 1.0)));
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .margin_right(18)
            .caption(&self.title, text(14, HPos::Left, plotters::style::text_anchor::VPos::Top))
            .x_label_area_size(24)
            .y_label_area_size(56)
            .build_cartesian_2d((left..right).log_scale(), (low..high).log_scale())
            .map_err(as_text)?;
        let small = || text(12, HPos::Center, plotters::style::text_anchor::VPos::Top);
        chart
            .configure_mesh()
            .light_line_style(plotters::style::TRANSPARENT)
            .bold_line_style(FAINT)
            .axis_style(INK)
            .x_label_style((super::canvas::FAMILY, 12))
            .y_label_style((super::canvas::FAMILY, 12))
            .axis_desc_style(small())
            .x_labels(6)
            .y_labels(5)
            .x_label_formatter(&|value| amount(*value))
            .y_label_formatter(&|value| format!("{} {}", amount(*value), self.unit))
            .draw()
            .map_err(as_text)?;
        for (peer, curve) in &self.curves {
            let width = if *peer == "ubtrfs" { 3 } else { 2 };
            let points = curve.iter().copied().filter(|(_, value)| *value > 0.0);
            let series = LineSeries::new(points, colour(peer).stroke_width(width)).point_size(2);
            chart.draw_series(series).map_err(as_text)?;
        }
        Ok(())
    }
}

/// Returns the medians over all rounds of each point of a curve.
fn medians(results: &Results, case: &str, peer: &str, series: &str) -> Curve {
    // Values on the x-axis are whole numbers, and sorted as such.
    let mut points: BTreeMap<u64, Vec<f64>> = BTreeMap::new();
    for sample in results.of(case, peer) {
        for (at, value) in sample.measured.series.get(series).into_iter().flat_map(|series| &series.points) {
            points.entry(*at as u64).or_default().push(*value);
        }
    }
    points.into_iter().filter_map(|(at, values)| Some((at as f64, summary(&values)?.median))).collect()
}

/// Returns a number in few letters.
fn amount(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{}G", (value / 1e9).round()),
        value if value >= 1e6 => format!("{}M", (value / 1e6).round()),
        value if value >= 1e3 => format!("{}k", (value / 1e3).round()),
        value if value >= 1.0 => format!("{}", value.round()),
        value => format!("{value:.2}"),
    }
}
