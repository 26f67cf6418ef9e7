//! Compares two runs, and shows one run as text for the documents.

use std::fmt::Write as _;
use std::path::Path;

use crate::comparison::legend;
use crate::failure::{Failure, Result};
use crate::samples::{Results, Sample};
use crate::stats::{Move, moved, summary};
use crate::table::{COST_HEADS, LATENCY_HEADS, aligned, cost_rows, headlines, latency_rows, short};

/// Figures that depend on the machine more than on the file system, so that a comparison leaves
/// them out.
const IGNORED: [&str; 2] = ["bytes to disk", "cpu machine"];

/// Returns what has changed from `old` to `new` by more than noise, the headlines first.
pub fn compare(old: &Results, new: &Results) -> String {
    let mut text = String::new();
    for (name, of) in [("old", old), ("new", new)] {
        let _ = writeln!(text, "{name}: {} ({}, {} rounds, {})", of.date, of.scale, of.rounds, of.machine.commit);
    }
    let (before, after) = (&old.machine, &new.machine);
    let same = before.kernel == after.kernel && before.processor == after.processor && before.backing == after.backing;
    if !same || before.cpus != after.cpus || before.build != after.build {
        text.push_str("the machines, kernels or builds differ: moves may come from that\n");
    }
    let mut found: Vec<(bool, Move, Vec<String>)> = Vec::new();
    let mut compared = 0;
    for case in &new.cases {
        for peer in &new.peers {
            let Some(sample) = new.of(&case.name, &peer.name).next() else { continue };
            for metric in sample.measured.metrics.keys().filter(|name| !IGNORED.contains(&name.as_str())) {
                let Some((change, row)) = one(old, new, sample, metric) else { continue };
                compared += 1;
                if change.certain {
                    found.push((*metric == case.headline, change, row));
                }
            }
        }
    }
    found.sort_by(|(head, one, _), (other_head, other, _)| {
        other_head.cmp(head).then(one.factor.total_cmp(&other.factor))
    });
    let _ = writeln!(text, "{} of {compared} figures moved beyond the noise\n", found.len());
    let heads = ["case", "peer", "figure", "old", "new", ""].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = found.into_iter().map(|(_, _, row)| row).collect();
    if !rows.is_empty() {
        text += &aligned(std::iter::once(&heads).chain(&rows));
    }
    text
}

/// Compares a figure of a case on a peer in both runs.
fn one(old: &Results, new: &Results, sample: &Sample, metric: &str) -> Option<(Move, Vec<String>)> {
    let (unit, better) = new.kind(&sample.case, metric)?;
    let values = |of: &Results| -> Vec<f64> {
        of.values(&sample.case, &sample.peer, metric).into_iter().map(|(_, value)| value).collect()
    };
    let (before, after) = (values(old), values(new));
    let change = moved(&before, &after, better)?;
    let printed = |values: &[f64]| {
        summary(values).map_or(String::new(), |found| {
            format!("{} {unit} ({}–{})", short(found.median), short(found.min), short(found.max))
        })
    };
    let way = if change.factor >= 1.0 {
        format!("{:.2} times better", change.factor)
    } else {
        format!("{:.2} times worse", 1.0 / change.factor)
    };
    Some((
        change,
        vec![sample.case.clone(), sample.peer.clone(), metric.into(), printed(&before), printed(&after), way],
    ))
}

/// Columns of a line of a document at most.
const MAX_LINE: usize = 100;

/// The lines between which a page has a result.
const MARKS: [&str; 2] = ["<!-- result: written by `ubtrfs-bench report --into` -->", "<!-- end of result -->"];

/// Puts a result into a page, between its marks.
pub fn put(page: &Path, result: &str) -> Result<()> {
    let failed = |error: &dyn std::error::Error| Failure::about(page.display(), error);
    let text = std::fs::read_to_string(page).map_err(|error| failed(&error))?;
    let parts = text.split_once(MARKS[0]).and_then(|(head, rest)| Some((head, rest.split_once(MARKS[1])?.1)));
    let (head, rest) =
        parts.ok_or_else(|| Failure::new(format!("{}: the marks of a result are missing", page.display())))?;
    let text = format!("{head}{}\n\n{}\n\n{}{rest}", MARKS[0], result.trim(), MARKS[1]);
    std::fs::write(page, text).map_err(|error| failed(&error))
}

