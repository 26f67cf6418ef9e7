//! What the log of a transaction has of an inode.

use std::sync::Arc;

use ubtrfs_format::items::InodeItem;

use super::Name;
use crate::log::Group;

/// What the log of a transaction has of an inode, and what of its names has changed since.
pub(crate) struct Logged {
    /// The inode item as it was when content and attributes were logged; `None` if only its existence and names were.
    pub(crate) whole: Option<InodeItem>,
    /// The write of the log that has the newest part of it.
    pub(crate) group: Arc<Group>,
    /// Names came or went since.
    pub(crate) names_changed: bool,
    /// The inode is on the transaction's list of those whose names changed.
    pub(crate) listed: bool,
    /// Xattrs changed since.
    pub(crate) xattrs_changed: bool,
    /// The inode had no name then: the log only says which names it lost.
    pub(crate) nameless: bool,
    /// Of a directory that was logged whole: names whose entries changed since.
    pub(crate) entries: Vec<Name>,
}

impl Logged {
    pub(crate) fn new(group: Arc<Group>) -> Self {
        Self {
            whole: None,
            group,
            names_changed: false,
            listed: false,
            xattrs_changed: false,
            nameless: false,
            entries: Vec::new(),
        }
    }

    /// Whether content and attributes were logged.
    pub(crate) fn is_whole(&self) -> bool {
        self.whole.is_some()
    }
}
