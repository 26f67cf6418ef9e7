//! The free-space tree: reading a group's free ranges, and the edits that update it.

use std::iter::Peekable;
use std::sync::Arc;

use ubtrfs_format::items::{BlockGroupItem, FreeSpaceInfo};
use ubtrfs_format::{ItemType, Key, Logical, TreeId};
use ubtrfs_tree::{EditBatch, NodeCache, Range, Snapshot};

use crate::error::{Error, Result};
use crate::free_map::FreeMap;
use crate::group::{BlockGroup, FreeSpaceForm};
use crate::space::{Space, SpaceState};

/// Sectors of one bitmap item.
const BITMAP_SECTORS: u64 = FreeSpaceInfo::BITMAP_BYTES as u64 * 8;

/// Reads the free-space tree once, for all groups in the order of their addresses.
pub(crate) struct FreeSpaceReader(Peekable<Range<Arc<NodeCache>>>);

impl FreeSpaceReader {
    pub(crate) fn new(tree: &Snapshot) -> Self {
        Self(tree.range(Key::MIN..=Key::MAX).peekable())
    }

    /// Returns a group's free ranges in the tree, and their form. Groups have to be asked for in
    /// the order of their addresses. Returns `None` if the tree has no items of the group or
    /// inconsistent ones: ranges that overlap, that reach beyond the group, or that are not of its
    /// form, or two items for one range, which edits would not know.
    pub(crate) fn read_group(
        &mut self,
        start: Logical,
        length: u64,
        sector_size: u64,
    ) -> Result<Option<(FreeMap, FreeSpaceForm)>> {
        let end = start.0.saturating_add(length);
        let mut info = None;
        let mut free = FreeMap::default();
        let (mut extents, mut bitmaps) = (0, 0);
        while let Some(item) = self.0.next_if(|item| item.as_ref().map_or(true, |item| item.key.objectid < end)) {
            let item = item?;
            let key = item.key;
            if key == Key::new(start.0, ItemType::FREE_SPACE_INFO, length) {
                info = Some(FreeSpaceInfo::parse(&item)?);
            }
            // Items before the group belong to no group.
            if info.is_none() || !matches!(key.item_type, ItemType::FREE_SPACE_EXTENT | ItemType::FREE_SPACE_BITMAP) {
                continue;
            }
            if key.objectid.checked_add(key.offset).is_none_or(|item_end| item_end > end) {
                return Ok(None);
            }
            if key.item_type == ItemType::FREE_SPACE_BITMAP {
                // Bits beyond the range that the key gives the item mean nothing.
                let bytes = (key.offset / sector_size).div_ceil(8).min(item.len() as u64);
                insert_bitmap(&mut free, key.objectid, &item[..bytes as usize], sector_size);
                bitmaps += 1;
                continue;
            }
            extents += 1;
            if !free.insert(key.objectid, key.offset) {
                return Ok(None);
            }
        }
        Ok(info.and_then(|info| {
            let is_bitmaps = info.flags & FreeSpaceInfo::USING_BITMAPS != 0;
            let form = if is_bitmaps { FreeSpaceForm::Bitmaps } else { FreeSpaceForm::Extents };
            let is_of_form = if is_bitmaps { extents == 0 } else { bitmaps == 0 && extents == free.len() };
            is_of_form.then_some((free, form))
        }))
    }
}

fn insert_bitmap(free: &mut FreeMap, start: u64, bits: &[u8], sector_size: u64) {
    let mut run: Option<u64> = None;
    let sectors = bits.len() as u64 * 8;
    for sector in 0..=sectors {
        let set = sector < sectors && bits[(sector / 8) as usize] >> (sector % 8) & 1 == 1;
        match (run, set) {
            (None, true) => run = Some(sector),
            (Some(first), false) => {
                free.insert(start + first * sector_size, (sector - first) * sector_size);
                run = None;
            }
            _ => {}
        }
    }
}

fn bitmap_of(free: &FreeMap, start: u64, length: u64, sector_size: u64) -> Vec<u8> {
    let mut bits = vec![0; (length / sector_size).div_ceil(8) as usize];
    let end = start + length;
    for (at, len) in free.overlapping(start, end) {
        for sector in (at.max(start) - start) / sector_size..((at + len).min(end) - start) / sector_size {
            bits[(sector / 8) as usize] |= 1 << (sector % 8);
        }
    }
    bits
}

impl BlockGroup {
    /// Returns two limits: more ranges than the first are stored as bitmaps, and fewer than the
    /// second as ranges again.
    fn form_limits(&self, sector_size: u64) -> (usize, usize) {
        let bitmaps = self.length.div_ceil(BITMAP_SECTORS * sector_size);
        let high = (bitmaps * (25 + FreeSpaceInfo::BITMAP_BYTES as u64) / 25) as usize;
        (high, high.saturating_sub(100))
    }