/// Returns one run as Markdown, for the page of the documents.
pub fn markdown(results: &Results) -> String {
    let machine = &results.machine;
    let mut text = format!(
        "Measured on {} ({}, {} rounds in turn), commit {}, {}.\n\n",
        results.date,
        results.scale,
        results.rounds,
        machine.commit,
        if machine.root { "as root" } else { "not as root" }
    );
    let about = format!(
        "{}, {} CPUs, {:.0} GiB of memory; {}; images on {}. FUSE over io_uring allowed: {}.",
        machine.processor,
        machine.cpus,
        machine.memory as f64 / f64::from(1 << 30),
        machine.kernel,
        machine.backing,
        if machine.fuse_uring.is_empty() { "unknown" } else { &machine.fuse_uring }
    );
    let _ = writeln!(text, "{}\n", in_lines(&about));
    let _ = writeln!(text, "{}", legend(results));
    if let Some((heads, rows)) = headlines(results).split_first() {
        table(&mut text, heads, rows);
    }
    text.push('\n');
    let costs = cost_rows(results);
    if !costs.is_empty() {
        table(&mut text, &COST_HEADS.map(str::to_owned), &costs);
        text.push('\n');
    }
    let times = latency_rows(results);
    if !times.is_empty() {
        table(&mut text, &LATENCY_HEADS.map(str::to_owned), &times);
        text.push('\n');
    }
    let peers: Vec<Vec<String>> = results
        .peers
        .iter()
        .map(|peer| {
            let facts: Vec<String> = peer.facts.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            vec![peer.name.clone(), peer.about.clone(), facts.join("; ")]
        })
        .collect();
    table(&mut text, &["peer", "what it is", "how it was made and mounted"].map(str::to_owned), &peers);
    if !results.skipped.is_empty() {
        text.push_str("\nNot measured:\n");
        for line in &results.skipped {
            let _ = writeln!(text, "- {line}");
        }
    }
    text
}

/// Returns a paragraph in lines as long as documents may have.
fn in_lines(paragraph: &str) -> String {
    let mut text = String::new();
    let mut column = 0;
    for word in paragraph.split(' ') {
        let gap = if column == 0 {
            ""
        } else if column + 1 + word.len() > MAX_LINE {
            "\n"
        } else {
            " "
        };
        column = if gap == " " { column + 1 } else { 0 } + word.len();
        text.push_str(gap);
        text.push_str(word);
    }
    text
}

fn table(text: &mut String, heads: &[String], rows: &[Vec<String>]) {
    let mut add = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    };
    add(heads);
    add(&vec!["---".to_owned(); heads.len()]);
    for row in rows {
        add(row);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples::tests::example;

    #[test]
    fn only_significant_changes_are_reported() {
        let (old, new) = (example(&[100.0, 101.0, 102.0]), example(&[200.0, 202.0, 204.0]));
        let printed = compare(&old, &new);
        assert!(
            printed.contains("dbench-1") && printed.contains("times better") && printed.contains("btrfs"),
            "{printed}"
        );
        let same = compare(&old, &old);
        assert!(same.contains("\n0 of ") && !same.contains("times"), "{same}");
    }

    #[test]
    fn lines_are_as_long_as_documents_may_have() {
        let words = "four ".repeat(50);
        let lines = in_lines(words.trim());
        assert!(lines.lines().all(|line| line.len() == 99 || line.len() == 49), "{lines}");
        assert_eq!(lines.split_whitespace().count(), 50);
        assert_eq!(in_lines(&format!("a {}", "b".repeat(200))), format!("a\n{}", "b".repeat(200)));
    }

    #[test]
    fn a_result_takes_the_place_of_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("page.md");
        std::fs::write(&page, format!("before\n{}\nold\n{}\nafter\n", MARKS[0], MARKS[1])).unwrap();
        for _ in 0..2 {
            put(&page, "new").unwrap();
        }
        let text = std::fs::read_to_string(&page).unwrap();
        assert_eq!(text, format!("before\n{}\n\nnew\n\n{}\nafter\n", MARKS[0], MARKS[1]));
        std::fs::write(&page, "no marks").unwrap();
        assert!(put(&page, "new").is_err());
    }

    #[test]
    fn markdown_has_a_row_for_each_case() {
        let printed = markdown(&example(&[100.0, 102.0]));
        let row = "| dbench -t 1 1 | 101 MB/s (100–102) | 80.8: ×1.25 (1.25–1.25) | 50.5: ×2.00 (2.00–2.00) |";
        assert!(printed.contains(row), "{printed}");
        assert!(printed.contains("btrfs-direct has the same backing as ubtrfs"), "{printed}");
        assert!(printed.contains("- nothing: for a reason"));
    }
}
