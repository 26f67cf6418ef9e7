//! Results as text.

use std::fmt::Write;

use crate::comparison::{BUFFERED, EQUAL, legend, others, ours, ratio_of};
use crate::histogram::Histogram;
use crate::samples::Results;
use crate::stats::{Summary, summary};

/// Returns a figure with three significant digits.
pub fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Returns the headline figures, with a row for each case and for each of its steps: that of
/// ubtrfs, and for each other peer its median and the ratio of ubtrfs to it. The first row has the
/// heads.
pub fn headlines(results: &Results) -> Vec<Vec<String>> {
    let (ours, others) = (ours(results), others(results));
    let heads = ["workload"].into_iter().chain(ours).chain(others.iter().copied());
    let mut rows = vec![heads.map(str::to_owned).collect()];
    for case in &results.cases {
        let steps = case.steps.iter().map(|step| (format!("{}: {step}", case.title), step));
        for (title, figure) in std::iter::once((case.title.clone(), &case.headline)).chain(steps) {
            rows.extend(headline(results, &case.name, title, figure, &others));
        }
    }
    rows
}

/// Returns the row of one figure of a case.
fn headline(results: &Results, case: &str, title: String, figure: &str, others: &[&str]) -> Option<Vec<String>> {
    let (unit, _) = results.kind(case, figure)?;
    let of = |peer: &str| {
        let values: Vec<f64> = results.values(case, peer, figure).iter().map(|(_, value)| *value).collect();
        summary(&values)
    };
    let our_cell =
        |found: Summary| format!("{} {unit} ({}–{})", short(found.median), short(found.min), short(found.max));
    let ours = ours(results);
    let cell = |peer: &str| {
        let Some(found) = of(peer) else { return String::new() };
        // For a figure of growth, a ratio adds nothing.
        let compared = ours.filter(|_| unit != "times").and_then(|ours| ratio_of(results, case, figure, ours, peer));
        match compared {
            Some(ratio) => {
                format!("{}: ×{:.2} ({:.2}–{:.2})", short(found.median), ratio.median, ratio.min, ratio.max)
            }
            None => our_cell(found),
        }
    };
    let first = ours.map(|ours| of(ours).map_or(String::new(), our_cell));
    let cells = first.into_iter().chain(others.iter().map(|peer| cell(peer)));
    Some([title].into_iter().chain(cells).collect())
}

/// The times of an operation on a peer, over all rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Latency {
    /// The case.
    pub case: String,
    /// The operation.
    pub operation: String,
    /// The circumstances.
    pub when: String,
    /// The peer.
    pub peer: String,
    /// The times in microseconds that 50 %, 99 %, 99.9 % and all of the operations did not exceed.
    pub times: [f64; 4],
}

/// Returns the times of all operations, with all rounds taken together, by case, operation,
/// circumstances and peer.
pub fn latencies(results: &Results) -> Vec<Latency> {
    let mut found = Vec::new();
    for case in &results.cases {
        let names = results.names(&case.name, |measured| measured.histograms.keys().collect());
        for (name, peer) in names.iter().flat_map(|name| results.peers.iter().map(move |peer| (name, peer))) {
            let mut all = Histogram::default();
            for sample in results.of(&case.name, &peer.name) {
                all.merge(sample.measured.histograms.get(*name).unwrap_or(&Histogram::default()));
            }
            if all.count() > 0 {
                let (operation, when) = name.split_once(' ').unwrap_or((name.as_str(), ""));
                found.push(Latency {
                    case: case.name.clone(),
                    operation: operation.into(),
                    when: when.into(),
                    peer: peer.name.clone(),
                    times: [all.percentile(0.5), all.percentile(0.99), all.percentile(0.999), all.max()],
                });
            }
        }
    }
    found
}

/// The heads of [`latency_rows`].
pub const LATENCY_HEADS: [&str; 7] = ["case", "operation", "peer", "50 % (µs)", "99 %", "99.9 %", "longest"];

/// Returns [`latencies`] as rows of cells.
pub fn latency_rows(results: &Results) -> Vec<Vec<String>> {
    let row = |found: Latency| {
        let what = format!("{} {}", found.operation, found.when);
        [found.case, what, found.peer].into_iter().chain(found.times.map(short)).collect()
    };
    latencies(results).into_iter().map(row).collect()
}

/// The heads of [`cost_rows`].
pub const COST_HEADS: [&str; 7] = [
    "workload",
    "peer",
    "client (µs/op)",
    "server (µs/op)",
    "machine (µs/op)",
    "bytes to device per byte",
    "bytes to disk per byte",
];

