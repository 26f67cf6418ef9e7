//! Text, lines and colours of peers, with which all plots are drawn.

use std::fmt::Display;

use plotters::coord::Shift;
use plotters::prelude::{DrawingArea, DrawingBackend, IntoFont, RGBColor, TextStyle};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoTextStyle};

use crate::samples::Results;

/// The area on which a plot is drawn.
pub(super) type Area<DB> = DrawingArea<DB, Shift>;
/// The result of drawing.
pub(super) type Drawn = std::result::Result<(), String>;

/// The family of the fonts; in an SVG it is the viewer's.
pub(super) const FAMILY: &str = "sans-serif";
pub(super) const INK: RGBColor = RGBColor(40, 40, 46);
pub(super) const FAINT: RGBColor = RGBColor(214, 214, 220);

/// Workloads that have a plot each.
pub(super) const HEADLINES: [&str; 6] = ["dbench", "fio-seq", "fio-rand", "storm", "storm-mv", "unlinked"];
/// Workloads in the summary. The figures of `io` are too far apart for bars on one scale.
pub(super) const SUMMARY: [&str; 7] = ["dbench", "fio-seq", "fio-rand", "io", "storm", "storm-mv", "unlinked"];

#[allow(clippy::needless_pass_by_value, reason = "it is what `map_err` passes")]
pub(super) fn as_text(error: impl Display) -> String {
    error.to_string()
}

/// Returns a peer's colour, which is the same in all plots.
pub(super) fn colour(peer: &str) -> RGBColor {
    match peer {
        "ubtrfs" => RGBColor(20, 90, 200),
        "ubtrfs-ring" => RGBColor(0, 60, 150),
        "ubtrfs-dev" => RGBColor(90, 150, 230),
        "ubtrfs-loop" => RGBColor(120, 170, 235),
        "ubtrfs-single" => RGBColor(70, 190, 230),
        "library" => RGBColor(0, 160, 190),
        // The peers with the same backing as ours have the strong colours.
        "btrfs-direct" => RGBColor(230, 120, 20),
        "btrfs" => RGBColor(245, 185, 120),
        "xfs-direct" => RGBColor(50, 150, 70),
        "xfs" => RGBColor(140, 200, 150),
        "ext4-direct" => RGBColor(150, 70, 170),
        "ext4" => RGBColor(200, 150, 215),
        _ => RGBColor(150, 150, 155),
    }
}

/// Returns the style of text.
pub(super) fn text(size: u32, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    (FAMILY, size).into_font().color(&INK).pos(Pos::new(horizontal, vertical))
}

/// Writes text that begins, is centred, or ends at its place.
pub(super) fn write<DB: DrawingBackend>(area: &Area<DB>, words: &str, at: (i32, i32), size: u32, from: HPos) -> Drawn {
    area.draw_text(words, &text(size, from, VPos::Center), at).map_err(as_text)
}

/// Writes text that runs upwards, centred at its place.
pub(super) fn write_upwards<DB: DrawingBackend>(area: &Area<DB>, words: &str, at: (i32, i32), size: u32) -> Drawn {
    let style = (FAMILY, size).into_font().transform(plotters::style::FontTransform::Rotate270);
    let style = style.into_text_style(area).color(&INK).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw_text(words, &style, at).map_err(as_text)
}

/// Draws a line.
pub(super) fn line<DB: DrawingBackend>(
    area: &Area<DB>,
    from: (i32, i32),
    to: (i32, i32),
    colour: RGBColor,
    width: u32,
) -> Drawn {
    let path = plotters::element::PathElement::new(vec![from, to], colour.stroke_width(width));
    area.draw(&path).map_err(as_text)
}

/// Draws the names and colours of peers in a row.
pub(super) fn legend<DB: DrawingBackend>(area: &Area<DB>, peers: &[String], from: (i32, i32)) -> Drawn {
    let (mut x, y) = from;
    for peer in peers {
        let square = plotters::element::Rectangle::new([(x, y - 6), (x + 12, y + 6)], colour(peer).filled());
        area.draw(&square).map_err(as_text)?;
        write(area, peer, (x + 18, y), 15, HPos::Left)?;
        x += 18 + 9 * peer.chars().count() as i32 + 22;
    }
    Ok(())
}

/// Writes date and machine in small letters at the foot.
pub(super) fn foot<DB: DrawingBackend>(area: &Area<DB>, results: &str, (_, height): (u32, u32)) -> Drawn {
    write(area, results, (20, height as i32 - 14), 12, HPos::Left)
}

/// Returns the text of a foot.
pub(super) fn origin(results: &Results) -> String {
    let machine = &results.machine;
    format!(
        "{}; {}, {} CPUs; {}; {} rounds in turn; commit {}",
        results.date,
        machine.processor,
        machine.cpus,
        machine.kernel.split(' ').take(2).collect::<Vec<_>>().join(" "),
        results.rounds,
        machine.commit
    )
}
