//! The names of inodes: entries of directories, and the inodes that they refer to. A name is looked
//! up in the open transaction, then in the one that is being committed, then in the committed
//! trees.

mod listing;
mod lookup;

use std::sync::Arc;

use ubtrfs_format::TreeId;

pub use listing::DirectoryEntry;
pub(crate) use lookup::{Found, LookupResult};

use crate::fs_info::FsInfo;
use crate::subvolume_entries::{EntryLocation, MovedSubvolumes};

/// The names of a mounted volume.
pub(crate) struct Names {
    info: Arc<FsInfo>,
    moved: MovedSubvolumes,
}

impl Names {
    pub(crate) fn new(info: Arc<FsInfo>) -> Self {
        Self { info, moved: MovedSubvolumes::default() }
    }

    /// Notes where the entry of a subvolume is now. The caller holds the locks of both directories.
    pub(crate) fn move_subvolume(&self, id: TreeId, entry: EntryLocation) {
        self.moved.put(id, entry);
    }
}
