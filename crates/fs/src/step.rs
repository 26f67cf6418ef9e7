//! The step in which an error occurred.

use std::fmt;

use ubtrfs_format::{Generation, Ino, SUPERBLOCK_COPIES, TreeId};
use ubtrfs_volume::Error as VolumeError;

/// The step in which an error occurred. A commit and a write of the log have steps of their own,
/// which follow them in the chain of causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// The commit of a transaction.
    Commit(Generation),
    /// The write of a transaction's log, for fsyncs.
    Log(Generation),
    /// Allocating space for an inode's dirty data, and submitting the data.
    Writeback {
        /// The subvolume.
        subvolume: TreeId,
        /// The inode.
        ino: Ino,
    },
    /// Writing an inode's data.
    WriteData {
        /// The subvolume.
        subvolume: TreeId,
        /// The inode.
        ino: Ino,
    },
    /// Reading an inode's data for a program.
    ReadData {
        /// The subvolume.
        subvolume: TreeId,
        /// The inode.
        ino: Ino,
    },
    /// Merging a transaction into the trees.
    MergeTrees,
    /// Writing the tree blocks of a commit.
    WriteTreeBlocks,
    /// Looking up what has to be in the log.
    GatherLog,
    /// Merging items into the log trees.
    MergeLogTrees,
    /// Writing the tree blocks of the log.
    WriteLogTreeBlocks,
    /// The flush that makes durable what the next superblock refers to.
    FlushBeforeSuperblock,
    /// Comparing the superblock on the device with the one that was written last.
    CompareSuperblock,
    /// Encoding the superblock, before any copy is written.
    EncodeSuperblock,
    /// Writing a copy of the superblock; the primary is number 0.
    WriteSuperblock {
        /// The number of the copy.
        copy: usize,
    },
    /// The flush that makes the superblock durable.
    FlushAfterSuperblock,
    /// Freeing an unlinked inode.
    FreeInode {
        /// The subvolume.
        subvolume: TreeId,
        /// The inode.
        ino: Ino,
    },
    /// Looking for orphans of an earlier mount.
    FreeOrphans,
    /// Dropping the tree of a deleted subvolume.
    DropSubvolume(TreeId),
    /// Discarding freed space.
    Discard,
}

impl Step {
    /// Returns the step of publishing a superblock that failed with this error.
    pub(crate) fn of_superblock(error: &VolumeError) -> Self {
        match error {
            VolumeError::Write { at, .. } => SUPERBLOCK_COPIES
                .iter()
                .position(|copy| copy == at)
                .map_or(Self::EncodeSuperblock, |copy| Self::WriteSuperblock { copy }),
            VolumeError::Flush { .. } => Self::FlushAfterSuperblock,
            VolumeError::Read { .. } | VolumeError::ForeignWriter { .. } | VolumeError::LostSuperblock { .. } => {
                Self::CompareSuperblock
            }
            _ => Self::EncodeSuperblock,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inode = |f: &mut fmt::Formatter<'_>, what: &str, subvolume: &TreeId, ino: &Ino| {
            write!(f, "{what} inode {ino} of subvolume {subvolume}")
        };
        match self {
            Self::Commit(generation) => write!(f, "commit of transaction {generation}"),
            Self::Log(generation) => write!(f, "log of transaction {generation}"),
            Self::Writeback { subvolume, ino } => inode(f, "writeback of", subvolume, ino),
            Self::WriteData { subvolume, ino } => inode(f, "writing data of", subvolume, ino),
            Self::ReadData { subvolume, ino } => inode(f, "reading data of", subvolume, ino),
            Self::MergeTrees => f.write_str("merging the transaction into the trees"),
            Self::WriteTreeBlocks => f.write_str("writing tree blocks"),
            Self::GatherLog => f.write_str("gathering what has to be in the log"),
            Self::MergeLogTrees => f.write_str("merging the log trees"),
            Self::WriteLogTreeBlocks => f.write_str("writing tree blocks of the log"),
            Self::FlushBeforeSuperblock => f.write_str("flush before the superblock"),
            Self::CompareSuperblock => f.write_str("comparing the superblock on the device with ours"),
            Self::EncodeSuperblock => f.write_str("making the superblock"),
            Self::WriteSuperblock { copy } => write!(f, "writing superblock copy {copy}"),
            Self::FlushAfterSuperblock => f.write_str("flush after the superblock"),
            Self::FreeInode { subvolume, ino } => inode(f, "freeing", subvolume, ino),
            Self::FreeOrphans => f.write_str("freeing orphans"),
            Self::DropSubvolume(id) => write!(f, "dropping the deleted subvolume {id}"),
            Self::Discard => f.write_str("discarding freed space"),
        }
    }
}
