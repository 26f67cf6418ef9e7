//! Changes of subvolumes in one transaction, which its commit carries out.

use std::collections::BTreeMap;

use ubtrfs_format::items::Timespec;
use ubtrfs_format::{TreeId, Uuid};

use crate::subvolume_entries::EntryLocation;

/// A subvolume that the commit makes.
#[derive(Clone, Debug)]
pub(crate) struct NewSubvolume {
    pub(crate) id: TreeId,
    pub(crate) uuid: Uuid,
    /// The entry that it gets.
    pub(crate) entry: EntryLocation,
    /// The subvolume that has this entry until then, and is deleted.
    pub(crate) replaces: Option<TreeId>,
    pub(crate) content: NewContent,
    /// The xattrs of its root directory, if that is new.
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    pub(crate) read_only: bool,
    pub(crate) time: Timespec,
}

/// The content of a new subvolume.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NewContent {
    /// An empty root directory of this mode, user, group and inode flags.
    Empty { mode: u32, uid: u32, gid: u32, flags: u64 },
    /// A snapshot of this subvolume as it is when the transaction is closed.
    Snapshot(TreeId),
}

/// What a subvolume was received from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The UUID of the subvolume that was sent; zero if none is recorded.
    pub uuid: Uuid,
    /// The transaction of the other volume as of which it was sent.
    pub transid: u64,
    /// The time of that transaction.
    pub sent: Timespec,
}

/// Changes of subvolumes in one transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct SubvolumeChanges {
    /// Subvolumes whose entries were renamed, with the new entries.
    pub(crate) moved: BTreeMap<TreeId, EntryLocation>,
    /// Subvolumes that the commit creates.
    pub(crate) new: Vec<NewSubvolume>,
    /// Subvolumes whose entries were removed.
    pub(crate) deleted: Vec<TreeId>,
    /// Subvolumes that become read-only (`true`) or writable.
    pub(crate) read_only: BTreeMap<TreeId, bool>,
    /// Subvolumes for which it is recorded what they were received from, and when.
    pub(crate) received: BTreeMap<TreeId, (Received, Timespec)>,
    /// The new default subvolume.
    pub(crate) default: Option<TreeId>,
    /// How many nodes and references of deleted subvolumes the commit may change.
    pub(crate) may_drop: u64,
    /// Whether a deleted subvolume was released that only the next transaction may drop.
    pub(crate) precedes_drop: bool,
}

impl SubvolumeChanges {
    /// Whether there is no change, except those that inodes have recorded, too.
    pub(crate) fn is_empty(&self) -> bool {
        let drops = self.may_drop > 0 || self.precedes_drop;
        self.read_only.is_empty() && self.received.is_empty() && self.default.is_none() && !drops
    }

    /// Whether a snapshot of a subvolume is made.
    pub(crate) fn has_snapshot_of(&self, source: TreeId) -> bool {
        self.new.iter().any(|new| matches!(new.content, NewContent::Snapshot(of) if of == source))
    }
}
