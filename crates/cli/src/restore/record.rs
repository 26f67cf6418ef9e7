//! What became of each file that was not simply copied. Each is written at once into a file beside
//! the data, one JSON object in a line, so that the record is complete even if the restore is
//! killed, and a later one goes on from there. Nothing is written as long as every file is whole.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use serde_json::{Value, json};
use ubtrfs_image::LinkedPath;

use super::content::Ranges;
use crate::host::target::{self, Shown};
use crate::json;
use crate::problems::Problems;
use crate::size::show_size;

/// The name of the record; the report for people has the same name with another ending.
const NAME: &str = "ubtrfs-restore-report";
/// The most bytes of an earlier record that are read.
const MAX_RECORD: u64 = 1 << 30;
/// The state of a file that is being filled up.
const BEGUN: &str = "being completed";
/// How many ranges are listed for people.
const MAX_SHOWN: usize = 4;

/// What became of a file.
pub enum Fate<'a> {
    /// Some of its content can't be read.
    Part { size: u64, lost: &'a Ranges, why: &'a str },
    /// Nothing of it was saved.
    Lost(&'a str),
    /// Something else is at its place in the directory, and was left as it is.
    Differs(&'a str),
    /// It is saved, but some of its attributes are not.
    Lacks(&'a str),
    /// It is saved, though no directory refers to it any more.
    Found(&'a str),
    /// It is saved, but its content can't be verified.
    Unverified,
    /// An earlier restore saved it in part, and now it is whole.
    Whole,
}

impl Fate<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Part { .. } => "in part",
            Self::Lost(_) => "lost",
            Self::Differs(_) => "differs",
            Self::Lacks(_) => "without attributes",
            Self::Found(_) => "found",
            Self::Unverified => "unverified",
            Self::Whole => "whole",
        }
    }

    fn described(&self, path: &[u8]) -> Value {
        let mut value = json!({ "path": json::name(path), "state": self.name() });
        match self {
            Self::Part { size, lost, why } => {
                value["size"] = json!(size);
                value["lost_bytes"] = json!(lost.bytes());
                value["lost"] = lost.iter().map(|range| json!([range.start, range.end])).collect();
                value["why"] = json!(why);
            }
            Self::Lost(why) | Self::Differs(why) | Self::Lacks(why) | Self::Found(why) => value["why"] = json!(why),
            Self::Unverified | Self::Whole => {}
        }
        value
    }

    /// Returns the sentence for people.
    fn sentence(&self) -> String {
        match self {
            Self::Part { size, lost, why } => {
                let shown: Vec<String> =
                    lost.iter().take(MAX_SHOWN).map(|range| format!("{}-{}", range.start, range.end - 1)).collect();
                let more = if lost.iter().nth(MAX_SHOWN).is_some() { ", …" } else { "" };
                format!("{} bytes of {size} are lost ({}{more}): {why}", lost.bytes(), shown.join(", "))
            }
            Self::Lost(why) | Self::Differs(why) | Self::Lacks(why) | Self::Found(why) => (*why).into(),
            Self::Unverified => "its content can't be verified".into(),
            Self::Whole => "it is whole now".into(),
        }
    }
}

/// How many files there are of each fate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fates {
    pub in_part: u64,
    /// The bytes that the files in part lack.
    pub lost_bytes: u64,
    pub lost: u64,
    pub differing: u64,
    pub found: u64,
    pub unverified: u64,
    /// Files that were there already, as the volume has them.
    pub there: u64,
    /// Files that an earlier restore saved in part, and that are whole now.
    pub completed: u64,
}

/// What a file lacks that was saved in part.
pub struct Lacks {
    pub ranges: Ranges,
    /// An earlier restore has begun to fill the ranges, and did not end that.
    pub is_begun: bool,
}

/// The record of one restore.
pub struct Record {
    /// The directory that the record is written to, if there is one.
    at: Option<OwnedFd>,
    /// The name without its ending.
    name: String,
    file: Option<File>,
    /// Why it can't be written.
    pub trouble: Option<std::io::Error>,
    pub fates: Fates,
    pub problems: Problems,
    /// What earlier restores saved in part.
    before: HashMap<Vec<u8>, Lacks>,
    is_continued: bool,
}

impl Record {
    /// Begins a record in this directory, or one that is not written. The names for which
    /// `is_taken` is true are those of files of the volume.
    pub fn begin(at: Option<OwnedFd>, goes_on: bool, is_taken: impl Fn(&str) -> bool) -> Self {
        let name = |number: u32| if number == 0 { NAME.to_owned() } else { format!("{NAME}-{number}") };
        let is_free = |name: &String| !is_taken(&format!("{name}.jsonl")) && !is_taken(&format!("{name}.txt"));
        let name = (0..100).map(name).find(is_free).unwrap_or_else(|| NAME.into());
        let mut record = Self {
            at,
            name,
            file: None,
            trouble: None,
            fates: Fates::default(),
            problems: Problems::default(),
            before: HashMap::new(),
            is_continued: false,
        };
        if goes_on {
            record.read_earlier();
        }
        record
    }

