//! Results as pictures, each as SVG and as PNG.

mod bars;
mod growth;
mod latency;
mod summary;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Once;

use plotters::coord::Shift;
use plotters::prelude::{
    BitMapBackend, DrawingArea, DrawingBackend, FontStyle, IntoDrawingArea, IntoFont, RGBColor, SVGBackend, TextStyle,
    WHITE,
};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, IntoTextStyle, register_font};

use crate::failure::{Failure, Result};
use crate::samples::Results;

/// Something to draw on.
type Area<DB> = DrawingArea<DB, Shift>;
/// Whether it could be drawn.
type Drawn = std::result::Result<(), String>;

/// The family of the fonts; in an SVG the viewer's.
const FAMILY: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 46);
const FAINT: RGBColor = RGBColor(214, 214, 220);

/// Workloads that make the headlines: they get a picture each, and a part in the summary.
const HEADLINES: [&str; 6] = ["dbench", "fio-seq", "fio-rand", "storm", "storm-mv", "unlinked"];

/// What a picture shows.
enum Picture<'a> {
    Summary(summary::Summary),
    Bars(bars::Bars),
    Growth(growth::Growth<'a>),
    Latencies(latency::Latencies),
}

impl Picture<'_> {
    fn size(&self) -> (u32, u32) {
        match self {
            Self::Summary(summary) => summary.size(),
            Self::Bars(_) => bars::SIZE,
            Self::Latencies(latencies) => latencies.size(),
            Self::Growth(growth) => growth.size(),
        }
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Drawn {
        area.fill(&WHITE).map_err(told)?;
        match self {
            Self::Summary(summary) => summary.draw(area),
            Self::Bars(bars) => bars.draw(area),
            Self::Growth(growth) => growth.draw(area),
            Self::Latencies(latencies) => latencies.draw(area),
        }?;
        area.present().map_err(told)
    }
}

/// Draws all that `results` have something for into `dir`; returns the SVGs.
pub fn draw(results: &Results, dir: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(dir).map_err(|error| Failure::about(dir.display(), &error))?;
    fonts();
    let mut pictures = vec![("summary".to_owned(), summary::Summary::of(results).map(Picture::Summary))];
    for workload in HEADLINES {
        pictures.push((workload.into(), bars::Bars::of(results, workload).map(Picture::Bars)));
    }
    pictures.push(("growth".into(), growth::Growth::of(results).map(Picture::Growth)));
    pictures.push(("latency".into(), latency::Latencies::of(results).map(Picture::Latencies)));
    let mut drawn = Vec::new();
    for (name, picture) in pictures {
        let Some(picture) = picture else { continue };
        let (svg, png) = (dir.join(format!("{name}.svg")), dir.join(format!("{name}.png")));
        let failed = |why: String| Failure::about(svg.display(), &why);
        picture.draw(&SVGBackend::new(&svg, picture.size()).into_drawing_area()).map_err(failed)?;
        picture.draw(&BitMapBackend::new(&png, picture.size()).into_drawing_area()).map_err(failed)?;
        drawn.push(svg);
    }
    Ok(drawn)
}

/// Bitmaps need a font that is surely there, so the program brings one.
fn fonts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for style in [FontStyle::Normal, FontStyle::Bold] {
            // Refused only if it is no font; the tests draw with it.
            let _ = register_font(FAMILY, style, epaint_default_fonts::UBUNTU_LIGHT);
        }
    });
}

#[allow(clippy::needless_pass_by_value, reason = "it is what `map_err` passes")]
fn told(error: impl Display) -> String {
    error.to_string()
}

/// A peer's colour, the same in all pictures.
fn colour(peer: &str) -> RGBColor {
    match peer {
        "ubtrfs" => RGBColor(20, 90, 200),
        "ubtrfs-ring" => RGBColor(0, 60, 150),
        "ubtrfs-dev" => RGBColor(90, 150, 230),
        "ubtrfs-loop" => RGBColor(120, 170, 235),
        "ubtrfs-single" => RGBColor(70, 190, 230),
        "library" => RGBColor(0, 160, 190),
        "btrfs" => RGBColor(230, 120, 20),
        "btrfs-direct" => RGBColor(245, 175, 105),
        "xfs" => RGBColor(50, 150, 70),
        "xfs-direct" => RGBColor(140, 200, 150),
        "ext4" => RGBColor(150, 70, 170),
        "ext4-direct" => RGBColor(200, 150, 215),
        _ => RGBColor(150, 150, 155),
    }
}

/// How text looks.
fn text(size: u32, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    (FAMILY, size).into_font().color(&INK).pos(Pos::new(horizontal, vertical))
}

/// Text that ends at its place, stands in its middle, or begins there.
fn write<DB: DrawingBackend>(area: &Area<DB>, words: &str, at: (i32, i32), size: u32, from: HPos) -> Drawn {
    area.draw_text(words, &text(size, from, VPos::Center), at).map_err(told)
}

/// Text that runs upwards, its middle at the place.
fn write_upwards<DB: DrawingBackend>(area: &Area<DB>, words: &str, at: (i32, i32), size: u32) -> Drawn {
    let style = (FAMILY, size).into_font().transform(plotters::style::FontTransform::Rotate270);
    let style = style.into_text_style(area).color(&INK).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw_text(words, &style, at).map_err(told)
}

/// A line.
fn line<DB: DrawingBackend>(area: &Area<DB>, from: (i32, i32), to: (i32, i32), colour: RGBColor, width: u32) -> Drawn {
    let path = plotters::element::PathElement::new(vec![from, to], colour.stroke_width(width));
    area.draw(&path).map_err(told)
}

/// Names and colours of peers in a row.
fn legend<DB: DrawingBackend>(area: &Area<DB>, peers: &[String], from: (i32, i32)) -> Drawn {
    let (mut x, y) = from;
    for peer in peers {
        let square = plotters::element::Rectangle::new([(x, y - 6), (x + 12, y + 6)], colour(peer).filled());
        area.draw(&square).map_err(told)?;
        write(area, peer, (x + 18, y), 15, HPos::Left)?;
        x += 18 + 9 * peer.chars().count() as i32 + 22;
    }
    Ok(())
}

/// When and where, in small letters at the foot.
fn foot<DB: DrawingBackend>(area: &Area<DB>, results: &str, (_, height): (u32, u32)) -> Drawn {
    write(area, results, (20, height as i32 - 14), 12, HPos::Left)
}

/// What a foot says.
fn origin(results: &Results) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::example;

    #[test]
    fn every_picture_is_drawn_both_ways() {
        let dir = tempfile::tempdir().unwrap();
        let drawn = draw(&example(&[1.0, 2.0]), dir.path()).unwrap();
        let names: Vec<_> = drawn.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["summary.svg", "dbench.svg", "growth.svg", "latency.svg"]);
        for svg in drawn {
            assert!(std::fs::read_to_string(&svg).unwrap().contains("ubtrfs"), "{}", svg.display());
            assert!(std::fs::read(svg.with_extension("png")).unwrap().starts_with(b"\x89PNG"));
        }
    }
}
