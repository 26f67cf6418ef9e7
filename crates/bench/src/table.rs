//! Results as text.

use std::fmt::Write;

use crate::samples::Results;
use crate::stats::{ratios, summary};

/// Whom others are compared with, if it was measured.
const KERNEL: &str = "btrfs";
/// Who is compared.
const OURS: &str = "ubtrfs";

/// A figure with three digits that count.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The headline figure of each case on each peer: median (least to most), and ubtrfs's ratio to the others, as rows of cells.
pub fn rows(results: &Results) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for case in &results.cases {
        let Some((unit, better)) = results.kind(&case.name, &case.headline) else { continue };
        let ours = results.values(&case.name, OURS, &case.headline);
        for peer in &results.peers {
            let values = results.values(&case.name, &peer.name, &case.headline);
            let plain: Vec<f64> = values.iter().map(|(_, value)| *value).collect();
            let Some(found) = summary(&plain) else { continue };
            let ratio = if peer.name == OURS { None } else { summary(&ratios(&ours, &values, better)) };
            let ratio =
                ratio.map_or(String::new(), |ratio| format!("{:.2} ({:.2}–{:.2})", ratio.median, ratio.min, ratio.max));
            rows.push(vec![
                case.title.clone(),
                peer.name.clone(),
                format!("{} {unit}", short(found.median)),
                format!("{}–{}", short(found.min), short(found.max)),
                ratio,
            ]);
        }
    }
    rows
}

/// The heads of [`rows`].
pub const HEADS: [&str; 5] = ["workload", "peer", "median", "least–most", "ubtrfs is better by"];

/// Everything worth a look at the end of a run.
pub fn text(results: &Results) -> String {
    let mut rows = rows(results);
    let mut last = String::new();
    for row in &mut rows {
        if row[0] == last {
            row[0].clear();
        } else {
            last.clone_from(&row[0]);
        }
    }
    let heads = HEADS.map(str::to_owned).to_vec();
    let mut text = aligned(std::iter::once(&heads).chain(&rows));
    for line in &results.skipped {
        let _ = writeln!(text, "skipped: {line}");
    }
    if results.machine.build != "optimised" {
        let _ = writeln!(text, "built {}: the figures mean nothing", results.machine.build);
    }
    if results.peers.iter().all(|peer| peer.name != KERNEL) {
        text.push_str("without the kernel's btrfs there is nothing to compare with\n");
    }
    text
}

/// Cells in columns.
pub fn aligned<'a>(rows: impl Iterator<Item = &'a Vec<String>> + Clone) -> String {
    let mut widths: Vec<usize> = Vec::new();
    for row in rows.clone() {
        widths.resize(widths.len().max(row.len()), 0);
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (width, cell) in widths.iter().zip(row) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
