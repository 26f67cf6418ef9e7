//! The options of a check.

use crate::report::Progress;

/// How to check.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Read all data, from every copy, and compare it with its checksums.
    pub data_checksums: bool,
    /// How many faults (and how many warnings) to keep; all are counted.
    pub keep: usize,
    /// Is called with the progress of the check.
    pub progress: Option<&'a dyn Progress>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { data_checksums: true, keep: 1000, progress: None }
    }
}
