//! The problems of a copy: what could not be copied as it is.

use std::io::Write;

use crate::failure::Failure;

/// How many problems are kept to be listed, and how many bytes of them, since a hostile volume may
/// have long paths.
const KEPT: usize = 10_000;
const KEPT_BYTES: usize = 16 << 20;

/// A bounded list of problems.
#[derive(Default)]
pub struct Problems {
    list: Vec<String>,
    bytes: usize,
    count: u64,
}

impl Problems {
    /// Adds a problem at a path.
    pub fn add(&mut self, path: impl std::fmt::Display, what: impl std::fmt::Display) {
        self.push(format!("{path}: {what}"));
    }

    fn push(&mut self, problem: String) {
        self.count += 1;
        if self.list.len() < KEPT && self.bytes < KEPT_BYTES {
            self.bytes += problem.len();
            self.list.push(problem);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the problems that are kept.
    pub fn listed(&self) -> &[String] {
        &self.list
    }

    /// Returns the number of all problems.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Lists the problems on the standard error stream.
    pub fn report(&self, err: &mut impl Write) {
        self.report_some(err, usize::MAX);
    }

    /// Lists at most so many problems on the standard error stream.
    pub fn report_some(&self, err: &mut impl Write, most: usize) {
        let shown = self.list.len().min(most);
        for problem in &self.list[..shown] {
            let _ = writeln!(err, "ubtrfs: {problem}");
        }
        let more = self.count - shown as u64;
        if more > 0 {
            let _ = writeln!(err, "ubtrfs: … and {more} more");
        }
    }

    /// Writes the problems into a report, one in a line.
    pub fn report_to(&self, report: &mut impl Write) -> std::io::Result<()> {
        let list = self.list.iter().try_for_each(|problem| writeln!(report, "{problem}"));
        let more = self.count - self.list.len() as u64;
        if more > 0 { list.and_then(|()| writeln!(report, "… and {more} more")) } else { list }
    }

    /// Adds a problem that a failure describes.
    pub fn add_failure(&mut self, failure: &Failure) {
        self.push(crate::show::harmless(failure.sentence()));
    }
}
