//! Space by chunks: where new tree blocks may go (invariant 57), and what block groups, device
//! extents and free-space items must say.

use std::collections::BTreeMap;

use ubtrfs_format::items::{BlockGroupFlags, BlockGroupItem, ChunkItem, DevExtent, FreeSpaceInfo, STRIPE_LEN};
use ubtrfs_format::{ItemType, Key, Logical, TreeId, Uuid, objectid};
use ubtrfs_tree::{Block, FreedNode, NodeAllocator, Root};

use crate::error::Result;
use crate::extents::Extent;
use crate::session::Session;

/// Ranges of addresses that neither overlap nor touch, by their starts.
#[derive(Clone, Debug, Default)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds a range.
    pub fn insert(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if start >= end {
            return;
        }
        while let Some((&first, &last)) = self.0.range(..=end).next_back().filter(|(_, last)| **last >= start) {
            self.0.remove(&first);
            (start, end) = (start.min(first), end.max(last));
        }
        self.0.insert(start, end);
    }

    /// Removes a range.
    pub fn remove(&mut self, start: u64, end: u64) {
        while let Some((&first, &last)) = self.0.range(..end).next_back().filter(|(_, last)| **last > start) {
            self.0.remove(&first);
            if first < start {
                self.0.insert(first, start);
            }
            if last > end {
                self.0.insert(end, last);
            }
        }
    }

    /// Returns the ranges in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.0.iter().map(|(start, end)| (*start, *end))
    }

    /// Returns the parts of a range that are in these.
    pub fn within(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let before = self.0.range(..start).next_back();
        let parts = before.into_iter().chain(self.0.range(start..end));
        parts.map(|(first, last)| ((*first).max(start), (*last).min(end))).filter(|(from, to)| from < to).collect()
    }

    /// Returns the parts of a range that are not in any of these.
    pub fn gaps(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = start;
        let before = self.0.range(..start).next_back().map(|(first, last)| (*first, *last));
        let inside = self.0.range(start..end).map(|(first, last)| (*first, *last));
        for (first, last) in before.into_iter().chain(inside) {
            if first > at {
                gaps.push((at, first.min(end)));
            }
            at = at.max(last);
        }
        if at < end {
            gaps.push((at, end));
        }
        gaps
    }
}

/// Returns over how many stripes a chunk's addresses are distributed.
fn raid_of(chunk: &ChunkItem) -> Option<u64> {
    Some(chunk.flags.raid()?.data_stripes(chunk.stripes.len()).max(1))
}

/// Allocates new tree blocks in space that nothing has used.
#[derive(Debug)]
pub struct FreeNodes {
    node_size: u64,
    /// Free space for blocks of the chunk tree, and for all others.
    system: Ranges,
    metadata: Ranges,
    /// What is not written to.
    reserved: Ranges,
    /// Blocks that were allocated, and are still in use.
    pub new: BTreeMap<Logical, (TreeId, u8)>,
    /// Blocks that trees have replaced.
    pub replaced: Vec<FreedNode>,
}

impl FreeNodes {
    /// Finds the space of block groups that no extent uses: neither one of those in `used`, nor one
    /// that an item of the extent tree names.
    pub fn of(session: &Session, used: &Ranges) -> Self {
        let (mut system, mut metadata) = (Ranges::default(), Ranges::default());
        for (start, chunk) in session.volume.chunk_map().all() {
            let is_system = chunk.flags.contains(BlockGroupFlags::SYSTEM);
            if !is_system && !chunk.flags.contains(BlockGroupFlags::METADATA) {
                continue;
            }
            let free = if is_system { &mut system } else { &mut metadata };
            for (from, to) in used.gaps(start.0, start.0 + chunk.length) {
                free.insert(from, to);
            }
            for range in session.volume.chunk_map().superblock_ranges(start) {
                free.remove(range.start.0, range.end.0);
            }
        }
        let node_size = session.geometry.node_size.into();
        let reserved = used.clone();
        Self { node_size, system, metadata, reserved, new: BTreeMap::new(), replaced: Vec::new() }
    }

    fn take(&mut self, is_system: bool) -> Option<Logical> {
        let size = self.node_size;
        let free = if is_system { &mut self.system } else { &mut self.metadata };
        // A block does not cross 64 KiB, so that it is in one stripe.
        let at = free.iter().find_map(|(start, end)| {
            let mut at = start.next_multiple_of(size.min(STRIPE_LEN));
            if at / STRIPE_LEN != (at + size - 1) / STRIPE_LEN {
                at = at.next_multiple_of(STRIPE_LEN);
            }
            (at + size <= end).then_some(at)
        })?;
        free.remove(at, at + size);
        assert!(
            self.reserved.within(at, at + size).is_empty(),
            "invariant 57: a repair would write to {at}, which the volume uses"
        );
        Some(Logical(at))
    }
}

impl NodeAllocator for FreeNodes {
    fn allocate(&mut self, owner: TreeId, level: u8) -> ubtrfs_tree::Result<Logical> {
        let at = self.take(owner == TreeId::CHUNK).ok_or_else(|| {
            ubtrfs_tree::Error::allocator("no space is left in which new tree blocks could be written")
        })?;
        self.new.insert(at, (owner, level));
        Ok(at)
    }

    fn free(&mut self, node: FreedNode) -> ubtrfs_tree::Result<()> {
        if self.new.remove(&node.bytenr).is_some() {
            let free = if node.tree == TreeId::CHUNK { &mut self.system } else { &mut self.metadata };
            free.insert(node.bytenr.0, node.bytenr.0 + self.node_size);
        } else {
            self.replaced.push(node);
        }
        Ok(())
    }