    /// Deletes all items of a group that is removed.
    pub(crate) fn delete_items(&self, edits: &mut GroupEdits) {
        edits.block_groups.delete(Key::new(self.start.0, ItemType::BLOCK_GROUP_ITEM, self.length));
        self.delete_free_space(&mut edits.free_space);
    }

    fn delete_free_space(&self, edits: &mut EditBatch) {
        edits.delete_range(
            Key::new(self.start.0, ItemType(0), 0)..=Key::new(self.end() - 1, ItemType(u8::MAX), u64::MAX),
        );
    }

    fn write_all_free_space(&self, edits: &mut EditBatch, sector_size: u64) {
        self.delete_free_space(edits);
        match self.form {
            FreeSpaceForm::Extents => {
                for (start, len) in self.recorded_free.iter() {
                    edits.put(Key::new(start, ItemType::FREE_SPACE_EXTENT, len), Vec::new());
                }
            }
            FreeSpaceForm::Bitmaps => self.write_bitmaps(edits, sector_size, self.start.0, self.end()),
        }
    }

    /// Writes the bitmaps that cover `from..to`.
    fn write_bitmaps(&self, edits: &mut EditBatch, sector_size: u64, from: u64, to: u64) {
        let span = BITMAP_SECTORS * sector_size;
        let mut at = self.start.0 + (from - self.start.0) / span * span;
        while at < to {
            let length = span.min(self.end() - at);
            let bits = bitmap_of(&self.recorded_free, at, length, sector_size);
            edits.put(Key::new(at, ItemType::FREE_SPACE_BITMAP, length), bits);
            at += length;
        }
    }

    fn free_space_edits(&mut self, edits: &mut EditBatch, sector_size: u64) {
        let (high, low) = self.form_limits(sector_size);
        let count = self.recorded_free.len();
        let form = match self.form {
            FreeSpaceForm::Extents if count > high => FreeSpaceForm::Bitmaps,
            FreeSpaceForm::Bitmaps if count < low => FreeSpaceForm::Extents,
            form => form,
        };
        let delta = std::mem::take(&mut self.delta);
        if form != self.form || self.rewrite_free_space {
            self.form = form;
            self.rewrite_free_space = false;
            self.write_all_free_space(edits, sector_size);
        } else if form == FreeSpaceForm::Bitmaps {
            for (start, len) in delta.gone.iter().chain(&delta.come) {
                self.write_bitmaps(edits, sector_size, *start, start + len);
            }
        } else {
            for (start, len) in delta.gone {
                edits.delete(Key::new(start, ItemType::FREE_SPACE_EXTENT, len));
            }
            for (start, len) in delta.come {
                edits.put(Key::new(start, ItemType::FREE_SPACE_EXTENT, len), Vec::new());
            }
        }
        let info = FreeSpaceInfo {
            extent_count: count as u32,
            flags: u32::from(form == FreeSpaceForm::Bitmaps) * FreeSpaceInfo::USING_BITMAPS,
        };
        edits.put(Key::new(self.start.0, ItemType::FREE_SPACE_INFO, self.length), info.to_bytes().to_vec());
    }
}

/// The edits that update the recorded map of the block groups.
#[derive(Default)]
pub struct GroupEdits {
    /// Block group items: of the extent tree or the block-group tree.
    pub block_groups: EditBatch,
    /// The items of the free-space tree.
    pub free_space: EditBatch,
}

impl GroupEdits {
    /// Adds other groups' edits.
    pub fn append(&mut self, other: Self) -> Result<()> {
        self.block_groups.append(other.block_groups)?;
        self.free_space.append(other.free_space)?;
        Ok(())
    }
}

impl Space {
    /// Notes in the block groups' records that the commit in progress allocates extents (sorted),
    /// or that it frees them.
    pub fn record(&self, mut extents: &[(Logical, u64)], are_allocated: bool) -> Result<()> {
        while !extents.is_empty() {
            self.lock().record_next(&mut extents, are_allocated)?;
        }
        Ok(())
    }
}

impl SpaceState {
    /// Notes in the block groups' records that the commit in progress allocates or frees the first
    /// of these extents (sorted), together with the neighbours that follow it, since each note
    /// changes the map of free space. An error means that the trees or the commit are wrong
    /// (invariant 10), so the commit must not become durable.
    pub(crate) fn record_next(&mut self, extents: &mut &[(Logical, u64)], is_allocated: bool) -> Result<()> {
        let [(start, len), rest @ ..] = *extents else { return Ok(()) };
        let (start, mut len) = (*start, *len);
        *extents = rest;
        let is_recorded = self.groups.of_mut(start).is_some_and(|mut group| {
            while let [(next, more), rest @ ..] = *extents
                && *next == start.plus(len)
                && next.0.saturating_add(*more) <= group.end()
            {
                (*extents, len) = (rest, len + more);
            }
            if is_allocated { group.record_allocated(start, len) } else { group.record_freed(start, len) }
        });
        if is_recorded {
            return Ok(());
        }
        let key = Key::new(start.0, ItemType::EXTENT_ITEM, len);
        let what = if is_allocated { "the space is allocated already" } else { "the space is free already" };
        Err(Error::Inconsistent { tree: TreeId::EXTENT, key, what })
    }

