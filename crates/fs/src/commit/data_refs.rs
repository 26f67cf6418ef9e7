//! References to data extents: the sum of what a commit adds and removes, resolved against the extent items.

use std::collections::{BTreeMap, HashMap};

use ubtrfs_format::items::{
    DataRef, ExtentFlags, ExtentItem, FileExtent, FileExtentKind, InlineRef, decode_data_ref, encode_data_ref,
};
use ubtrfs_format::{Generation, Ino, ItemType, Key, Logical, TreeId};
use ubtrfs_tree::{EditBatch, Snapshot};

use crate::error::{Error, Result};

/// What a commit changes of the references to one extent.
#[derive(Debug, Default)]
pub(super) struct ExtentDelta {
    pub(super) length: u64,
    changes: HashMap<DataRef, i64>,
}

/// … to all extents.
#[derive(Debug, Default)]
pub(super) struct DataRefDeltas(BTreeMap<Logical, ExtentDelta>);

impl DataRefDeltas {
    pub(super) fn add(&mut self, extent: Logical, length: u64, data: DataRef, count: i64) {
        let delta = self.0.entry(extent).or_default();
        delta.length = length;
        *delta.changes.entry(data).or_default() += count;
    }

    /// Notes that a file extent item is no longer in a subvolume's tree.
    pub(super) fn item_removed(&mut self, subvolume: TreeId, key: &Key, item: &[u8]) -> Result<()> {
        if let FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, .. } = FileExtent::parse(item)?.kind
            && disk_bytenr.0 != 0
        {
            let data = DataRef { root: subvolume, ino: Ino(key.objectid), offset: key.offset.wrapping_sub(offset) };
            self.add(disk_bytenr, disk_num_bytes, data, -1);
        }
        Ok(())
    }

    /// Takes what changes of one extent.
    pub(super) fn take(&mut self, extent: Logical) -> Option<ExtentDelta> {
        self.0.remove(&extent)
    }

    /// Takes all that is left.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Logical, ExtentDelta)> + use<> {
        std::mem::take(&mut self.0).into_iter()
    }
}

/// The extent item of an extent that this commit allocated and that files refer to; `false` if none does.
pub(super) fn put_new_extent(
    start: Logical,
    delta: &ExtentDelta,
    generation: Generation,
    node_size: usize,
    edits: &mut EditBatch,
) -> Result<bool> {
    let mut extent = Extent::new(start, delta.length, generation);
    for (data, count) in &delta.changes {
        extent.change(None, *data, *count, node_size)?;
    }
    if extent.item.refs == 0 {
        return Ok(false);
    }
    extent.emit(edits);
    Ok(true)
}

/// Applies changes to an extent that the trees have; returns whether nobody refers to it any more.
pub(super) fn change_extent(
    tree: &Snapshot,
    start: Logical,
    delta: &ExtentDelta,
    node_size: usize,
    edits: &mut EditBatch,
) -> Result<bool> {
    if delta.changes.values().all(|count| *count == 0) {
        return Ok(false);
    }
    let key = Key::new(start.0, ItemType::EXTENT_ITEM, delta.length);
    let item = tree.get(&key)?.ok_or(Error::MissingItem { tree: TreeId::EXTENT, key })?;
    let mut extent = Extent { key, item: ExtentItem::parse(&key, &item)?, keyed: BTreeMap::new() };
    // Additions first, so that a reference that moves does not make the count pass through zero.
    let mut changes: Vec<_> = delta.changes.iter().filter(|(_, count)| **count != 0).collect();
    changes.sort_by_key(|(data, count)| (-**count, **data));
    for (data, count) in changes {
        extent.change(Some(tree), *data, *count, node_size)?;
    }
    if extent.item.refs == 0 {
        edits.delete(key);
        edits.delete_range(
            Key::new(start.0, ItemType::EXTENT_DATA_REF, 0)..=Key::new(start.0, ItemType::SHARED_DATA_REF, u64::MAX),
        );
        return Ok(true);
    }
    extent.emit(edits);
    Ok(false)
}

/// An extent item and the keyed references that changed; `None` is one that goes.
struct Extent {
    key: Key,
    item: ExtentItem,
    keyed: BTreeMap<u64, Option<(DataRef, u32)>>,
}

