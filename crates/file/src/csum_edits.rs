//! Changes of checksum ranges, as items of the checksum tree.

use std::collections::BTreeMap;

use ubtrfs_format::{ItemType, Key, Logical, leaf_data_size, objectid};
use ubtrfs_tree::{EditBatch, Result, Snapshot};

/// Collects the changes that a commit makes to the checksum tree.
pub struct CsumEdits<'a> {
    tree: &'a Snapshot,
    sum_size: usize,
    sector: u64,
    most_sums: usize,
    /// Changed items, by the address of their first sector; `None` for a deleted one.
    items: BTreeMap<u64, Option<Vec<u8>>>,
}

impl<'a> CsumEdits<'a> {
    /// An empty set of changes of `tree`, whose checksums have `sum_size` bytes for each sector of
    /// `sector` bytes, and whose nodes have `node_size` bytes.
    pub fn new(tree: &'a Snapshot, sum_size: usize, sector: u64, node_size: usize) -> Self {
        // At least two items fit a leaf, so that a split is always possible.
        let most_sums = (leaf_data_size(node_size) - 2 * ubtrfs_format::ITEM_HEADER_SIZE) / 2 / sum_size;
        Self { tree, sum_size, sector, most_sums, items: BTreeMap::new() }
    }

    fn key(address: u64) -> Key {
        Key::new(objectid::EXTENT_CSUM, ItemType::EXTENT_CSUM, address)
    }

    /// Returns how many bytes of data `sums` bytes of checksums cover.
    fn covered(&self, sums: usize) -> u64 {
        (sums / self.sum_size) as u64 * self.sector
    }

    /// Loads the tree's items that overlap `from..to`.
    fn load(&mut self, from: u64, to: u64) -> Result<()> {
        for item in self.tree.range_with_previous(Self::key(from)..=Self::key(to - 1)) {
            let item = item?;
            let start = item.key.offset;
            if item.key >= Self::key(0) && start.saturating_add(self.covered(item.len())) > from {
                self.items.entry(start).or_insert_with(|| Some(item.to_vec()));
            }
        }
        Ok(())
    }

    /// Returns the last item that starts before `address`. (There may have been deleted items in
    /// between.)
    fn last_before(&mut self, address: u64) -> Option<(u64, &mut Vec<u8>)> {
        self.items.range_mut(..address).rev().find_map(|(at, item)| Some((*at, item.as_mut()?)))
    }

    /// Deletes the checksums of a range.
    pub fn delete(&mut self, start: Logical, len: u64) -> Result<()> {
        self.load(start.0, start.plus(len).0)?;
        self.delete_loaded(start.0, start.plus(len).0);
        Ok(())
    }

    fn delete_loaded(&mut self, from: u64, to: u64) {
        let before = self.last_before(from).map(|(at, _)| at);
        let touched: Vec<u64> = before.into_iter().chain(self.items.range(from..to).map(|(at, _)| *at)).collect();
        for at in touched {
            let Some(Some(sums)) = self.items.get_mut(&at) else { continue };
            let end = at.saturating_add((sums.len() / self.sum_size) as u64 * self.sector);
            if end <= from {
                continue;
            }
            let position = |address: u64| ((address - at) / self.sector) as usize * self.sum_size;
            let behind = (end > to).then(|| sums.split_off(position(to)));
            if at < from {
                sums.truncate(position(from));
            } else {
                self.items.insert(at, None);
            }
            if let Some(behind) = behind {
                self.items.insert(to, Some(behind));
            }
        }
    }

    /// Deletes the checksums of extents (sorted). Neighbours are deleted together: if they were
    /// deleted one by one, each deletion would scan the remains of all earlier ones.
    pub fn delete_all(&mut self, extents: &[(Logical, u64)]) -> Result<()> {
        const MAX: u64 = 1 << 30;
        let mut extents = extents.iter().copied().peekable();
        while let Some((start, mut len)) = extents.next() {
            while let Some((_, next)) = extents.next_if(|(at, next)| *at == start.plus(len) && len + next <= MAX) {
                len += next;
            }
            self.delete(start, len)?;
        }
        Ok(())
    }

