//! What the log of a transaction has of an inode.

use std::sync::Arc;

use ubtrfs_file::change_memory::LISTED;
use ubtrfs_format::items::InodeItem;

use super::changes::Name;
use crate::fsync_group::FsyncGroup;

/// Which parts of an inode are in the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LoggedAs {
    /// The existence of the inode, and its names.
    Named,
    /// Content and attributes too; this is the inode item at that time.
    Whole(InodeItem),
    /// The inode had no name at that time, so the log contains only the names that it lost. If it
    /// is `synced`, it was fsynced, and its content and attributes must be logged with the next
    /// name.
    Nameless { synced: bool },
}

/// What the log of a transaction has of an inode, and what has changed since.
pub(crate) struct Logged {
    pub(crate) how: LoggedAs,
    /// The write of the log that contains its newest part.
    pub(crate) group: Arc<FsyncGroup>,
    /// Whether names were added or removed since.
    pub(crate) names_changed: bool,
    /// Whether the inode is on the transaction's list of inodes whose names changed.
    pub(crate) listed: bool,
    /// Whether xattrs changed since.
    pub(crate) xattrs_changed: bool,
    /// For a directory that was logged whole: names whose entries changed since.
    entries: Vec<Name>,
    /// Memory that these take, in bytes.
    bytes: usize,
}

impl Logged {
    pub(crate) fn new(how: LoggedAs, group: Arc<FsyncGroup>) -> Self {
        Self { how, group, names_changed: false, listed: false, xattrs_changed: false, entries: Vec::new(), bytes: 0 }
    }

    /// Memory that the list of entry names takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Records that the entry of a name changed.
    pub(super) fn push_entry(&mut self, name: Name) {
        self.bytes += LISTED + name.len();
        self.entries.push(name);
    }

    /// Whether no entry changed.
    pub(crate) fn has_no_entries(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes the names whose entries changed.
    pub(crate) fn take_entries(&mut self) -> Vec<Name> {
        self.bytes = 0;
        std::mem::take(&mut self.entries)
    }

    /// Returns the inode item at the time when content and attributes were logged, if they were.
    pub(crate) fn whole(&self) -> Option<&InodeItem> {
        match &self.how {
            LoggedAs::Whole(item) => Some(item),
            LoggedAs::Named | LoggedAs::Nameless { .. } => None,
        }
    }

    /// Whether the inode had no name when it was logged.
    pub(crate) fn is_nameless(&self) -> bool {
        matches!(self.how, LoggedAs::Nameless { .. })
    }

    /// Whether content and attributes are in the log, or must be logged as soon as the inode has a
    /// name.
    pub(crate) fn is_synced(&self) -> bool {
        matches!(self.how, LoggedAs::Whole(_) | LoggedAs::Nameless { synced: true })
    }
}
