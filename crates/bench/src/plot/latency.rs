//! The plot of the times of operations during commits and without them: a panel for each operation,
//! with percentiles from left to right.

use plotters::element::Circle;
use plotters::prelude::DrawingBackend;
use plotters::style::Color;
use plotters::style::text_anchor::HPos;

use super::canvas::{Area, Drawn, FAINT, INK, as_text, colour, foot, legend, line, origin, write};
use crate::samples::Results;
use crate::table::{Latency, latencies, short};

const COLUMNS: usize = 3;
const PANEL: (i32, i32) = (300, 240);
const HEAD: i32 = 90;
const FOOT: i32 = 40;
const NAMES: [&str; 4] = ["50 %", "99 %", "99.9 %", "longest"];

/// The plot.
pub struct Latencies {
    operations: Vec<String>,
    all: Vec<Latency>,
    peers: Vec<String>,
    origin: String,
}

impl Latencies {
    /// Returns the plot, if latencies during commits were measured.
    pub fn of(results: &Results) -> Option<Self> {
        let wanted = |found: &Latency| matches!(found.when.as_str(), "alone" | "during commits");
        let all: Vec<Latency> =
            latencies(results).into_iter().filter(|found| found.case == "latency" && wanted(found)).collect();
        let mut operations: Vec<String> = all.iter().map(|found| found.operation.clone()).collect();
        operations.dedup();
        let peers = results.peers.iter().map(|peer| peer.name.clone());
        let peers = peers.filter(|peer| all.iter().any(|found| found.peer == *peer)).collect();
        (!all.is_empty()).then(|| Self { operations, all, peers, origin: origin(results) })
    }

    /// Returns the size in pixels.
    pub fn size(&self) -> (u32, u32) {
        let rows = self.operations.len().div_ceil(COLUMNS) as i32;
        ((PANEL.0 * COLUMNS as i32) as u32, (HEAD + rows * PANEL.1 + FOOT) as u32)
    }

    /// Draws the plot.
    pub fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Drawn {
        let title = "Time of operations: thin while nothing else happens, thick while a commit runs (less is better)";
        write(area, title, (20, 26), 19, HPos::Left)?;
        legend(area, &self.peers, (20, 60))?;
        foot(area, &self.origin, self.size())?;
        for (number, operation) in self.operations.iter().enumerate() {
            let (column, row) = ((number % COLUMNS) as i32, (number / COLUMNS) as i32);
            self.panel(area, operation, (column * PANEL.0, HEAD + row * PANEL.1))?;
        }
        Ok(())
    }

    fn panel<DB: DrawingBackend>(&self, area: &Area<DB>, operation: &str, (left, top): (i32, i32)) -> Drawn {
        let found = || self.all.iter().filter(|found| found.operation == operation);
        let times = found().flat_map(|found| found.times).filter(|time| *time > 0.0);
        let (low, high) = times.fold((f64::MAX, 1.0_f64), |(low, high), time| (low.min(time), high.max(time)));
        let (low, high) = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
        let (from, to, upper, lower) = (left + 62, left + PANEL.0 - 30, top + 34, top + PANEL.1 - 34);
        let x = |place: usize| from + (to - from) * place as i32 / (NAMES.len() as i32 - 1);
        let y = |time: f64| {
            let share = (time.max(1e-3).log10() - low) / (high - low);
            lower - (share.clamp(0.0, 1.0) * f64::from(lower - upper)) as i32
        };
        write(area, operation, (left + 62, top + 14), 15, HPos::Left)?;
        for power in low as i32..=high as i32 {
            let time = 10_f64.powi(power);
            line(area, (from, y(time)), (to, y(time)), FAINT, 1)?;
            let label = if time >= 1000.0 {
                format!("{} ms", short_whole(time / 1e3))
            } else {
                format!("{} µs", short_whole(time))
            };
            write(area, &label, (from - 6, y(time)), 12, HPos::Right)?;
        }
        for (place, name) in NAMES.iter().enumerate() {
            write(area, name, (x(place), lower + 14), 12, HPos::Center)?;
        }
        line(area, (from, lower), (to, lower), INK, 1)?;
        for found in found() {
            let (width, radius) = if found.when == "alone" { (1, 2) } else { (3, 4) };
            let colour = colour(&found.peer);
            for place in 0..NAMES.len() {
                let point = (x(place), y(found.times[place]));
                area.draw(&Circle::new(point, radius, colour.filled())).map_err(as_text)?;
                if place > 0 {
                    line(area, (x(place - 1), y(found.times[place - 1])), point, colour, width)?;
                }
            }
        }
        Ok(())
    }
}

/// Returns a power of ten without needless digits.
fn short_whole(value: f64) -> String {
    if value >= 1.0 { format!("{value:.0}") } else { short(value) }
}
