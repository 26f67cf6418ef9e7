//! The progress of a scrub.

use ubtrfs_format::Logical;
use ubtrfs_volume::Scrubbed;

/// The progress of a scrub, in the counts of `btrfs scrub status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Number of data extents.
    pub data_extents: u64,
    /// Number of tree blocks.
    pub tree_extents: u64,
    /// Findings in data.
    pub data: Scrubbed,
    /// Findings in tree blocks.
    pub trees: Scrubbed,
    /// Findings in parity, in sectors.
    pub parity: Scrubbed,
    /// Sectors of data without checksums.
    pub no_checksum: u64,
    /// Damaged copies of superblocks.
    pub super_errors: u64,
    /// The logical address up to which everything is scrubbed.
    pub last: Logical,
}

impl ScrubProgress {
    /// Returns the number of copies that were wrong and could not be rewritten.
    pub fn uncorrectable(&self) -> u64 {
        self.data.uncorrectable + self.trees.uncorrectable + self.parity.uncorrectable
    }

    /// Returns how many of these have no right copy on any device.
    pub fn nowhere(&self) -> u64 {
        self.data.nowhere + self.trees.nowhere
    }

    /// Returns the number of copies that could not be read or were wrong.
    pub fn errors(&self) -> u64 {
        let of = |found: &Scrubbed| found.read_errors + found.checksum_errors;
        of(&self.data) + of(&self.trees) + of(&self.parity) + self.super_errors
    }
}
