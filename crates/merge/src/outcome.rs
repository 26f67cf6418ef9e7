//! The input and the outcome of a merge.

use ubtrfs_format::TreeId;
use ubtrfs_fs::InodeId;

/// The subvolumes of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeSides {
    /// The common earlier state of both others: a snapshot, or an unchanged subvolume of which both
    /// are snapshots.
    pub base: TreeId,
    /// The subvolume with the changes to take.
    pub changed: TreeId,
    /// The subvolume that takes them.
    pub target: TreeId,
}

/// Which side wins a conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// Neither side: if there is a conflict, nothing is changed.
    #[default]
    Neither,
    /// The target.
    Ours,
    /// The other side.
    Theirs,
}

/// A change of both sides that can't be merged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MergeConflict {
    /// A path, in one of the subvolumes.
    pub path: Vec<u8>,
    /// What both have changed.
    pub kind: ConflictKind,
}

/// What both sides have changed differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ConflictKind {
    /// The content of a file.
    Content,
    /// Permissions.
    Mode,
    /// Owner or group.
    Owner,
    /// Flags.
    Flags,
    /// An xattr.
    Xattr,
    /// The inode that a name refers to.
    Name,
    /// The names of a file or directory.
    Renamed,
    /// The target has removed an inode that the other side has changed.
    RemovedByTarget,
    /// The target has changed an inode that the other side has removed.
    RemovedByChanged,
    /// One side has removed a directory in which the other has new entries.
    Directory,
    /// Directories that would be below each other.
    Loop,
}

/// A change of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeStep {
    /// A name is made.
    Add {
        /// The path.
        path: Vec<u8>,
    },
    /// A name is removed.
    Remove {
        /// The path.
        path: Vec<u8>,
    },
    /// A name changes.
    Rename {
        /// The old path.
        from: Vec<u8>,
        /// The new path.
        to: Vec<u8>,
    },
    /// An existing inode changes.
    Change {
        /// The path.
        path: Vec<u8>,
        /// The parts that change.
        what: Vec<MergedPart>,
    },
}

/// A part that is taken of a file that both have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MergedPart {
    /// The content.
    Content,
    /// Permissions.
    Mode,
    /// Owner and group.
    Owner,
    /// Flags.
    Flags,
    /// An xattr.
    Xattr,
    /// The time of the last change of the content.
    ModificationTime,
}

/// A merge, planned or done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// What both sides have changed differently.
    pub conflicts: Vec<MergeConflict>,
    /// The changes of the target; none if there are conflicts and neither side is preferred.
    pub steps: Vec<MergeStep>,
}

/// An effect of a merge, by which callers can invalidate their caches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeEffect {
    /// A name in a directory is made or removed.
    Name(InodeId, Vec<u8>),
    /// An inode's content or attributes change.
    Inode(InodeId),
    /// Attributes of an inode change, such as its link count, but not its content.
    Attributes(InodeId),
}