impl Extent {
    fn new(start: Logical, length: u64, generation: Generation) -> Self {
        Self {
            key: Key::new(start.0, ItemType::EXTENT_ITEM, length),
            item: ExtentItem {
                refs: 0,
                generation,
                flags: ExtentFlags::DATA,
                tree_block: None,
                inline_refs: Vec::new(),
            },
            keyed: BTreeMap::new(),
        }
    }

    fn inconsistent(&self, what: &'static str) -> Error {
        Error::Inconsistent { tree: TreeId::EXTENT, key: self.key, what }
    }

    /// The keyed reference in the slot `hash`, as it is by now.
    fn keyed_at(&self, tree: Option<&Snapshot>, hash: u64) -> Result<Option<(DataRef, u32)>> {
        if let Some(changed) = self.keyed.get(&hash) {
            return Ok(*changed);
        }
        let Some(tree) = tree else { return Ok(None) };
        let key = Key::new(self.key.objectid, ItemType::EXTENT_DATA_REF, hash);
        tree.get(&key)?.map(|item| decode_data_ref(&item).map_err(Error::from)).transpose()
    }

    fn change(&mut self, tree: Option<&Snapshot>, data: DataRef, count: i64, node_size: usize) -> Result<()> {
        if count == 0 {
            return Ok(());
        }
        self.item.refs = self
            .item
            .refs
            .checked_add_signed(count)
            .ok_or_else(|| self.inconsistent("the extent has fewer references than files drop"))?;
        let changed = |old: u32| u32::try_from(i64::from(old) + count).ok();
        let inline =
            self.item.inline_refs.iter().position(|r| matches!(r, InlineRef::Data { data: d, .. } if *d == data));
        if let Some(position) = inline {
            let old = self.item.inline_refs[position].count() as u32;
            match changed(old).ok_or_else(|| self.inconsistent("a file drops more references than it has"))? {
                0 => drop(self.item.inline_refs.remove(position)),
                count => self.item.inline_refs[position] = InlineRef::Data { data, count },
            }
            return Ok(());
        }
        // Keyed references of one hash stand in consecutive slots.
        let mut slot = data.hash();
        while let Some((found, old)) = self.keyed_at(tree, slot)? {
            if found == data {
                let new = changed(old).ok_or_else(|| self.inconsistent("a file drops more references than it has"))?;
                self.keyed.insert(slot, (new > 0).then_some((data, new)));
                return Ok(());
            }
            slot = slot.wrapping_add(1);
        }
        let Some(count) = changed(0).filter(|count| *count > 0) else {
            return self.drop_behind_gap(tree, data, count);
        };
        if self.item.to_bytes().len() + 29 <= ExtentItem::max_inline_size(node_size) {
            self.item.inline_refs.push(InlineRef::Data { data, count });
        } else {
            self.keyed.insert(slot, Some((data, count)));
        }
        Ok(())
    }

    /// Drops from a keyed reference that stands behind a free slot: one of the same hash, removed since, was there.
    fn drop_behind_gap(&mut self, tree: Option<&Snapshot>, data: DataRef, count: i64) -> Result<()> {
        let key = |slot| Key::new(self.key.objectid, ItemType::EXTENT_DATA_REF, slot);
        for item in tree.into_iter().flat_map(|tree| tree.range(key(data.hash())..=key(u64::MAX))) {
            let slot = item?.key.offset;
            if let Some((found, old)) = self.keyed_at(tree, slot)?
                && found == data
            {
                let new = u32::try_from(i64::from(old) + count)
                    .map_err(|_| self.inconsistent("a file drops more references than it has"))?;
                self.keyed.insert(slot, (new > 0).then_some((data, new)));
                return Ok(());
            }
        }
        Err(self.inconsistent("a file drops a reference that the extent does not have"))
    }

    fn emit(&self, edits: &mut EditBatch) {
        edits.put(self.key, self.item.to_bytes());
        for (slot, reference) in &self.keyed {
            let key = Key::new(self.key.objectid, ItemType::EXTENT_DATA_REF, *slot);
            match reference {
                Some((data, count)) => edits.put(key, encode_data_ref(*data, *count).to_vec()),
                None => edits.delete(key),
            }
        }
    }
}
