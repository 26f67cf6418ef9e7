//! Whether a file shares an extent: with another file, with another place in the file, or with a
//! snapshot.

use std::collections::HashMap;

use ubtrfs_file::{CommittedExtents, ExtentPiece, Piece};
use ubtrfs_format::items::{DataRef, ExtentItem, InlineRef, decode_data_ref, decode_shared_data_ref};
use ubtrfs_format::{Generation, ItemType, Key, Logical, TreeId};
use ubtrfs_tree::Snapshot;

use super::owner::Writeback;
use crate::committed::Committed;
use crate::error::Result;
use crate::inode::InodeId;

impl Writeback {
    /// Whether an extent, which a file has at `start`, has other references than the one of this
    /// file at this place. Snapshots have no reference of their own while they share the leaf.
    pub(super) fn has_other_references(&self, id: InodeId, start: u64, extent: &ExtentPiece) -> Result<bool> {
        // This is read before the committed trees, which contain every transaction that has left
        // this list.
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

    /// Returns an object that tells which extents a file shares now.
    pub(crate) fn sharing(&self, id: InodeId) -> Sharing<'_> {
        let generation = self.info.gate.current().generation;
        let last_snapshot = self.info.last_snapshot(id.subvolume, generation);
        Sharing { writeback: self, id, last_snapshot, in_pieces: HashMap::new() }
    }
}

/// Tells which extents a file shares.
pub(crate) struct Sharing<'a> {
    writeback: &'a Writeback,
    id: InodeId,
    last_snapshot: Generation,
    /// Extents that the file has in several pieces, with whether they are shared.
    in_pieces: HashMap<Logical, bool>,
}

impl Sharing<'_> {
    /// Whether the file shares an extent, which it has at `start`. Pieces of one extent that are
    /// left by a write to its middle do not count as shared with each other.
    pub(crate) fn is_shared(&mut self, start: u64, extent: &ExtentPiece) -> Result<bool> {
        // This is read before the committed trees, which contain every transaction that has left
        // this list.
        let transactions = self.writeback.info.open_transactions();
        if transactions.iter().any(|transaction| transaction.is_shared(extent.disk_bytenr)) {
            return Ok(true);
        }
        let committed = self.writeback.info.committed();
        let may_be_in_snapshot = extent.generation <= self.last_snapshot;
        if may_be_in_snapshot && self.last_snapshot > committed.generation {
            // A snapshot that is being committed shares the extents of its source.
            return Ok(true);
        }
        let extents = committed.tree(TreeId::EXTENT)?;
        let key = Key::new(extent.disk_bytenr.0, ItemType::EXTENT_ITEM, extent.disk_num_bytes);
        let Some(item) = extents.get(&key)? else {
            return Ok(!transactions.iter().any(|transaction| transaction.extents().contains_key(&extent.disk_bytenr)));
        };
        let in_pieces = match only_reference(&extents, &key, &ExtentItem::parse(&key, &item)?)? {
            Some(InlineRef::Data { data, count }) if (data.root, data.ino) == (self.id.subvolume, self.id.ino) => {
                (count > 1).then_some(data)
            }
            // The reference is that of the leaf that contains this piece.
            Some(InlineRef::SharedData { .. }) => None,
            _ => return Ok(true),
        };
        match in_pieces {
            _ if !may_be_in_snapshot => Ok(false),
            None => self.is_leaf_shared(&committed, start),
            Some(data) => self.is_any_leaf_shared(&committed, data.offset, extent),
        }
    }

    /// Whether another tree shares a leaf that contains a piece of this extent, which the file has
    /// in several pieces. `first` is the offset in the file at which the whole extent would start.
    fn is_any_leaf_shared(&mut self, committed: &Committed, first: u64, extent: &ExtentPiece) -> Result<bool> {
        if let Some(known) = self.in_pieces.get(&extent.disk_bytenr) {
            return Ok(*known);
        }
        let sector_size = committed.superblock.sector_size;
        let pieces = CommittedExtents::new(committed.tree(self.id.subvolume)?, self.id.ino, sector_size);
        // An extent whose head was dropped may start before the start of the file.
        let end = first.wrapping_add(extent.unpacked_len());
        let range = if first < end { first..end } else { 0..end };
        let mut is_shared = false;
        for piece in pieces.items(&range) {
            let piece = piece?;
            if matches!(&piece.piece, Piece::Extent(other) if other.disk_bytenr == extent.disk_bytenr)
                && self.is_leaf_shared(committed, piece.start)?
            {
                is_shared = true;
                break;
            }
        }
        self.in_pieces.insert(extent.disk_bytenr, is_shared);
        Ok(is_shared)
    }

    /// Whether another tree shares a block on the path to the item for this place of the file.
    fn is_leaf_shared(&self, committed: &Committed, start: u64) -> Result<bool> {
        let key = Key::new(self.id.ino.0, ItemType::EXTENT_DATA, start);
        for node in committed.tree(self.id.subvolume)?.path_to(&key)? {
            if self.writeback.shared_nodes.is_shared(committed, &node)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Returns the reference to a data extent if it has only one. Several pieces of a file that come
/// from the same place have one reference with a count.
fn only_reference(extents: &Snapshot, key: &Key, item: &ExtentItem) -> Result<Option<InlineRef>> {
    let mut references: Vec<InlineRef> = item.inline_refs.iter().filter(|inline| inline.count() > 0).copied().collect();
    if references.iter().map(InlineRef::count).sum::<u64>() < item.refs {
        let first = Key::new(key.objectid, ItemType::EXTENT_DATA_REF, 0);
        let last = Key::new(key.objectid, ItemType::SHARED_DATA_REF, u64::MAX);
        for keyed in extents.range(first..=last).take(2) {
            let keyed = keyed?;
            references.push(if keyed.key.item_type == ItemType::SHARED_DATA_REF {
                InlineRef::SharedData { parent: Logical(keyed.key.offset), count: decode_shared_data_ref(&keyed)? }
            } else {
                let (data, count) = decode_data_ref(&keyed)?;
                InlineRef::Data { data, count }
            });
        }
    }
    Ok(if let [only] = &*references { Some(*only) } else { None })
}