    /// Takes the edits for all groups touched since the last call.
    #[inline(never)]
    pub fn take_group_edits(&mut self, free_space_tree: bool) -> GroupEdits {
        let mut edits = GroupEdits::default();
        let sector_size = self.sector_size;
        for start in self.groups.touched() {
            let Some(mut group) = self.groups.get_mut(start).filter(|group| !group.new) else { continue };
            group.touched = false;
            assert!(group.adds_up(), "invariant 9: what {} has in use and free is not all of it", group.start);
            let item = BlockGroupItem { used: group.recorded_used, chunk_objectid: 256, flags: group.flags.0 };
            let key = Key::new(group.start.0, ItemType::BLOCK_GROUP_ITEM, group.length);
            edits.block_groups.put(key, item.to_bytes().to_vec());
            if free_space_tree {
                group.free_space_edits(&mut edits.free_space, sector_size);
            } else {
                group.delta = crate::group::FreeSpaceDelta::default();
            }
        }
        edits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bitmap_holds_the_ranges_it_was_made_of() {
        let mut free = FreeMap::default();
        free.insert(1 << 20, 4096);
        free.insert((1 << 20) + 8192, 12288);
        let bits = bitmap_of(&free, 1 << 20, 8 << 20, 4096);
        assert_eq!(bits.len(), 256);
        assert_eq!(bits[0], 0b1_1101);
        let mut back = FreeMap::default();
        insert_bitmap(&mut back, 1 << 20, &bits, 4096);
        assert_eq!(back, free);
    }

    const GROUP: u64 = 8 << 20;
    const SECTOR: u64 = 4096;

    fn info(start: u64, flags: u32) -> (Key, Vec<u8>) {
        let info = FreeSpaceInfo { extent_count: 1, flags };
        (Key::new(start, ItemType::FREE_SPACE_INFO, GROUP), info.to_bytes().to_vec())
    }

    fn extent(start: u64, len: u64) -> (Key, Vec<u8>) {
        (Key::new(start, ItemType::FREE_SPACE_EXTENT, len), Vec::new())
    }

    fn bitmap(start: u64) -> (Key, Vec<u8>) {
        (Key::new(start, ItemType::FREE_SPACE_BITMAP, GROUP), vec![0; (GROUP / SECTOR / 8) as usize])
    }

    /// Returns the free bytes of four groups in order.
    fn read(items: &[(Key, Vec<u8>)]) -> [Option<u64>; 4] {
        let tree = ubtrfs_tree::testing::tree_of(items);
        let mut reader = FreeSpaceReader::new(&tree);
        [1, 2, 3, 4].map(|number| {
            let group = reader.read_group(Logical(number * GROUP), GROUP, SECTOR).unwrap();
            group.map(|(free, _)| free.total())
        })
    }

    #[test]
    fn groups_behind_one_with_inconsistent_items_are_read() {
        let (sound, next) = ([info(GROUP, 0), extent(GROUP + SECTOR, SECTOR)], 2 * GROUP);
        let last = [info(3 * GROUP, 0), extent(3 * GROUP, GROUP)];
        let others: [&[(Key, Vec<u8>)]; 7] = [
            // No items, or no group of this length.
            &[],
            &[extent(next, SECTOR)],
            // Beyond the group's end; overlapping; two items for one range.
            &[info(next, 0), extent(next + GROUP - SECTOR, 2 * SECTOR)],
            &[
                info(next, 0),
                extent(next, 2 * SECTOR),
                extent(next + SECTOR, SECTOR),
                extent(next + 9 * SECTOR, SECTOR),
            ],
            &[info(next, 0), extent(next, SECTOR), extent(next + SECTOR, SECTOR)],
            // Items that are not of the group's form.
            &[info(next, 0), bitmap(next)],
            &[info(next, FreeSpaceInfo::USING_BITMAPS), extent(next, SECTOR)],
        ];
        for odd in others {
            let items = [&sound, odd, &last].concat();
            assert_eq!(read(&items), [Some(SECTOR), None, Some(GROUP), None], "{odd:?}");
        }
        let bitmaps = [info(next, FreeSpaceInfo::USING_BITMAPS), bitmap(next)];
        assert_eq!(read(&[&sound, &bitmaps[..], &last].concat()), [Some(SECTOR), Some(0), Some(GROUP), None]);
    }
}
