//! The options of a check.

use ubtrfs_format::TreeId;

use crate::report::Progress;
use crate::start::Start;

/// The options of a check.
#[derive(Clone, Copy)]
pub struct Options<'a> {
    /// Whether to read all data, from every copy, and compare it with its csums.
    pub data_checksums: bool,
    /// How many faults, and how many warnings, to keep. All are counted.
    pub keep: usize,
    /// Whether to count what quota groups use even if they are marked as inconsistent.
    pub qgroups: bool,
    /// The subvolume whose extents are to be listed, with the subvolumes that share them.
    pub extents_of: Option<TreeId>,
    /// Whether the data is read by a thread of its own, while the trees are checked.
    pub threads: bool,
    /// Where to start.
    pub start: Start,
    /// Gets the progress of the check.
    pub progress: Option<&'a dyn Progress>,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Self {
            data_checksums: true,
            keep: 1000,
            qgroups: false,
            extents_of: None,
            threads: false,
            start: Start::default(),
            progress: None,
        }
    }
}
