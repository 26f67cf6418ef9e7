//! What the log of a transaction has of an inode.

use std::sync::Arc;

use ubtrfs_file::change_memory::LISTED;
use ubtrfs_format::items::InodeItem;

use super::changes::Name;
use crate::fsync_group::FsyncGroup;

/// How much of an inode is in the log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum LoggedAs {
    /// That it exists, and its names.
    Named,
    /// Content and attributes too, with the inode item as it was then.
    Whole(InodeItem),
    /// It had no name then: the log only has the names that it lost. If it is `synced`, it was
    /// fsynced, and its content and attributes must be logged with the next name.
    Nameless { synced: bool },
}

/// What the log of a transaction has of an inode, and what has changed since.
pub(crate) struct Logged {
    pub(crate) how: LoggedAs,
    /// The write of the log that has the newest part of it.
    pub(crate) group: Arc<FsyncGroup>,
    /// Names were added or removed since.
    pub(crate) names_changed: bool,
    /// The inode is on the transaction's list of those whose names changed.
    pub(crate) listed: bool,
    /// Xattrs changed since.
    pub(crate) xattrs_changed: bool,
    /// Of a directory that was logged whole: names whose entries changed since.
    entries: Vec<Name>,
    /// Memory that these take, in bytes.
    bytes: usize,
}

impl Logged {
    pub(crate) fn new(how: LoggedAs, group: Arc<FsyncGroup>) -> Self {
        Self { how, group, names_changed: false, listed: false, xattrs_changed: false, entries: Vec::new(), bytes: 0 }
    }

    /// Memory that the list of entries takes, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The entry of a name changed.
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

    /// The inode item as it was when content and attributes were logged, if they were.
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

    /// Whether content and attributes are in the log, or are to be as soon as the inode has a name.
    pub(crate) fn is_synced(&self) -> bool {
        matches!(self.how, LoggedAs::Whole(_) | LoggedAs::Nameless { synced: true })
    }
}
