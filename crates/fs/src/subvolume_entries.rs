//! The entries of subvolumes: their locations in the root tree, and the locations of those that
//! were renamed since the mount.

use std::collections::BTreeMap;

use ubtrfs_format::items::RootRef;
use ubtrfs_format::{DirIndex, ItemType, Key, TreeId};
use ubtrfs_threads::{Rank, RwLock};
use ubtrfs_tree::EditBatch;

use crate::committed::Committed;
use crate::error::Result;
use crate::inode::{InodeId, Name};

/// The location of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryLocation {
    pub(crate) dir: InodeId,
    pub(crate) name: Name,
    pub(crate) index: DirIndex,
}

impl EntryLocation {
    /// Whether this is the location.
    pub(crate) fn is_at(&self, dir: InodeId, name: &[u8]) -> bool {
        self.dir == dir && *self.name == *name
    }

    /// Returns the location of a subvolume's entry in a commit; `None` for the top level.
    pub(crate) fn committed(committed: &Committed, id: TreeId) -> Result<Option<Self>> {
        let from = Key::new(id.0, ItemType::ROOT_BACKREF, 0);
        let to = Key::new(id.0, ItemType::ROOT_BACKREF, u64::MAX);
        let Some(item) = committed.tree(TreeId::ROOT)?.range(from..=to).next() else { return Ok(None) };
        let item = item?;
        let entry = RootRef::parse(&item)?;
        let dir = InodeId::new(TreeId(item.key.offset), entry.dirid);
        Ok(Some(Self { dir, name: entry.name.into(), index: DirIndex(entry.sequence) }))
    }

    /// Returns the item of the reference to a subvolume, which is the same in both directions.
    pub(crate) fn to_item(&self) -> Vec<u8> {
        RootRef { dirid: self.dir.ino, sequence: self.index.0, name: &self.name }.to_bytes()
    }
}

/// The entries that were renamed since the mount, including those of committed transactions: they
/// are few.
#[derive(Debug)]
pub(crate) struct MovedSubvolumes(RwLock<BTreeMap<TreeId, EntryLocation>>);

impl Default for MovedSubvolumes {
    fn default() -> Self {
        Self(RwLock::with_default(Rank::MovedSubvolumes))
    }
}

impl MovedSubvolumes {
    /// Returns the location of the entry, if it was moved.
    pub(crate) fn get(&self, id: TreeId) -> Option<EntryLocation> {
        self.0.read().get(&id).cloned()
    }

    /// Records the location of an entry. The caller holds the locks of both directories.
    pub(crate) fn put(&self, id: TreeId, entry: EntryLocation) {
        self.0.write().insert(id, entry);
    }
}

/// Returns edits of the root tree that move the references of these subvolumes to their present
/// entries.
pub(crate) fn edits_of_moved(committed: &Committed, moved: &BTreeMap<TreeId, EntryLocation>) -> Result<EditBatch> {
    let mut edits = EditBatch::new();
    let keys = |parent: TreeId, child: TreeId| {
        [Key::new(parent.0, ItemType::ROOT_REF, child.0), Key::new(child.0, ItemType::ROOT_BACKREF, parent.0)]
    };
    for (child, entry) in moved {
        if let Some(before) = EntryLocation::committed(committed, *child)? {
            for key in keys(before.dir.subvolume, *child) {
                edits.delete(key);
            }
        }
        for key in keys(entry.dir.subvolume, *child) {
            edits.put(key, entry.to_item());
        }
    }
    Ok(edits)
}
