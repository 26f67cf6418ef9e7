//! What tells whether a copy on a device that lags is the right one (invariant 34).

use ubtrfs_format::Generation;

use crate::member::Member;

/// What tells whether a copy is the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Nothing.
    Nothing,
    /// Checksums that are kept elsewhere.
    Checksums,
    /// The checksum within a tree block, which blocks that were here before have, too: those of
    /// earlier logs, and of an attempt at the same commit that a crash has ended. They may have the
    /// same generation. What is of this generation is only on devices that have its commit, or
    /// lack nothing of it but the superblock.
    Block(Option<Generation>),
}

impl Proof {
    /// What sums of data prove, where there are any.
    pub(crate) fn of_sums(sums: Option<&[u8]>) -> Self {
        if sums.is_some() { Self::Checksums } else { Self::Nothing }
    }

    /// Whether what a device has may be believed, if this says that it is right.
    pub(crate) fn suffices_for(self, member: &Member) -> bool {
        !member.lags()
            || match self {
                Self::Nothing => false,
                Self::Checksums | Self::Block(None) => true,
                Self::Block(generation) => member.is_missing() || member.has_blocks_of() >= generation,
            }
    }
}
