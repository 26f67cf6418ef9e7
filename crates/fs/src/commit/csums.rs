//! Checksum ranges put and deleted, as items of the checksum tree.

use std::collections::BTreeMap;

use ubtrfs_format::{ItemType, Key, Logical, leaf_data_size, objectid};
use ubtrfs_tree::{EditBatch, Snapshot};

use crate::error::Result;

/// Collects what a commit changes of the checksum tree.
pub(super) struct CsumEdits<'a> {
    tree: &'a Snapshot,
    sum_size: usize,
    sector: u64,
    most_sums: usize,
    /// Items that changed, by the address of their first sector; `None` is one that goes.
    items: BTreeMap<u64, Option<Vec<u8>>>,
}

impl<'a> CsumEdits<'a> {
    pub(super) fn new(tree: &'a Snapshot, sum_size: usize, sector: u64, node_size: usize) -> Self {
        // Two items at least fit a leaf, so that a split always finds a place.
        let most_sums = (leaf_data_size(node_size) - 2 * ubtrfs_format::ITEM_HEADER_SIZE) / 2 / sum_size;
        Self { tree, sum_size, sector, most_sums, items: BTreeMap::new() }
    }

    fn key(address: u64) -> Key {
        Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, address)
    }

    /// Bytes of data that a number of bytes of checksums stand for.
    fn covered(&self, sums: usize) -> u64 {
        (sums / self.sum_size) as u64 * self.sector
    }

    /// Brings the tree's items that overlap `from..to` into the picture.
    fn load(&mut self, from: u64, to: u64) -> Result<()> {
        let first = match self.tree.last_at_or_before(&Self::key(from))? {
            Some(item) if item.key.item_type == ItemType::EXTENT_CSUM => item.key.offset,
            _ => from,
        };
        for item in self.tree.range(Self::key(first)..=Self::key(to - 1)) {
            let item = item?;
            let start = item.key.offset;
            if start.saturating_add(self.covered(item.len())) > from {
                self.items.entry(start).or_insert_with(|| Some(item.to_vec()));
            }
        }
        Ok(())
    }

    /// Deletes the checksums of a range.
    pub(super) fn delete(&mut self, start: Logical, len: u64) -> Result<()> {
        let (from, to) = (start.0, start.0 + len);
        self.load(from, to)?;
        let before = self.items.range(..from).next_back().map(|(at, _)| *at);
        let touched: Vec<u64> = before.into_iter().chain(self.items.range(from..to).map(|(at, _)| *at)).collect();
        for at in touched {
            let Some(Some(sums)) = self.items.get(&at).cloned() else { continue };
            let end = at + self.covered(sums.len());
            if end <= from {
                continue;
            }
            self.items.insert(at, None);
            let position = |address: u64| ((address - at) / self.sector) as usize * self.sum_size;
            if at < from {
                self.items.insert(at, Some(sums[..position(from)].to_vec()));
            }
            if end > to {
                self.items.insert(to, Some(sums[position(to)..].to_vec()));
            }
        }
        Ok(())
    }

    /// Puts the checksums of the sectors from `start` on; those that were there go.
    pub(super) fn put(&mut self, start: Logical, sums: &[u8]) -> Result<()> {
        let len = self.covered(sums.len());
        self.delete(start, len)?;
        let mut at = start.0;
        let mut rest = sums;
        // What goes on where another item ends joins it.
        if at > 0 {
            self.load(at - 1, at)?;
            if let Some((before, Some(item))) = self.items.range(..at).next_back().map(|(at, item)| (*at, item.clone()))
                && before + self.covered(item.len()) == at
            {
                let room = self.most_sums.saturating_sub(item.len() / self.sum_size) * self.sum_size;
                let (joined, left) = rest.split_at(room.min(rest.len()));
                let mut item = item;
                item.extend_from_slice(joined);
                self.items.insert(before, Some(item));
                at += self.covered(joined.len());
                rest = left;
            }
        }
        for part in rest.chunks(self.most_sums * self.sum_size) {
            self.items.insert(at, Some(part.to_vec()));
            at += self.covered(part.len());
        }
        Ok(())
    }

    /// The edits.
    pub(super) fn into_edits(self) -> EditBatch {
        let mut edits = EditBatch::default();
        for (address, sums) in self.items {
            match sums {
                Some(sums) => edits.put(Self::key(address), sums),
                None => edits.delete(Self::key(address)),
            }
        }
        edits
    }
}
