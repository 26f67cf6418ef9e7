//! The summary plot: how many times better ubtrfs is than the kernel's btrfs, and where FUSE's
//! bound is.

use plotters::element::Circle;
use plotters::prelude::DrawingBackend;
use plotters::style::Color;
use plotters::style::text_anchor::HPos;

use super::canvas::{Area, Drawn, FAINT, HEADLINES, INK, as_text, colour, foot, legend, line, origin, write};
use crate::samples::Results;
use crate::stats::{Summary as Figures, ratios, summary};

const WIDTH: u32 = 900;
const LEFT: i32 = 330;
const RIGHT: i32 = 860;
const TOP: i32 = 100;
const ROW: i32 = 30;

/// A case: ubtrfs's ratio to the kernel's btrfs, and the bound's.
struct Row {
    title: String,
    ours: Figures,
    bound: Option<Figures>,
}

/// The plot.
pub struct Summary {
    rows: Vec<Row>,
    origin: String,
}

impl Summary {
    /// The plot, if anything was measured on both.
    pub fn of(results: &Results) -> Option<Self> {
        let cases = results.cases.iter().filter(|case| HEADLINES.contains(&case.workload.as_str()));
        let rows: Vec<Row> = cases
            .filter_map(|case| {
                let (_, better) = results.kind(&case.name, &case.headline)?;
                let of = |peer: &str| results.values(&case.name, peer, &case.headline);
                let kernel = of("btrfs");
                let ratio = |peer: &str| summary(&ratios(&of(peer), &kernel, better));
                Some(Row { title: case.title.clone(), ours: ratio("ubtrfs")?, bound: ratio("null") })
            })
            .collect();
        (!rows.is_empty()).then(|| Self { rows, origin: origin(results) })
    }

    /// Pixels.
    pub fn size(&self) -> (u32, u32) {
        (WIDTH, (TOP + self.rows.len() as i32 * ROW + 80) as u32)
    }

    /// The scale's ends: doublings from 1 that include all values.
    fn ends(&self) -> (i32, i32) {
        let all = self.rows.iter().flat_map(|row| [Some(row.ours), row.bound]).flatten();
        let (low, high) =
            all.fold((0.5, 2.0), |(low, high): (f64, f64), ratio| (low.min(ratio.min), high.max(ratio.max)));
        (low.max(1e-3).log2().floor() as i32, high.min(1e3).log2().ceil() as i32)
    }

    /// Draws.
    pub fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Drawn {
        write(area, "How many times better than the kernel's btrfs, in the same run", (20, 26), 22, HPos::Left)?;
        legend(area, &["ubtrfs".into()], (20, 60))?;
        area.draw(&Circle::new((125, 60), 6, colour("null").stroke_width(2))).map_err(as_text)?;
        write(
            area,
            "what FUSE allows at most: a server in memory that pays only for barriers",
            (138, 60),
            15,
            HPos::Left,
        )?;
        let (low, high) = self.ends();
        let bottom = TOP + self.rows.len() as i32 * ROW;
        let x = |ratio: f64| {
            let share = (ratio.clamp(1e-3, 1e3).log2() - f64::from(low)) / f64::from(high - low);
            LEFT + (share * f64::from(RIGHT - LEFT)) as i32
        };
        for doubling in low..=high {
            let ratio = 2_f64.powi(doubling);
            let (ink, width) = if doubling == 0 { (INK, 2) } else { (FAINT, 1) };
            line(area, (x(ratio), TOP - 8), (x(ratio), bottom), ink, width)?;
            let label = if doubling < 0 { format!("1/{}", 1 << -doubling) } else { format!("{}×", 1 << doubling) };
            write(area, &label, (x(ratio), bottom + 14), 13, HPos::Center)?;
        }
        write(area, "worse", (LEFT, bottom + 34), 13, HPos::Left)?;
        write(area, "better", (RIGHT, bottom + 34), 13, HPos::Right)?;
        for (number, row) in self.rows.iter().enumerate() {
            let y = TOP + number as i32 * ROW + ROW / 2;
            write(area, &row.title, (LEFT - 14, y), 14, HPos::Right)?;
            if let Some(bound) = row.bound {
                area.draw(&Circle::new((x(bound.median), y), 6, colour("null").stroke_width(2))).map_err(as_text)?;
            }
            let ours = colour("ubtrfs");
            line(area, (x(row.ours.min), y), (x(row.ours.max), y), ours, 3)?;
            area.draw(&Circle::new((x(row.ours.median), y), 6, ours.filled())).map_err(as_text)?;
        }
        foot(area, &self.origin, self.size())
    }
}
