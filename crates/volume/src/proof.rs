//! The evidence by which a copy on a device that lags is judged to be right (invariant 34).

use ubtrfs_format::Generation;

use crate::member::Member;

/// The evidence by which a copy is judged to be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// Nothing.
    Nothing,
    /// Checksums that are kept elsewhere.
    Checksums,
    /// The checksum within a tree block. It does not tell the block from earlier ones at this
    /// address: blocks of earlier logs, and of an attempt at the same commit that a crash has
    /// ended. They may have the same generation. The block of this generation is only on devices
    /// that have its commit, or that lack nothing of it but the superblock.
    Block(Option<Generation>),
}

impl Proof {
    /// Returns the evidence that checksums of data give, if there are any.
    pub(crate) fn of_sums(sums: Option<&[u8]>) -> Self {
        if sums.is_some() { Self::Checksums } else { Self::Nothing }
    }

    /// Returns whether the content of a device may be believed if this evidence says that it is
    /// right.
    pub(crate) fn suffices_for(self, member: &Member) -> bool {
        !member.lags()
            || match self {
                Self::Nothing => false,
                Self::Checksums | Self::Block(None) => true,
                Self::Block(generation) => member.is_missing() || member.has_blocks_of() >= generation,
            }
    }
}