    fn open(&self, ending: &str, flags: OFlags) -> std::io::Result<Option<File>> {
        let Some(at) = &self.at else { return Ok(None) };
        let name = format!("{}.{ending}", self.name);
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::openat(at, name, flags, Mode::from_raw_mode(0o600))?);
        if !file.metadata()?.is_file() {
            return Err(std::io::Error::other("something else has the name of the report"));
        }
        Ok(Some(file))
    }

    /// Reads which files earlier restores have saved in part. A line that was not written as a
    /// whole is passed over.
    fn read_earlier(&mut self) {
        let Ok(Some(file)) = self.open("jsonl", OFlags::RDONLY) else { return };
        self.is_continued = true;
        for line in BufReader::new(file.take(MAX_RECORD)).split(b'\n').map_while(Result::ok) {
            let Ok(value) = serde_json::from_slice::<Value>(&line) else { continue };
            let Some(path) = path_of(&value["path"]) else { continue };
            match value["state"].as_str() {
                Some(state @ ("in part" | BEGUN)) => {
                    let lacks = Lacks { ranges: ranges_of(&value["lost"]), is_begun: state == BEGUN };
                    self.before.insert(path, lacks);
                }
                Some("whole") => {
                    self.before.remove(&path);
                }
                _ => {}
            }
        }
    }

    /// Returns what the copy of an earlier restore lacks, if it saved the file in part.
    pub fn lacked(&self, path: &LinkedPath) -> Option<&Lacks> {
        if self.before.is_empty() { None } else { self.before.get(&path.below(b"")) }
    }

    /// Notes what became of a file.
    pub fn note(&mut self, path: &LinkedPath, fate: &Fate<'_>) {
        let fates = &mut self.fates;
        match fate {
            Fate::Part { lost, .. } => {
                fates.in_part += 1;
                fates.lost_bytes = fates.lost_bytes.saturating_add(lost.bytes());
            }
            Fate::Lost(_) => fates.lost += 1,
            Fate::Differs(_) => fates.differing += 1,
            Fate::Found(_) => fates.found += 1,
            Fate::Unverified => fates.unverified += 1,
            Fate::Whole => fates.completed += 1,
            Fate::Lacks(_) => {}
        }
        if !matches!(fate, Fate::Found(_) | Fate::Unverified | Fate::Whole) {
            self.problems.add(Shown(path), fate.sentence());
        }
        self.write(&fate.described(&path.below(b"")));
    }

    /// Notes that a file that was saved in part is about to be filled up.
    pub fn note_begun(&mut self, path: &LinkedPath, size: u64, lost: &Ranges) {
        let mut value = Fate::Part { size, lost, why: "it is being completed" }.described(&path.below(b""));
        value["state"] = json!(BEGUN);
        self.write(&value);
    }

    /// Notes a problem that is not one of a single file.
    pub fn general(&mut self, what: &str) {
        self.problems.add("/", what);
        self.write(&json!({ "state": "problem", "why": what }));
    }

    fn write(&mut self, value: &Value) {
        if self.trouble.is_some() {
            return;
        }
        if let Err(error) = self.try_to_write(value) {
            self.trouble = Some(error);
        }
    }

    fn try_to_write(&mut self, value: &Value) -> std::io::Result<()> {
        if self.file.is_none() {
            self.file = self.open("jsonl", OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND)?;
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        file.write_all(&line)
    }

    /// Writes the summary, and the report for people. Returns the name of the latter, if there is
    /// anything to report.
    pub fn finish(&mut self, head: &str, summary: &Value) -> Option<String> {
        if self.file.is_none() && !self.is_continued || self.at.is_none() {
            return None;
        }
        // The directory has its times already.
        let times = self.at.as_ref().and_then(|at| target::times(at).ok());
        self.write(&json!({ "summary": summary }));
        let written = self.write_text(head);
        if let Some((at, times)) = self.at.as_ref().zip(times) {
            let _ = target::set_times(at, &times);
        }
        if let Err(error) = written {
            self.trouble.get_or_insert(error);
        }
        Some(format!("{}.txt", self.name))
    }

    fn write_text(&self, head: &str) -> std::io::Result<()> {
        let Some(mut text) = self.open("txt", OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)? else { return Ok(()) };
        writeln!(text, "{head}")?;
        self.problems.report_to(&mut text)?;
        writeln!(text, "{}.jsonl has all of this for programs, with all ranges.", self.name)
    }
}

/// Returns a path as [`json::name`] writes it.
fn path_of(value: &Value) -> Option<Vec<u8>> {
    if let Some(text) = value.as_str() {
        return Some(text.as_bytes().to_vec());
    }
    let hex = value["hex"].as_str()?.as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    hex.chunks(2).map(byte).collect()
}

/// Returns ranges as a record has them; those that are none are passed over.
fn ranges_of(value: &Value) -> Ranges {
    let mut ranges = Ranges::default();
    let mut last = 0;
    for pair in value.as_array().into_iter().flatten() {
        if let (Some(start), Some(end)) = (pair[0].as_u64(), pair[1].as_u64())
            && last <= start
            && start < end
        {
            ranges.push(start..end);
            last = end;
        }
    }
    ranges
}

/// Describes the numbers of files for people.
pub fn count_of_fates(whole: u64, fates: &Fates) -> String {
    let mut text = format!("saved whole: {whole} files");
    if fates.there > 0 {
        let _ = write!(text, "; there already: {}", fates.there);
    }
    if fates.completed > 0 {
        let _ = write!(text, "; completed: {}", fates.completed);
    }
    let _ = write!(text, "; in part: {}", fates.in_part);
    if fates.lost_bytes > 0 {
        let _ = write!(text, " ({} of them lost)", show_size(fates.lost_bytes));
    }
    let _ = write!(text, "; lost: {}", fates.lost);
    if fates.differing > 0 {
        let _ = write!(text, "; left as they are, since they differ: {}", fates.differing);
    }
    if fates.unverified > 0 {
        let _ = write!(text, "; without a checksum: {}", fates.unverified);
    }
    text
}
