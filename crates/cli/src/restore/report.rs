//! The report of a restore.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::problems::Problems;
use crate::size::show_size;

/// The counts of what was copied.
#[derive(Default)]
pub struct Copied {
    pub directories: u64,
    pub files: u64,
    pub bytes: u64,
    pub symlinks: u64,
    pub others: u64,
    /// What was left out though it is not damaged, and how often.
    pub left_out: BTreeMap<String, u64>,
}

/// The report: what was copied, and what was lost.
pub struct Report {
    pub copied: Copied,
    /// What was not copied at all, though it is not damaged.
    pub others: Vec<String>,
    pub problems: Problems,
    pub damage: Vec<String>,
    pub unverified: bool,
    pub dry_run: bool,
}

impl Report {
    /// Whether nothing was lost, and all data with checksums was verified.
    pub fn is_entire(&self) -> bool {
        self.problems.is_empty() && self.damage.is_empty() && !self.unverified
    }

    pub fn summary(&self) -> String {
        let copied = &self.copied;
        let verb = if self.dry_run { "to copy" } else { "copied" };
        let mut text = format!(
            "{verb}: {} directories, {} files of {}, {} symbolic links, {} other\n",
            copied.directories,
            copied.files,
            show_size(copied.bytes),
            copied.symlinks,
            copied.others
        );
        for (what, count) in &copied.left_out {
            let _ = writeln!(text, "left out: {what}: {count}");
        }
        for other in &self.others {
            let _ = writeln!(text, "left out: {other}");
        }
        if self.unverified {
            text.push_str("the checksums of some data are lost: it was copied as it is\n");
        }
        text
    }

    /// Returns the report for `--json`, with what was lost.
    pub fn described(&self) -> Value {
        let copied = &self.copied;
        json!({
            "dry_run": self.dry_run,
            "directories": copied.directories,
            "files": copied.files,
            "bytes": copied.bytes,
            "symlinks": copied.symlinks,
            "others": copied.others,
            "left_out": copied.left_out.iter().map(|(what, count)| json!({ "what": what, "count": count })).collect::<Vec<_>>(),
            "not_copied": self.others,
            "unverified": self.unverified,
            "unreadable": self.damage,
            "problems": self.problems.listed(),
            "problem_count": self.problems.count(),
        })
    }

    /// Lists what was lost on the standard error stream.
    pub fn report_problems(&self) {
        let mut err = io::stderr().lock();
        for sentence in &self.damage {
            let _ = writeln!(err, "ubtrfs: unreadable: {sentence}");
        }
        self.problems.report(&mut err);
    }
}
