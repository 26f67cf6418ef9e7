//! The options of a check.

use crate::report::Progress;

/// The options of a check.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Whether to read all data, from every copy, and compare it with its csums.
    pub data_checksums: bool,
    /// How many faults, and how many warnings, to keep. All are counted.
    pub keep: usize,
    /// Gets the progress of the check.
    pub progress: Option<&'a dyn Progress>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self { data_checksums: true, keep: 1000, progress: None }
    }
}
