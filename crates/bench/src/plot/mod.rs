//! Draws results as plots, each as SVG and as PNG.

mod bars;
mod canvas;
mod growth;
mod latency;
mod summary;

use std::path::{Path, PathBuf};
use std::sync::Once;

use plotters::prelude::{BitMapBackend, DrawingBackend, FontStyle, IntoDrawingArea, SVGBackend, WHITE};
use plotters::style::register_font;

use canvas::{Area, Drawn, FAMILY, HEADLINES, as_text};

use crate::failure::{Failure, Result};
use crate::samples::Results;

/// A plot.
enum Plot<'a> {
    Summary(summary::Summary),
    Bars(bars::Bars),
    Growth(growth::Growth<'a>),
    Latencies(latency::Latencies),
}

impl Plot<'_> {
    fn size(&self) -> (u32, u32) {
        match self {
            Self::Summary(summary) => summary.size(),
            Self::Bars(_) => bars::SIZE,
            Self::Latencies(latencies) => latencies.size(),
            Self::Growth(growth) => growth.size(),
        }
    }

    fn draw<DB: DrawingBackend>(&self, area: &Area<DB>) -> Drawn {
        area.fill(&WHITE).map_err(as_text)?;
        match self {
            Self::Summary(summary) => summary.draw(area),
            Self::Bars(bars) => bars.draw(area),
            Self::Growth(growth) => growth.draw(area),
            Self::Latencies(latencies) => latencies.draw(area),
        }?;
        area.present().map_err(as_text)
    }
}

/// Draws all plots for which `results` have data into `dir`. Returns the SVGs.
pub fn draw(results: &Results, dir: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(dir).map_err(|error| Failure::about(dir.display(), &error))?;
    fonts();
    let mut plots = vec![("summary".to_owned(), summary::Summary::of(results).map(Plot::Summary))];
    for workload in HEADLINES {
        plots.push((workload.into(), bars::Bars::of(results, workload).map(Plot::Bars)));
    }
    plots.push(("growth".into(), growth::Growth::of(results).map(Plot::Growth)));
    plots.push(("latency".into(), latency::Latencies::of(results).map(Plot::Latencies)));
    let mut drawn = Vec::new();
    for (name, plot) in plots {
        let Some(plot) = plot else { continue };
        let (svg, png) = (dir.join(format!("{name}.svg")), dir.join(format!("{name}.png")));
        let failed = |why: String| Failure::new(format!("{}: {why}", svg.display()));
        plot.draw(&SVGBackend::new(&svg, plot.size()).into_drawing_area()).map_err(failed)?;
        plot.draw(&BitMapBackend::new(&png, plot.size()).into_drawing_area()).map_err(failed)?;
        drawn.push(svg);
    }
    Ok(drawn)
}

/// Registers a font of the program's own, since bitmaps need one that certainly exists.
fn fonts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for style in [FontStyle::Normal, FontStyle::Bold] {
            // This fails only if the data is no font; the tests draw with it.
            let _ = register_font(FAMILY, style, epaint_default_fonts::UBUNTU_LIGHT);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::example;

    #[test]
    fn every_plot_is_drawn_as_svg_and_as_png() {
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
