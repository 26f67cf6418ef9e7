//! The summary plot: the factor by which ubtrfs is better than the kernel's btrfs, with the same
//! backing and on a buffered loop device, and the bound of FUSE.

use plotters::element::Circle;
use plotters::prelude::{DrawingBackend, RGBColor};
use plotters::style::Color;
use plotters::style::text_anchor::HPos;

use super::canvas::{Area, Drawn, FAINT, INK, SUMMARY, as_text, colour, foot, line, origin, write};
use crate::comparison::{BOUND, BUFFERED, EQUAL, ratio};
use crate::samples::{CaseFacts, Results};
use crate::stats::Summary as Figures;

const OURS: &str = "ubtrfs";
const WIDTH: u32 = 900;
const LEFT: i32 = 360;
const RIGHT: i32 = 860;
const HEAD: i32 = 70;
const LEGEND: i32 = 26;
const ROW: i32 = 34;
/// The mark of the comparison with another backing, which is fainter, and lower in its row.
const SECOND: RGBColor = RGBColor(150, 180, 225);
const LOWER: i32 = 10;

/// A case: the ratios of ubtrfs to the kernel's btrfs, and that of the bound.
struct Row {
    title: String,
    first: Option<Figures>,
    buffered: Option<Figures>,
    bound: Option<Figures>,
}

/// The plot.
pub struct Summary {
    rows: Vec<Row>,
    /// Whether the first comparison is that with the same backing.
    is_equal: bool,
    origin: String,
}

impl Summary {
    /// Returns the plot, if anything was measured on both. If no peer with the same backing was
    /// measured, the buffered loop device replaces it.
    pub fn of(results: &Results) -> Option<Self> {
        let cases: Vec<&CaseFacts> =
            results.cases.iter().filter(|case| SUMMARY.contains(&case.workload.as_str())).collect();
        let is_equal = cases.iter().any(|case| ratio(results, case, OURS, EQUAL).is_some());
        let base = if is_equal { EQUAL } else { BUFFERED };
        let row = |case: &&CaseFacts| {
            let first = ratio(results, case, OURS, base);
            let buffered = is_equal.then(|| ratio(results, case, OURS, BUFFERED)).flatten();
            let bound = ratio(results, case, BOUND, base);
            (first.is_some() || buffered.is_some()).then(|| Row { title: case.title.clone(), first, buffered, bound })
        };
        let rows: Vec<Row> = cases.iter().filter_map(row).collect();
        (!rows.is_empty()).then(|| Self { rows, is_equal, origin: origin(results) })
    }

    /// Returns where the rows begin.
    fn top(&self) -> i32 {
        HEAD + if self.is_equal { 3 } else { 2 } * LEGEND + 8
    }

    /// Returns the size in pixels.
    pub fn size(&self) -> (u32, u32) {
        (WIDTH, (self.top() + self.rows.len() as i32 * ROW + 80) as u32)
    }

    /// Returns the ends of the scale, in doublings from 1, that include all values.
    fn ends(&self) -> (i32, i32) {
        let all = self.rows.iter().flat_map(|row| [row.first, row.buffered, row.bound]).flatten();
        let (low, high) =
            all.fold((0.5, 2.0), |(low, high): (f64, f64), ratio| (low.min(ratio.min), high.max(ratio.max)));
        (low.max(1e-3).log2().floor() as i32, high.min(1e3).log2().ceil() as i32)
    }

    /// Draws the marks with their meanings.
    fn legend<DB: DrawingBackend>(&self, area: &Area<DB>) -> Drawn {
        let mut lines = vec![(Mark::First, FIRST[usize::from(self.is_equal)])];
        if self.is_equal {
            lines.push((
                Mark::Buffered,
                "ubtrfs, against btrfs on a buffered loop device, which has the page cache below",
            ));
        }
        lines.push((
            Mark::Bound,
            "what FUSE allows at most, against the first: a server in memory that pays only for barriers",
        ));
        for (number, (mark, words)) in lines.into_iter().enumerate() {
            let y = HEAD + number as i32 * LEGEND;
            mark.draw(area, (30, y))?;
            write(area, words, (48, y), 15, HPos::Left)?;
        }
        Ok(())
    }

    /// Draws the plot.
    pub fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Drawn {
        write(area, "How many times better than the kernel's btrfs, in the same run", (20, 26), 22, HPos::Left)?;
        self.legend(area)?;
        let (low, high) = self.ends();
        let top = self.top();
        let bottom = top + self.rows.len() as i32 * ROW;
        let x = |ratio: f64| {
            let share = (ratio.clamp(1e-3, 1e3).log2() - f64::from(low)) / f64::from(high - low);
            LEFT + (share * f64::from(RIGHT - LEFT)) as i32
        };
        for doubling in low..=high {
            let ratio = 2_f64.powi(doubling);
            let (ink, width) = if doubling == 0 { (INK, 2) } else { (FAINT, 1) };
            line(area, (x(ratio), top - 8), (x(ratio), bottom), ink, width)?;
            let label = if doubling < 0 { format!("1/{}", 1 << -doubling) } else { format!("{}×", 1 << doubling) };
            write(area, &label, (x(ratio), bottom + 14), 13, HPos::Center)?;
        }
        write(area, "worse", (LEFT, bottom + 34), 13, HPos::Left)?;
        write(area, "better", (RIGHT, bottom + 34), 13, HPos::Right)?;
        for (number, row) in self.rows.iter().enumerate() {
            let middle = top + number as i32 * ROW + ROW / 2;
            write(area, &row.title, (LEFT - 14, middle), 14, HPos::Right)?;
            let marks = [(Mark::Bound, row.bound), (Mark::Buffered, row.buffered), (Mark::First, row.first)];
            for (mark, found) in marks {
                let Some(found) = found else { continue };
                let y = middle + if mark == Mark::Buffered { LOWER } else { 0 };
                if let Some((colour, width)) = mark.spread() {
                    line(area, (x(found.min), y), (x(found.max), y), colour, width)?;
                }
                mark.draw(area, (x(found.median), y))?;
            }
        }
        foot(area, &self.origin, self.size())
    }
}

/// The meaning of the first mark, without a peer of equal backing and with one.
const FIRST: [&str; 2] = [
    "ubtrfs, against btrfs on a buffered loop device, which has the page cache below",
    "ubtrfs, against btrfs on a loop device with direct I/O: equal backing",
];

/// The mark of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    First,
    Buffered,
    Bound,
}

impl Mark {
    /// Returns colour and width of the line that shows the spread.
    fn spread(self) -> Option<(RGBColor, u32)> {
        match self {
            Self::First => Some((colour(OURS), 3)),
            Self::Buffered => Some((SECOND, 2)),
            Self::Bound => None,
        }
    }

    fn draw<DB: DrawingBackend>(self, area: &Area<DB>, at: (i32, i32)) -> Drawn {
        let (radius, style) = match self {
            Self::First => (6, colour(OURS).filled()),
            Self::Buffered => (4, SECOND.filled()),
            Self::Bound => (8, colour(BOUND).stroke_width(2)),
        };
        area.draw(&Circle::new(at, radius, style)).map_err(as_text)
    }
}
