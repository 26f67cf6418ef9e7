//! The kinds of changes to an inode's names and to directory entries.

use std::sync::Arc;

use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, Ino, ItemType, Key, TreeId};

/// A file name or xattr name.
pub(crate) type Name = Arc<[u8]>;

/// What a directory entry refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Key of the inode item or of the subvolume's root item.
    pub(crate) location: Key,
    pub(crate) file_type: FileType,
}

impl Target {
    /// Returns the subvolume that the entry refers to, if it is that of a subvolume, or was one in
    /// a snapshot's source.
    pub(crate) fn subvolume(&self) -> Option<TreeId> {
        (self.location.item_type == ItemType::ROOT_ITEM).then_some(TreeId(self.location.objectid))
    }
}

/// The change of a name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryChange {
    /// The target of the name before the transaction.
    pub(crate) base: Option<Target>,
    /// Its index and its target now.
    pub(crate) now: Option<(DirIndex, Target)>,
}

/// The change of a name of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefChange {
    /// Its index in the directory before the transaction, if the inode had the name then.
    pub(crate) base: Option<DirIndex>,
    /// Its index now, if the inode has the name.
    pub(crate) now: Option<DirIndex>,
}

/// A name that an inode loses.
pub(crate) struct LostName {
    pub(crate) dir: Ino,
    pub(crate) name: Name,
    /// Its index in the directory.
    pub(crate) index: DirIndex,
    /// Whether the log has the directory: then it may have the name although it does not have the
    /// inode yet.
    pub(crate) is_dir_logged: bool,
}

/// The change of an inode's orphan item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OrphanEdit {
    #[default]
    None,
    Add,
    Remove,
}
