//! The plot of a workload: for each of its cases a bar for each peer, with the spread of the
//! rounds.

use plotters::element::Rectangle;
use plotters::prelude::DrawingBackend;
use plotters::style::Color;
use plotters::style::text_anchor::HPos;

use super::canvas::{Area, Drawn, FAINT, INK, as_text, colour, foot, legend, line, origin, write, write_upwards};
use crate::samples::{Better, Results};
use crate::stats::{Summary, summary};
use crate::table::short;

/// Pixels of the plot.
pub const SIZE: (u32, u32) = (900, 460);
const LEFT: i32 = 80;
const RIGHT: i32 = 880;
const TOP: i32 = 90;
const BOTTOM: i32 = 385;
/// The figure that is shown instead of the headline if a case has it, since it does not grow with
/// the case.
const EACH: &str = "each";

/// A case with the peers that have it.
struct Group {
    title: String,
    bars: Vec<(String, Summary)>,
}

/// The plot.
pub struct Bars {
    title: String,
    unit: String,
    peers: Vec<String>,
    groups: Vec<Group>,
    origin: String,
}

impl Bars {
    /// Returns the plot of a workload, if it was measured.
    pub fn of(results: &Results, workload: &str) -> Option<Self> {
        let mut unit = None;
        let mut groups = Vec::new();
        for case in results.cases.iter().filter(|case| case.workload == workload) {
            let metric = if results.kind(&case.name, EACH).is_some() { EACH } else { &case.headline };
            let Some(kind) = results.kind(&case.name, metric) else { continue };
            unit = Some(kind);
            let bar = |name: &String| {
                let values: Vec<f64> =
                    results.values(&case.name, name, metric).iter().map(|(_, value)| *value).collect();
                Some((name.clone(), summary(&values)?))
            };
            let bars = results.peers.iter().filter_map(|peer| bar(&peer.name)).collect();
            groups.push(Group { title: case.title.clone(), bars });
        }
        let (unit, better) = unit?;
        let way = if better == Better::Higher { "more is better" } else { "less is better" };
        let peers = results.peers.iter().map(|peer| peer.name.clone());
        let peers = peers.filter(|peer| groups.iter().any(|group| group.bars.iter().any(|(name, _)| name == peer)));
        Some(Self {
            title: format!("{workload}: {unit}, {way}"),
            unit: unit.into(),
            peers: peers.collect(),
            groups,
            origin: origin(results),
        })
    }

    /// Draws the plot.
    pub fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Drawn {
        write(area, &self.title, (20, 26), 22, HPos::Left)?;
        legend(area, &self.peers, (20, 60))?;
        foot(area, &self.origin, SIZE)?;
        let all = self.groups.iter().flat_map(|group| &group.bars);
        let step = step(all.map(|(_, bar)| bar.max).fold(0.0, f64::max));
        let lines = (0..=5).map(|number| f64::from(number) * step);
        let y = |value: f64| BOTTOM - (value / (5.0 * step) * f64::from(BOTTOM - TOP)) as i32;
        for value in lines {
            line(area, (LEFT, y(value)), (RIGHT, y(value)), FAINT, 1)?;
            write(area, &short(value), (LEFT - 8, y(value)), 13, HPos::Right)?;
        }
        write_upwards(area, &self.unit, (22, i32::midpoint(TOP, BOTTOM)), 15)?;
        let room = (RIGHT - LEFT) / self.groups.len().max(1) as i32;
        let width = (room - 24).max(8) / self.peers.len().max(1) as i32;
        for (number, group) in self.groups.iter().enumerate() {
            let from = LEFT + number as i32 * room + (room - width * group.bars.len() as i32) / 2;
            for (place, (peer, bar)) in group.bars.iter().enumerate() {
                let x = from + place as i32 * width;
                let shape = Rectangle::new([(x + 2, y(bar.median)), (x + width - 2, BOTTOM)], colour(peer).filled());
                area.draw(&shape).map_err(as_text)?;
                let middle = x + width / 2;
                line(area, (middle, y(bar.min)), (middle, y(bar.max)), INK, 2)?;
                for end in [bar.min, bar.max] {
                    line(area, (middle - 4, y(end)), (middle + 4, y(end)), INK, 2)?;
                }
            }
            write(area, &group.title, (LEFT + number as i32 * room + room / 2, BOTTOM + 22), 13, HPos::Center)?;
        }
        line(area, (LEFT, BOTTOM), (RIGHT, BOTTOM), INK, 1)
    }
}

/// Returns a round step, five of which reach `most`.
fn step(most: f64) -> f64 {
    let rough = (most / 5.0).max(f64::MIN_POSITIVE);
    let power = 10_f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().find(|factor| factor * power >= rough * 0.999);
    round.unwrap_or(10.0) * power
}

#[cfg(test)]
mod tests {
    use super::step;

    #[test]
    fn steps_are_round() {
        for (most, wanted) in [(100.0, 20.0), (101.0, 25.0), (0.5, 0.1), (7.0, 2.0), (4999.0, 1000.0)] {
            assert!((step(most) / wanted - 1.0).abs() < 1e-9, "{most}: {}", step(most));
        }
    }
}
