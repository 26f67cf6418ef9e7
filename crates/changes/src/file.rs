//! The description of a change of a file.

use std::ops::Range;

use ubtrfs_format::items::{FileType, InodeItem};
use ubtrfs_format::{Ino, TreeId};

/// A file, directory or other inode that differs between two subvolumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileChange {
    /// The inode's number. If another inode has got the number since, there are two changes of it:
    /// one removed and one made.
    pub ino: Ino,
    /// What happened to it.
    pub what: WhatChanged,
    /// Its type.
    pub file_type: FileType,
    /// Its attributes in the old subvolume, if it was there and they are known.
    pub old: Option<InodeItem>,
    /// Its attributes in the new subvolume, if it is there.
    pub new: Option<InodeItem>,
    /// All its names in the old subvolume.
    pub old_names: Vec<FileName>,
    /// All its names in the new subvolume.
    pub new_names: Vec<FileName>,
    /// Names that it has only in the old subvolume. One of these together with an added name is a
    /// rename. If a directory is renamed, the inodes in it keep their names, and are not shown for
    /// that.
    pub names_removed: Vec<FileName>,
    /// Names that it has only in the new subvolume.
    pub names_added: Vec<FileName>,
    /// The attributes that changed. Like the fields below, this is only set for an inode that both
    /// subvolumes have.
    pub attributes: Vec<ChangedAttribute>,
    /// The xattrs that changed, by name.
    pub xattrs: Vec<ChangedXattr>,
    /// The ranges of the content that changed, ascending: those whose extents differ. Ranges that
    /// were overwritten with equal bytes count as changed.
    pub content: Vec<ChangedContent>,
    /// Entries of subvolumes that are only in the old or only in the new directory.
    pub subvolumes: Vec<ChangedSubvolume>,
}

/// What happened to an inode.
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
    /// The name in it; empty for the root directory.
    pub name: Vec<u8>,
    /// The path from the root directory of the subvolume, without a leading slash; empty for the
    /// root directory.
    pub path: Vec<u8>,
}

impl FileName {
    /// The entry, regardless of the path of its directory.
    pub(crate) fn entry(&self) -> (Ino, &[u8]) {
        (self.parent, &self.name)
    }
}

/// An attribute of an inode. The link count is none of them, since the names show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangedAttribute {
    /// The permissions.
    Mode,
    /// The owner or the group.
    Owner,
    /// The size in bytes. That of a directory changes with its entries.
    Size,
    /// The device number of a device node.
    Device,
    /// The flags.
    Flags,
    /// The time of the last access.
    AccessTime,
    /// The time of the last change of the content, or of a directory's entries.
    ModificationTime,
    /// The time of the last change of the inode.
    ChangeTime,
    /// The time of creation.
    CreationTime,
}

/// An xattr that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedXattr {
    /// Its name.
    pub name: Vec<u8>,
    /// Its old value; `None` if there was none, or if it is not known.
    pub old: Option<Vec<u8>>,
    /// Its new value, if it has one.
    pub new: Option<Vec<u8>>,
}

/// A range of a file's content that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedContent {
    /// The range, in bytes.
    pub range: Range<u64>,
    /// What the range had, if that is known.
    pub old: Option<Content>,
    /// What the range has.
    pub new: Content,
}

/// The kind of content of a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// A hole, which reads as zeroes, or a range behind the end of the file.
    Hole,
    /// Preallocated space, which reads as zeroes, and may be behind the end of the file.
    Prealloc,
    /// Data.
    Data,
}

/// A change of the entry of a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedSubvolume {
    /// Its name.
    pub name: Vec<u8>,
    /// The subvolume of the old entry.
    pub old: Option<TreeId>,
    /// The subvolume of the new entry.
    pub new: Option<TreeId>,
}

impl FileChange {
    /// Returns a change of which only this is known yet.
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

    /// Returns whether there is nothing to show.
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

/// The attributes that differ.
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
