//! Whether a file shares an extent: with another file, with another place in the file, or with a
//! snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs_format::items::{DataRef, ExtentItem, InlineRef};
use ubtrfs_format::{Generation, ItemType, Key, Logical, TreeId};
use ubtrfs_tree::NodeRef;

use super::owner::Writeback;
use crate::committed::Committed;
use crate::error::{Error, Result};
use crate::file::piece::ExtentPiece;
use crate::inode::InodeId;

impl Writeback {
    /// Whether an extent, which a file has at `start`, has references of others than this file at
    /// this place. Snapshots have none of their own while they share the leaf.
    pub(super) fn has_other_references(&self, id: InodeId, start: u64, extent: &ExtentPiece) -> Result<bool> {
        // Before the committed trees are read: a transaction that is no longer in this list is in
        // them.
        let transactions = self.info.open_transactions();
        if transactions.iter().any(|transaction| transaction.is_shared(extent.disk_bytenr)) {
            return Ok(true);
        }
        let committed = self.info.committed();
        let key = Key::new(extent.disk_bytenr.0, ItemType::EXTENT_ITEM, extent.disk_num_bytes);
        let Some(item) = committed.tree(TreeId::EXTENT)?.get(&key)? else {
            return Ok(!transactions.iter().any(|transaction| transaction.extents().contains_key(&extent.disk_bytenr)));
        };
        let item = ExtentItem::parse(&key, &item)?;
        let ours = DataRef { root: id.subvolume, ino: id.ino, offset: start.wrapping_sub(extent.offset) };
        let mut others = item.refs;
        for reference in &item.inline_refs {
            match reference {
                InlineRef::Data { data, count } if *data == ours => others = others.saturating_sub(u64::from(*count)),
                _ => {}
            }
        }
        Ok(others > 0)
    }

    /// What a file shares, as of now.
    pub(crate) fn sharing(&self, id: InodeId) -> Sharing<'_> {
        let generation = self.info.gate.current().generation;
        let last_snapshot = self.info.last_snapshot(id.subvolume, generation);
        Sharing { writeback: self, id, committed: self.info.committed(), last_snapshot, shared_blocks: BTreeMap::new() }
    }
}

/// What a file shares. It remembers of blocks of the file's tree whether others use them.
pub(crate) struct Sharing<'a> {
    writeback: &'a Writeback,
    id: InodeId,
    committed: Arc<Committed>,
    last_snapshot: Generation,
    shared_blocks: BTreeMap<Logical, bool>,
}

impl Sharing<'_> {
    /// Whether the file shares an extent, which it has at `start`.
    pub(crate) fn is_shared(&mut self, start: u64, extent: &ExtentPiece) -> Result<bool> {
        if extent.generation <= self.last_snapshot {
            // A snapshot that is being committed shares what it was made of.
            if self.last_snapshot > self.committed.generation || self.is_leaf_shared(start)? {
                return Ok(true);
            }
        }
        self.writeback.has_other_references(self.id, start, extent)
    }

    /// Whether another tree shares a block on the way to the item for this place of the file.
    fn is_leaf_shared(&mut self, start: u64) -> Result<bool> {
        let key = Key::new(self.id.ino.0, ItemType::EXTENT_DATA, start);
        for node in self.committed.tree(self.id.subvolume)?.path_to(&key)? {
            if self.is_block_shared(&node)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_block_shared(&mut self, node: &NodeRef) -> Result<bool> {
        if let Some(known) = self.shared_blocks.get(&node.bytenr) {
            return Ok(*known);
        }
        let extents = self.committed.tree(TreeId::EXTENT)?;
        let node_size = u64::from(self.writeback.info.volume.node_size());
        let skinny = Key::new(node.bytenr.0, ItemType::METADATA_ITEM, node.level.into());
        let full = Key::new(node.bytenr.0, ItemType::EXTENT_ITEM, node_size);
        let refs = match (extents.get(&skinny)?, extents.get(&full)?) {
            (Some(item), _) => ExtentItem::parse(&skinny, &item)?.refs,
            (None, Some(item)) => ExtentItem::parse(&full, &item)?.refs,
            (None, None) => return Err(Error::MissingItem { tree: TreeId::EXTENT, key: skinny }),
        };
        self.shared_blocks.insert(node.bytenr, refs > 1);
        Ok(refs > 1)
    }
}
