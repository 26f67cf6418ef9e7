//! What a scrub has done.

use ubtrfs_format::Logical;
use ubtrfs_volume::Scrubbed;

/// What a scrub has done so far, as `btrfs scrub status` counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Extents of data.
    pub data_extents: u64,
    /// Tree blocks.
    pub tree_extents: u64,
    /// What was found of data.
    pub data: Scrubbed,
    /// What was found of tree blocks.
    pub trees: Scrubbed,
    /// What was found of parity, in sectors.
    pub parity: Scrubbed,
    /// Sectors of data without checksums.
    pub no_checksum: u64,
    /// Copies of superblocks that are damaged.
    pub super_errors: u64,
    /// The address up to which all is done.
    pub last: Logical,
}

impl ScrubProgress {
    /// Copies that were wrong and could not be rewritten.
    pub fn uncorrectable(&self) -> u64 {
        self.data.uncorrectable + self.trees.uncorrectable + self.parity.uncorrectable
    }

    /// Those of them of which no device has a right copy.
    pub fn nowhere(&self) -> u64 {
        self.data.nowhere + self.trees.nowhere
    }

    /// Copies that could not be read or were wrong.
    pub fn errors(&self) -> u64 {
        let of = |found: &Scrubbed| found.read_errors + found.checksum_errors;
        of(&self.data) + of(&self.trees) + of(&self.parity) + self.super_errors
    }
}
