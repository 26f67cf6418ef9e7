//! What is merged, and what comes of it.

use ubtrfs_format::TreeId;
use ubtrfs_fs::InodeId;

/// The subvolumes of a merge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MergeSides {
    /// What both others were: a snapshot, or what both are snapshots of and that has not changed.
    pub base: TreeId,
    /// What has the changes to be taken.
    pub changed: TreeId,
    /// What takes them.
    pub target: TreeId,
}

/// Who wins a conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Prefer {
    /// Nobody: nothing is changed then.
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
    /// What the name refers to.
    Name,
    /// The names of a file or directory.
    Renamed,
    /// The target has removed what the other side has changed.
    RemovedByTarget,
    /// The target has changed what the other side has removed.
    RemovedByChanged,
    /// A directory that one side has removed, and in which the other has something new.
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
    /// A name becomes another.
    Rename {
        /// The old path.
        from: Vec<u8>,
        /// The new path.
        to: Vec<u8>,
    },
    /// Something that is there changes.
    Change {
        /// The path.
        path: Vec<u8>,
        /// What of it.
        what: Vec<MergedPart>,
    },
}

/// What is taken of a file that both have.
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
    /// What changes in the target; nothing if there are conflicts that nobody wins.
    pub steps: Vec<MergeStep>,
}

/// What a merge changes, for who caches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MergeEffect {
    /// A name in a directory is made or removed.
    Name(InodeId, Vec<u8>),
    /// An inode's content or attributes change.
    Inode(InodeId),
    /// Attributes of an inode change, such as the number of its names, and its content doesn't.
    Attributes(InodeId),
}
