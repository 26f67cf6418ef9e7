//! What happens to subvolumes in one transaction, which its commit carries out.

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

/// What a new subvolume holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NewContent {
    /// An empty root directory of this mode, user, group and inode flags.
    Empty { mode: u32, uid: u32, gid: u32, flags: u64 },
    /// All that this subvolume has when the transaction is closed.
    Snapshot(TreeId),
}

/// What a subvolume was received from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The id of the subvolume that was sent; zero if it is noted of none.
    pub uuid: Uuid,
    /// The transaction of the other volume of which it was sent.
    pub transid: u64,
    /// The time of that transaction.
    pub sent: Timespec,
}

/// What happens to subvolumes in one transaction.
#[derive(Clone, Debug, Default)]
pub(crate) struct SubvolumeChanges {
    /// Those whose entries were renamed, with where they are now.
    pub(crate) moved: BTreeMap<TreeId, EntryLocation>,
    /// Those that the commit makes.
    pub(crate) new: Vec<NewSubvolume>,
    /// Those whose entries were removed.
    pub(crate) deleted: Vec<TreeId>,
    /// Those that become read-only, or writable.
    pub(crate) read_only: BTreeMap<TreeId, bool>,
    /// Those of which it is noted what they were received from, and when.
    pub(crate) received: BTreeMap<TreeId, (Received, Timespec)>,
    /// The one that is mounted by default from now on.
    pub(crate) default: Option<TreeId>,
    /// How many nodes and references of deleted ones the commit may change.
    pub(crate) may_drop: u64,
    /// A deleted one was released in it, which the next transaction may drop.
    pub(crate) precedes_drop: bool,
}

impl SubvolumeChanges {
    /// Whether nothing happens but what inodes have noted, too.
    pub(crate) fn is_empty(&self) -> bool {
        let drops = self.may_drop > 0 || self.precedes_drop;
        self.read_only.is_empty() && self.received.is_empty() && self.default.is_none() && !drops
    }

    /// Whether a snapshot of a subvolume is made.
    pub(crate) fn has_snapshot_of(&self, source: TreeId) -> bool {
        self.new.iter().any(|new| matches!(new.content, NewContent::Snapshot(of) if of == source))
    }
}
