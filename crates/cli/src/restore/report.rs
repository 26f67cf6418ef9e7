//! The report of a restore.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde_json::{Value, json};
use ubtrfs_errors::sentence;
use ubtrfs_format::items::Timespec;

use super::record::{Record, count_of_fates};
use crate::output::note;
use crate::size::show_size;
use crate::{json, show};

/// How many problems are listed if a report has all of them.
const MAX_LISTED: usize = 40;

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
    /// The state of the volume that was copied.
    pub source: String,
    pub record: Record,
    pub damage: Vec<String>,
    pub unverified: bool,
    pub dry_run: bool,
    /// The report beside the data, once it is written.
    pub file: Option<PathBuf>,
}

impl Report {
    /// Whether nothing was lost, and all data with checksums was verified.
    pub fn is_entire(&self) -> bool {
        self.record.problems.is_empty() && self.damage.is_empty() && !self.unverified && self.record.fates.found == 0
    }

    /// How many files were copied as a whole.
    fn whole(&self) -> u64 {
        self.copied.files.saturating_sub(self.record.fates.in_part)
    }

    /// Writes the report beside the data, if there is anything to report.
    pub fn write(&mut self, directory: Option<&Path>) {
        let now = show::local(now());
        let mut head = format!("ubtrfs restore, {now}: {}\n{}", self.source, self.summary());
        for sentence in &self.damage {
            let _ = writeln!(head, "unreadable: {sentence}");
        }
        let mut summary = self.described();
        summary["time"] = json::time(self::now()).into();
        if let Some(summary) = summary.as_object_mut() {
            // Each of them has a line of its own.
            summary.remove("problems");
        }
        let name = self.record.finish(&head, &summary);
        self.file = directory.zip(name).map(|(directory, name)| directory.join(name));
        if let (Some(error), Some(directory)) = (self.record.trouble.take(), directory) {
            note!("ubtrfs: {}: the report can't be written: {}", show::path(directory), sentence(&error));
        }
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
        let fates = &self.record.fates;
        if !self.dry_run && (!self.record.problems.is_empty() || fates.there + fates.completed + fates.unverified > 0) {
            let _ = writeln!(text, "{}", count_of_fates(self.whole(), fates));
        }
        if fates.found > 0 {
            let _ = writeln!(text, "found though no directory refers to them any more: {}", fates.found);
        }
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
            "problems": self.record.problems.listed(),
            "problem_count": self.record.problems.count(),
            "files_whole": self.whole(),
            "files_in_part": self.record.fates.in_part,
            "bytes_lost_in_part": self.record.fates.lost_bytes,
            "files_lost": self.record.fates.lost,
            "files_there": self.record.fates.there,
            "files_completed": self.record.fates.completed,
            "files_differing": self.record.fates.differing,
            "files_found": self.record.fates.found,
            "files_unverified": self.record.fates.unverified,
            "report": self.file.as_ref().map(|file| json::name(file.as_os_str().as_bytes())),
        })
    }

    /// Says where the whole report is, and what else may help.
    pub fn advice(&self, devices: &[PathBuf]) -> String {
        let mut text = String::new();
        if let Some(file) = &self.file {
            let _ = writeln!(text, "the report is in {}", show::path(file));
        }
        if !self.record.problems.is_empty() || !self.damage.is_empty() {
            let device = devices.first().map(|path| show::path(path)).unwrap_or_default();
            let _ = writeln!(
                text,
                "'ubtrfs history {device} PATH' shows which commits have a file, --commit copies an older commit, and \
                 --undelete copies what was removed or changed since"
            );
        }
        text
    }

    /// Lists what was lost on the standard error stream: the beginning, if there is a report beside
    /// the data.
    pub fn report_problems(&self) {
        let mut err = io::stderr().lock();
        for sentence in &self.damage {
            let _ = writeln!(err, "ubtrfs: unreadable: {sentence}");
        }
        let most = if self.file.is_some() { MAX_LISTED } else { usize::MAX };
        self.record.problems.report_some(&mut err, most);
    }
}

/// Returns the time now.
fn now() -> Timespec {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timespec { sec: since.as_secs(), nsec: since.subsec_nanos() }
}
