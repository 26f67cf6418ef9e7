//! Changes of the UUID tree in a commit. The tree says which subvolume has a UUID, and which
//! subvolumes were received from the one that has it.
//!
//! The latter are lists. One commit may change several entries of a list.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs_format::items::uuid_key;
use ubtrfs_format::{ItemType, TreeId, Uuid};
use ubtrfs_tree::EditBatch;

use crate::committed::Committed;
use crate::error::Result;

/// The changes of one commit.
pub(super) struct UuidEdits<'a> {
    committed: &'a Arc<Committed>,
    most_of_item: usize,
    edits: EditBatch,
    received: BTreeMap<[u8; 16], Vec<u64>>,
}

impl<'a> UuidEdits<'a> {
    pub(super) fn new(committed: &'a Arc<Committed>, most_of_item: usize) -> Self {
        Self { committed, most_of_item, edits: EditBatch::new(), received: BTreeMap::new() }
    }

    /// Records that a subvolume has this UUID.
    pub(super) fn add(&mut self, uuid: &Uuid, id: TreeId) {
        self.edits.put(uuid_key(ItemType::UUID_KEY_SUBVOL, uuid), id.0.to_le_bytes().to_vec());
    }

    /// Records that no subvolume has this UUID any more.
    pub(super) fn remove(&mut self, uuid: &Uuid) {
        self.edits.delete(uuid_key(ItemType::UUID_KEY_SUBVOL, uuid));
    }

    /// Records that a subvolume was received from the one with this UUID. If the list is full, the
    /// subvolume is left out: a search for the UUID finds another one.
    pub(super) fn add_received(&mut self, from: &Uuid, id: TreeId) -> Result<()> {
        let most = self.most_of_item / size_of::<u64>();
        let list = self.list(from)?;
        if !list.contains(&id.0) && list.len() < most {
            list.push(id.0);
        }
        Ok(())
    }

    /// Removes a subvolume that was received from the one with this UUID, since it is gone or
    /// changed.
    pub(super) fn remove_received(&mut self, from: &Uuid, id: TreeId) -> Result<()> {
        self.list(from)?.retain(|other| *other != id.0);
        Ok(())
    }

    fn list(&mut self, from: &Uuid) -> Result<&mut Vec<u64>> {
        if !self.received.contains_key(&from.0) {
            let key = uuid_key(ItemType::UUID_KEY_RECEIVED_SUBVOL, from);
            let has_tree = self.committed.has_tree(TreeId::UUID);
            let item = if has_tree { self.committed.tree(TreeId::UUID)?.get(&key)? } else { None };
            let ids = item.as_deref().unwrap_or_default().as_chunks().0.iter().map(|id| u64::from_le_bytes(*id));
            self.received.insert(from.0, ids.collect());
        }
        Ok(self.received.entry(from.0).or_default())
    }

    /// Returns the edits of the tree.
    pub(super) fn finish(self) -> EditBatch {
        let mut edits = self.edits;
        for (from, ids) in self.received {
            let key = uuid_key(ItemType::UUID_KEY_RECEIVED_SUBVOL, &Uuid(from));
            if ids.is_empty() {
                edits.delete(key);
            } else {
                edits.put(key, ids.into_iter().flat_map(u64::to_le_bytes).collect::<Vec<u8>>());
            }
        }
        edits
    }
}
