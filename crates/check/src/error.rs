/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a volume could not be checked. Faults of a volume that could be checked are no error: see
/// [`Report`](crate::Report).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No device has a good copy of the superblock.
    #[error("no copy of the superblock is good")]
    NoSuperblock,
    /// Parts of the chunk tree can't be read, so that no address can be trusted.
    #[error("the chunk tree can't be read: {0}")]
    ChunkTree(String),
    /// The root tree can't be read at all, so that no other tree is found.
    #[error("the root tree can't be read: {0}")]
    RootTree(String),
    /// No device has a good superblock at this place.
    #[error("superblock copy {0} is good on no device")]
    NoSuperblockCopy(u8),
    /// None of the superblock's backups of roots can be read.
    #[error("no backup of the roots can be read")]
    NoBackup,
    /// There is no tree block at the address where the check is to start.
    #[error("there is no valid tree block at address {0}")]
    NoBlock(ubtrfs_format::Logical),
    /// The volume has a feature that the checker does not support.
    #[error("the volume uses {0}, which this checker does not know")]
    Unsupported(String),
}