    fn unshare(&mut self, _: TreeId, _: &Block) -> ubtrfs_tree::Result<()> {
        // All references are derived again from what uses what.
        Ok(())
    }
}

/// Adds the ranges that the items of the extent tree name to those that are used, so that nothing
/// is written there, whether or not anything uses it.
pub fn add_named(session: &Session, used: &mut Ranges) {
    let Some(root) = session.root_of(TreeId::EXTENT) else { return };
    for item in session.tree(root, true).range(Key::MIN..=Key::MAX) {
        let Ok(item) = item else { return };
        let (start, length) = match item.key.item_type {
            ItemType::EXTENT_ITEM => (item.key.objectid, item.key.offset),
            ItemType::METADATA_ITEM => (item.key.objectid, session.geometry.node_size.into()),
            _ => continue,
        };
        used.insert(start, start.saturating_add(length));
    }
}

/// A block group as its chunk and the extents in it say.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    pub start: Logical,
    pub length: u64,
    pub flags: BlockGroupFlags,
    pub used: u64,
}

/// Returns the block groups of all chunks, with the use that the extents make of them.
pub fn groups(session: &Session, extents: &[Extent]) -> Vec<Group> {
    let chunks = session.volume.chunk_map().all().into_iter();
    let mut groups: Vec<_> =
        chunks.map(|(start, chunk)| Group { start, length: chunk.length, flags: chunk.flags, used: 0 }).collect();
    groups.sort_by_key(|group| group.start);
    add_use(&mut groups, extents.iter());
    groups
}

/// Adds the use that more extents make of block groups, which are in the order of their addresses.
pub fn add_use<'a>(groups: &mut [Group], extents: impl Iterator<Item = &'a Extent>) {
    for extent in extents {
        let index = groups.partition_point(|group| group.start <= extent.start);
        if let Some(group) = index.checked_sub(1).and_then(|index| groups.get_mut(index)) {
            group.used = group.used.saturating_add(extent.length);
        }
    }
}

/// Returns the items of block groups in the tree under this root.
pub fn group_items(session: &Session, root: Root) -> Result<BTreeMap<Key, Vec<u8>>> {
    let mut present: BTreeMap<Key, Vec<u8>> = BTreeMap::new();
    for item in session.tree(root, false).range(Key::MIN..=Key::MAX) {
        let item = item?;
        if item.key.item_type == ItemType::BLOCK_GROUP_ITEM {
            present.insert(item.key, item.to_vec());
        }
    }
    Ok(present)
}

/// Returns the items that block groups must have.
pub fn group_items_of(groups: &[Group]) -> BTreeMap<Key, Vec<u8>> {
    let item = |group: &Group| {
        let (used, flags) = (group.used, group.flags.0);
        let item = BlockGroupItem { used, chunk_objectid: objectid::FIRST_CHUNK_TREE, flags };
        (Key::new(group.start.0, ItemType::BLOCK_GROUP_ITEM, group.length), item.to_bytes().to_vec())
    };
    groups.iter().map(item).collect()
}

/// Returns the ranges that extents take.
pub fn used_by<'a>(extents: impl Iterator<Item = &'a Extent>) -> Ranges {
    let mut used = Ranges::default();
    extents.for_each(|extent| used.insert(extent.start.0, extent.end()));
    used
}

/// Returns the items of the free-space tree, in which each free range is an item.
pub fn free_space_items(groups: &[Group], used: &Ranges) -> BTreeMap<Key, Vec<u8>> {
    let mut items = BTreeMap::new();
    for group in groups {
        let gaps = used.gaps(group.start.0, group.start.0 + group.length);
        let info = FreeSpaceInfo { extent_count: gaps.len() as u32, flags: 0 };
        items.insert(Key::new(group.start.0, ItemType::FREE_SPACE_INFO, group.length), info.to_bytes().to_vec());
        let free = |(from, to): (u64, u64)| (Key::new(from, ItemType::FREE_SPACE_EXTENT, to - from), Vec::new());
        items.extend(gaps.into_iter().map(free));
    }
    items
}

/// Returns the device extents that the chunks say there are, with the bytes of their items.
pub fn device_extents(session: &Session) -> BTreeMap<Key, Vec<u8>> {
    let mut items = BTreeMap::new();
    let chunk_tree_uuid: Uuid = session.geometry.chunk_tree_uuid;
    for (start, chunk) in session.volume.chunk_map().all() {
        let Some(stripes) = raid_of(&chunk) else { continue };
        for stripe in &chunk.stripes {
            let extent = DevExtent {
                chunk_tree: TreeId::CHUNK.0,
                chunk_objectid: objectid::FIRST_CHUNK_TREE,
                chunk_offset: start,
                length: chunk.length / stripes,
                chunk_tree_uuid,
            };
            let key = Key::new(stripe.devid.0, ItemType::DEV_EXTENT, stripe.offset.0);
            items.insert(key, extent.to_bytes().to_vec());
        }
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_are_cut() {
        let mut ranges = Ranges::default();
        for (start, end) in [(10, 20), (30, 40), (20, 25), (5, 5)] {
            ranges.insert(start, end);
        }
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(10, 25), (30, 40)]);
        assert_eq!(ranges.gaps(0, 50), [(0, 10), (25, 30), (40, 50)]);
        assert_eq!(ranges.gaps(12, 32), [(25, 30)]);
        ranges.remove(15, 35);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(10, 15), (35, 40)]);
        ranges.insert(0, 100);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(0, 100)]);
        assert_eq!(ranges.gaps(20, 30), []);
    }
}