    /// Replaces the checksums of the sectors from `start` on.
    pub fn put(&mut self, start: Logical, sums: &[u8]) -> Result<()> {
        let end = start.plus(self.covered(sums.len())).0;
        // This includes the item that ends where these begin.
        self.load(start.0.saturating_sub(1), end)?;
        self.delete_loaded(start.0, end);
        let mut at = start.0;
        let mut rest = sums;
        let (most, sum_size, sector) = (self.most_sums * self.sum_size, self.sum_size, self.sector);
        // A range that continues where an item ends extends that item.
        if let Some((before, item)) = self.last_before(at)
            && before + (item.len() / sum_size) as u64 * sector == at
        {
            let (joined, left) = rest.split_at(most.saturating_sub(item.len()).min(rest.len()));
            item.extend_from_slice(joined);
            at += self.covered(joined.len());
            rest = left;
        }
        for part in rest.chunks(most) {
            self.items.insert(at, Some(part.to_vec()));
            at += self.covered(part.len());
        }
        Ok(())
    }

    /// Returns the edits.
    pub fn into_edits(self) -> EditBatch {
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

/// Gathers checksums of adjacent extents to one change, since each change has to look for its
/// neighbours.
#[derive(Default)]
pub struct AdjacentSums {
    start: Logical,
    end: Logical,
    sums: Vec<u8>,
}

impl AdjacentSums {
    /// How many bytes of checksums are gathered.
    const MAX: usize = 64 << 10;

    /// Adds the checksums of an extent. If it is no neighbour of those gathered before, puts these
    /// first.
    pub fn append(&mut self, start: Logical, len: u64, sums: &[u8], into: &mut CsumEdits<'_>) -> Result<()> {
        if start != self.end || self.sums.len() >= Self::MAX {
            self.put(into)?;
            self.start = start;
        }
        self.end = start.plus(len);
        self.sums.extend_from_slice(sums);
        Ok(())
    }

    /// Puts the gathered checksums.
    pub fn put(&mut self, into: &mut CsumEdits<'_>) -> Result<()> {
        let put = if self.sums.is_empty() { Ok(()) } else { into.put(self.start, &self.sums) };
        self.sums.clear();
        put
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use ubtrfs_tree::Edit;

    use ubtrfs_tree::testing::tree_of;

    use super::*;

    const SECTOR: u64 = 4096;
    const SIZE: usize = 4;
    const SPACE: u64 = 64;

    /// Checksums by sector number.
    type Model = BTreeMap<u64, [u8; SIZE]>;

    fn items_of(model: &Model, most: usize) -> Vec<(Key, Vec<u8>)> {
        let mut items: Vec<(Key, Vec<u8>)> = Vec::new();
        for (sector, sum) in model {
            let address = sector * SECTOR;
            if let Some((key, sums)) = items.last_mut()
                && key.offset + (sums.len() / SIZE) as u64 * SECTOR == address
                && sums.len() / SIZE < most
            {
                sums.extend_from_slice(sum);
            } else {
                items.push((CsumEdits::key(address), sum.to_vec()));
            }
        }
        items
    }

    fn model_of(items: &BTreeMap<Key, Vec<u8>>) -> Model {
        let mut model = Model::new();
        for (key, sums) in items {
            for (position, sum) in sums.chunks(SIZE).enumerate() {
                let sector = key.offset / SECTOR + position as u64;
                let before = model.insert(sector, sum.try_into().unwrap());
                assert!(before.is_none(), "two items have sector {sector}");
            }
        }
        model
    }

    proptest! {
        #[test]
        fn the_tree_has_the_checksums_that_were_put_and_not_deleted(
            before in prop::collection::btree_map(0..SPACE, any::<[u8; SIZE]>(), 0..60),
            most in 1..10_usize,
            steps in prop::collection::vec((any::<bool>(), 0..SPACE, 1..12_u64, any::<u8>()), 1..20),
        ) {
            let mut items: BTreeMap<_, _> = items_of(&before, most).into_iter().collect();
            let tree = tree_of(&items.clone().into_iter().collect::<Vec<_>>());
            let mut edits = CsumEdits::new(&tree, SIZE, SECTOR, 16384);
            edits.most_sums = 5;
            let mut model = before;
            for (put, start, len, fill) in steps {
                if put {
                    let sums: Vec<u8> = (0..len).flat_map(|at| [fill, at as u8, 1, 2]).collect();
                    edits.put(Logical(start * SECTOR), &sums).unwrap();
                    for at in 0..len {
                        model.insert(start + at, [fill, at as u8, 1, 2]);
                    }
                } else {
                    edits.delete(Logical(start * SECTOR), len * SECTOR).unwrap();
                    for at in 0..len {
                        model.remove(&(start + at));
                    }
                }
            }
            for (key, edit) in edits.into_edits().iter() {
                match edit {
                    Edit::Put(sums) => drop(items.insert(*key, sums.clone())),
                    _ => drop(items.remove(key)),
                }
            }
            prop_assert_eq!(model_of(&items), model);
        }
    }
}