/// Returns the costs of each case on each peer as rows of cells: medians of the processor time per
/// operation, and of the bytes written for each byte that programs wrote.
pub fn cost_rows(results: &Results) -> Vec<Vec<String>> {
    const METRICS: [&str; 5] = ["cpu client", "cpu daemon", "cpu machine", "bytes to device", "bytes to disk"];
    let mut rows = Vec::new();
    for (case, peer) in results.cases.iter().flat_map(|case| results.peers.iter().map(move |peer| (case, peer))) {
        let cell = |metric: &&str| {
            let values: Vec<f64> =
                results.values(&case.name, &peer.name, metric).iter().map(|(_, value)| *value).collect();
            summary(&values).map_or(String::new(), |found| short(found.median))
        };
        let cells: Vec<String> = METRICS.iter().map(cell).collect();
        if cells.iter().any(|cell| !cell.is_empty()) {
            rows.push([case.title.clone(), peer.name.clone()].into_iter().chain(cells).collect());
        }
    }
    rows
}

/// Returns every figure of every case on every peer.
pub fn all(results: &Results) -> String {
    let mut rows = vec![["case", "figure", "peer", "median", "least–most"].map(str::to_owned).to_vec()];
    for case in &results.cases {
        let names = results.names(&case.name, |measured| measured.metrics.keys().collect());
        for (name, peer) in names.iter().flat_map(|name| results.peers.iter().map(move |peer| (name, peer))) {
            let values: Vec<f64> =
                results.values(&case.name, &peer.name, name).iter().map(|(_, value)| *value).collect();
            let (Some(found), Some((unit, _))) = (summary(&values), results.kind(&case.name, name)) else { continue };
            rows.push(vec![
                case.name.clone(),
                (*name).clone(),
                peer.name.clone(),
                format!("{} {unit}", short(found.median)),
                format!("{}–{}", short(found.min), short(found.max)),
            ]);
        }
    }
    aligned(rows.iter())
}

/// Blanks cells that repeat the row above.
fn thin(rows: &mut [Vec<String>]) {
    let mut last = String::new();
    for row in rows {
        if row[0] == last {
            row[0].clear();
        } else {
            last.clone_from(&row[0]);
        }
    }
}

/// Returns everything that a run shows at its end.
pub fn text(results: &Results) -> String {
    let mut text = legend(results) + "\n";
    text += &aligned(headlines(results).iter());
    let mut costs = cost_rows(results);
    if !costs.is_empty() {
        thin(&mut costs);
        text.push('\n');
        text += &aligned(std::iter::once(&COST_HEADS.map(str::to_owned).to_vec()).chain(&costs));
    }
    let times = latency_rows(results);
    if !times.is_empty() {
        text.push('\n');
        text += &aligned(std::iter::once(&LATENCY_HEADS.map(str::to_owned).to_vec()).chain(&times));
    }
    for line in &results.skipped {
        let _ = writeln!(text, "skipped: {line}");
    }
    if results.machine.build != "optimised" {
        let _ = writeln!(text, "built {}: the figures mean nothing", results.machine.build);
    }
    if results.peers.iter().all(|peer| ![EQUAL, BUFFERED].contains(&peer.name.as_str())) {
        text.push_str("without the kernel's btrfs there is nothing to compare with\n");
    }
    text
}

/// Aligns cells in columns.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::example;

    #[test]
    fn figures_keep_three_digits() {
        assert_eq!([0.1234, 1.234, 12.34, 123.4, 1234.5].map(short), ["0.12", "1.23", "12.3", "123", "1234"]);
    }

    #[test]
    fn the_ratio_is_that_of_the_same_round() {
        let rows = headlines(&example(&[100.0, 300.0]));
        assert_eq!(rows[0], ["workload", "ubtrfs", "btrfs-direct", "btrfs", "null"]);
        assert_eq!(rows[1][1..3], ["200 MB/s (100–300)", "160: ×1.25 (1.25–1.25)"]);
        assert_eq!(rows[1][3..], ["100: ×2.00 (2.00–2.00)", "400: ×0.50 (0.50–0.50)"]);
    }

    #[test]
    fn steps_have_rows_of_their_own() {
        let mut results = example(&[100.0]);
        results.cases[0].headline = "nothing".into();
        results.cases[0].steps = vec!["throughput".into(), "nothing else".into()];
        let rows = headlines(&results);
        assert_eq!(rows.len(), 2, "what was not measured has none: {rows:?}");
        assert!(rows[1][0].ends_with(": throughput"), "{rows:?}");
        assert_eq!(rows[1][1], "100 MB/s (100–100)");
    }

    #[test]
    fn without_ubtrfs_there_are_figures_and_no_ratios() {
        let mut results = example(&[100.0]);
        results.peers.retain(|peer| peer.name != "ubtrfs");
        let rows = headlines(&results);
        assert_eq!(rows[0], ["workload", "btrfs-direct", "btrfs", "null"]);
        assert_eq!(rows[1][1..3], ["80.0 MB/s (80.0–80.0)", "50.0 MB/s (50.0–50.0)"]);
    }

    #[test]
    fn every_figure_is_in_the_table() {
        let results = example(&[100.0, 300.0]);
        let (text, all) = (text(&results), all(&results));
        for word in ["dbench -t 1 1", "fsync during commits", "skipped: nothing", "null"] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(all.contains("throughput") && all.lines().count() == 5, "{all}");
    }
}
