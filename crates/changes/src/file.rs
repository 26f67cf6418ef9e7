//! What is shown of a file.

use std::ops::Range;

use ubtrfs_format::items::{FileType, InodeItem};
use ubtrfs_format::{Ino, TreeId};

/// A file, directory or other inode that two subvolumes don't have alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// The inode's number. One that another inode has got since is shown twice: as removed, and as
    /// made.
    pub ino: Ino,
    /// What became of it.
    pub what: WhatChanged,
    /// Its type.
    pub file_type: FileType,
    /// Its attributes in the old subvolume, if it was there and that is known.
    pub old: Option<InodeItem>,
    /// Its attributes in the new subvolume, if it is there.
    pub new: Option<InodeItem>,
    /// All its names in the old subvolume.
    pub old_names: Vec<FileName>,
    /// All its names in the new subvolume.
    pub new_names: Vec<FileName>,
    /// Names that it has only in the old subvolume. One of them and one of the added is a rename.
    /// Whatever is in a directory keeps its name when the directory is renamed, and is not shown
    /// for that.
    pub names_removed: Vec<FileName>,
    /// Names that it has only in the new subvolume.
    pub names_added: Vec<FileName>,
    /// The attributes that changed; like what follows, only of an inode that both subvolumes have.
    pub attributes: Vec<ChangedAttribute>,
    /// The xattrs that changed, by name.
    pub xattrs: Vec<ChangedXattr>,
    /// The ranges of the content that changed, ascending: those whose extents are not the same.
    /// What was overwritten with equal bytes counts as changed.
    pub content: Vec<ChangedContent>,
    /// Of a directory, entries of subvolumes that are in one of both only.
    pub subvolumes: Vec<ChangedSubvolume>,
}

/// What became of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhatChanged {
    /// Only the new subvolume has it.
    Made,
    /// Only the old subvolume has it.
    Removed,
    /// Both have it.
    Changed,
}

/// A name of an inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileName {
    /// The directory.
    pub parent: Ino,
    /// The name in it; empty of the root directory.
    pub name: Vec<u8>,
    /// The path from the root directory of the subvolume, without a slash at the beginning; empty
    /// of the root directory.
    pub path: Vec<u8>,
}

impl FileName {
    /// The entry, wherever its directory is.
    pub(crate) fn entry(&self) -> (Ino, &[u8]) {
        (self.parent, &self.name)
    }
}

/// An attribute of an inode. The number of its names is none: the names tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedAttribute {
    /// The permissions.
    Mode,
    /// The owner or the group.
    Owner,
    /// The bytes of content; of a directory, it changes with its entries.
    Size,
    /// The device number of a device node.
    Device,
    /// The flags.
    Flags,
    /// The time of the last access.
    AccessTime,
    /// The time of the last change of the content; of a directory, of its entries.
    ModificationTime,
    /// The time of the last change of anything.
    ChangeTime,
    /// The time of creation.
    CreationTime,
}

/// An xattr that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedXattr {
    /// Its name.
    pub name: Vec<u8>,
    /// Its old value; `None` if there was none, or if that is not known.
    pub old: Option<Vec<u8>>,
    /// Its new value, if it has one.
    pub new: Option<Vec<u8>>,
}

/// A range of a file's content that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedContent {
    /// The range, in bytes.
    pub range: Range<u64>,
    /// What was there, if that is known.
    pub old: Option<Content>,
    /// What is there.
    pub new: Content,
}

/// What a range of a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nothing: zeroes, or what is behind the end of the file.
    Hole,
    /// Reserved space that reads as zeroes, perhaps behind the end of the file.
    Prealloc,
    /// Data.
    Data,
}

/// An entry of a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedSubvolume {
    /// Its name.
    pub name: Vec<u8>,
    /// The subvolume in the old one's entry.
    pub old: Option<TreeId>,
    /// The subvolume in the new one's entry.
    pub new: Option<TreeId>,
}

impl FileChange {
    /// A change of which only this is known yet.
    pub(crate) fn new(ino: Ino, what: WhatChanged, old: Option<InodeItem>, new: Option<InodeItem>) -> Self {
        let mode = new.or(old).map_or(0, |item| item.mode);
        Self {
            ino,
            what,
            file_type: FileType::from_mode(mode),
            old,
            new,
            old_names: Vec::new(),
            new_names: Vec::new(),
            names_removed: Vec::new(),
            names_added: Vec::new(),
            attributes: Vec::new(),
            xattrs: Vec::new(),
            content: Vec::new(),
            subvolumes: Vec::new(),
        }
    }

    /// Whether there is nothing to show.
    pub(crate) fn is_empty(&self) -> bool {
        self.what == WhatChanged::Changed
            && self.names_removed.is_empty()
            && self.names_added.is_empty()
            && self.attributes.is_empty()
            && self.xattrs.is_empty()
            && self.content.is_empty()
            && self.subvolumes.is_empty()
    }
}

/// The attributes that are not the same.
pub(crate) fn changed_attributes(old: &InodeItem, new: &InodeItem) -> Vec<ChangedAttribute> {
    let differ = [
        (ChangedAttribute::Mode, old.mode != new.mode),
        (ChangedAttribute::Owner, (old.uid, old.gid) != (new.uid, new.gid)),
        (ChangedAttribute::Size, old.size != new.size),
        (ChangedAttribute::Device, old.rdev != new.rdev),
        (ChangedAttribute::Flags, old.flags != new.flags),
        (ChangedAttribute::AccessTime, old.atime != new.atime),
        (ChangedAttribute::ModificationTime, old.mtime != new.mtime),
        (ChangedAttribute::ChangeTime, old.ctime != new.ctime),
        (ChangedAttribute::CreationTime, old.otime != new.otime),
    ];
    differ.into_iter().filter(|(_, differs)| *differs).map(|(attribute, _)| attribute).collect()
}
