//! The problems of a copy: what could not be copied as it is.

use std::io::Write;

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
        self.count += 1;
        if self.list.len() < KEPT && self.bytes < KEPT_BYTES {
            let problem = format!("{path}: {what}");
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
        for problem in &self.list {
            let _ = writeln!(err, "ubtrfs: {problem}");
        }
        let more = self.count - self.list.len() as u64;
        if more > 0 {
            let _ = writeln!(err, "ubtrfs: … and {more} more");
        }
    }
}
