//! Checks that the free-space tree has exactly what the extents leave of each block group.

use std::collections::HashSet;

use ubtrfs_format::items::FreeSpaceInfo;
use ubtrfs_format::{ItemType, Key, Leaf, Logical, TreeId};

use crate::fault::{FaultKind, Location};
use crate::groups::{Group, Groups};
use crate::ranges::RangeSet;
use crate::report::Faults;
use crate::walk::Visitor;

/// The tree's free space of the block group that is being read.
struct Current {
    group: Group,
    info: FreeSpaceInfo,
    free: Vec<(u64, u64)>,
}

/// Reads the free-space tree and compares it group by group.
pub(crate) struct FreeSpace<'a> {
    groups: &'a Groups,
    used: &'a RangeSet,
    sector_size: u64,
    current: Option<Current>,
    seen: HashSet<u64>,
    /// Whether part of the tree could not be read.
    gaps: bool,
}

impl<'a> FreeSpace<'a> {
    pub(crate) fn new(groups: &'a Groups, used: &'a RangeSet, sector_size: u32) -> Self {
        Self { groups, used, sector_size: sector_size.into(), current: None, seen: HashSet::new(), gaps: false }
    }

    /// Ends the comparison.
    pub(crate) fn finish(mut self, faults: &mut Faults) {
        self.close(faults);
        if self.gaps {
            faults.not_compared("the unreadable parts of the free-space tree");
            return;
        }
        for group in self.groups.list.iter().filter(|group| !self.seen.contains(&group.start)) {
            faults.add(FaultKind::FreeSpaceInfoMissing, Location::at(Logical(group.start)));
        }
    }

    fn close(&mut self, faults: &mut Faults) {
        let Some(Current { group, info, free }) = self.current.take() else { return };
        let found = RangeSet::from_unsorted(free);
        let place = Location::tree(TreeId::FREE_SPACE).in_block(Logical(group.start));
        let ranges = found.iter().count() as u64;
        if ranges != u64::from(info.extent_count) {
            let kind = FaultKind::FreeSpaceCount { found: info.extent_count.into(), expected: ranges };
            faults.add(kind, place.clone());
        }
        for (start, end) in found.iter() {
            for (start, end) in self.used.within(start, end) {
                let place = Location::tree(TreeId::FREE_SPACE).in_block(Logical(start));
                faults.add(FaultKind::UsedListedFree { length: end - start }, place);
            }
        }
        for (start, end) in self.used.gaps(group.start, group.end()) {
            for (start, end) in found.gaps(start, end) {
                let place = Location::tree(TreeId::FREE_SPACE).in_block(Logical(start));
                faults.add(FaultKind::FreeNotListed { length: end - start }, place);
            }
        }
    }

    fn open(&mut self, key: Key, data: &[u8], faults: &mut Faults) {
        self.close(faults);
        let group = self.groups.starting(key.objectid).filter(|group| group.length == key.offset);
        match (group, FreeSpaceInfo::parse(data)) {
            (Some(group), Ok(info)) => {
                self.seen.insert(group.start);
                self.current = Some(Current { group: *group, info, free: Vec::new() });
            }
            (None, _) => faults.add(FaultKind::FreeSpaceStale, Location::item(TreeId::FREE_SPACE, key)),
            // The item check has reported it.
            (Some(group), Err(_)) => {
                self.seen.insert(group.start);
            }
        }
    }

    fn free(&mut self, key: Key, data: &[u8], faults: &mut Faults) {
        let place = || Location::item(TreeId::FREE_SPACE, key);
        let end = key.objectid.saturating_add(key.offset);
        let Some(current) = self.current.as_mut().filter(|current| key.objectid < current.group.end()) else {
            if self.groups.holding(key.objectid, end).is_none() {
                faults.add(FaultKind::FreeSpaceStale, place());
            } else if !self.gaps {
                faults.add(FaultKind::FreeSpaceOutside, place());
            }
            return;
        };
        if key.objectid < current.group.start || end > current.group.end() {
            faults.add(FaultKind::FreeSpaceOutside, place());
            return;
        }
        let bitmaps = current.info.flags & FreeSpaceInfo::USING_BITMAPS != 0;
        if bitmaps != (key.item_type == ItemType::FREE_SPACE_BITMAP) {
            faults.add(FaultKind::FreeSpaceWrongKind, place());
        }
        if key.item_type == ItemType::FREE_SPACE_EXTENT {
            if current.free.last().is_some_and(|last| key.objectid <= last.1) {
                faults.add(FaultKind::FreeSpaceNotMerged, place());
            }
            current.free.push((key.objectid, end));
            return;
        }
        let sectors = key.offset / self.sector_size;
        for sector in 0..sectors.min(data.len() as u64 * 8) {
            let byte = data.get((sector / 8) as usize).copied().unwrap_or(0);
            if byte >> (sector % 8) & 1 == 1 {
                let start = key.objectid.saturating_add(sector * self.sector_size);
                let end = start.saturating_add(self.sector_size);
                match current.free.last_mut() {
                    Some(last) if last.1 == start => last.1 = end,
                    _ => current.free.push((start, end)),
                }
            }
        }
    }
}

impl Visitor for FreeSpace<'_> {
    fn leaf(&mut self, _: Logical, leaf: &Leaf<'_>, faults: &mut Faults) {
        for (key, data) in leaf.iter() {
            match key.item_type {
                ItemType::FREE_SPACE_INFO => self.open(key, data, faults),
                ItemType::FREE_SPACE_EXTENT | ItemType::FREE_SPACE_BITMAP => self.free(key, data, faults),
                _ => {}
            }
        }
    }

    fn gap(&mut self) {
        self.gaps = true;
        self.current = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ubtrfs_format::items::BlockGroupFlags;
    use ubtrfs_format::{Header, LeafBuilder, Node, Uuid};

    const START: u64 = 1 << 20;
    const LENGTH: u64 = 64 << 12;

    /// The faults in these items of one block group of 64 sectors, of which the sectors 8 to 15 are
    /// used.
    fn faults(items: &[(Key, Vec<u8>)]) -> Vec<FaultKind> {
        let groups =
            Groups { list: vec![Group { start: START, length: LENGTH, used: 8 << 12, flags: BlockGroupFlags::DATA }] };
        let used = RangeSet::from_unsorted(vec![(START + (8 << 12), START + (16 << 12))]);
        let mut block = vec![0; 4096];
        let mut builder = LeafBuilder::new(&mut block);
        for (key, data) in items {
            builder.push(*key, data).unwrap();
        }
        builder.finish(Header {
            fsid: Uuid::NIL,
            bytenr: Logical(4096),
            flags: 0,
            chunk_tree_uuid: Uuid::NIL,
            generation: ubtrfs_format::Generation(1),
            owner: TreeId::FREE_SPACE,
            nritems: 0,
            level: 0,
        });
        let Ok(Node::Leaf(leaf)) = Node::view(&block) else { panic!("no leaf") };
        let mut faults = Faults::new(10);
        let mut check = FreeSpace::new(&groups, &used, 4096);
        check.leaf(Logical(4096), &leaf, &mut faults);
        check.finish(&mut faults);
        faults.report.faults.into_iter().map(|fault| fault.kind).collect()
    }

    fn info(extent_count: u32, flags: u32) -> (Key, Vec<u8>) {
        let key = Key::new(START, ItemType::FREE_SPACE_INFO, LENGTH);
        (key, FreeSpaceInfo { extent_count, flags }.to_bytes().to_vec())
    }

    fn bitmap(first: u64, sectors: u64, bits: &[u8]) -> (Key, Vec<u8>) {
        (Key::new(START + (first << 12), ItemType::FREE_SPACE_BITMAP, sectors << 12), bits.to_vec())
    }

    fn extent(first: u64, sectors: u64) -> (Key, Vec<u8>) {
        (Key::new(START + (first << 12), ItemType::FREE_SPACE_EXTENT, sectors << 12), Vec::new())
    }

    #[test]
    fn bitmaps_and_extents_say_the_same() {
        assert_eq!(faults(&[info(2, 0), extent(0, 8), extent(16, 48)]), []);
        // The second free range continues from one bitmap into the next.
        let two = [info(2, 1), bitmap(0, 32, &[0xff, 0, 0xff, 0xff]), bitmap(32, 32, &[0xff; 4])];
        assert_eq!(faults(&two), []);
    }

    #[test]
    fn each_departure_has_its_name() {
        let one_less = [info(2, 1), bitmap(0, 64, &[0xff, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f])];
        assert_eq!(faults(&one_less), [FaultKind::FreeNotListed { length: 4096 }]);
        let one_more = [info(2, 1), bitmap(0, 64, &[0xff, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff])];
        assert_eq!(faults(&one_more), [FaultKind::UsedListedFree { length: 4096 }]);
        let split = [info(2, 0), extent(0, 8), extent(16, 8), extent(24, 40)];
        assert_eq!(faults(&split), [FaultKind::FreeSpaceNotMerged]);
        let counted = [info(3, 0), extent(0, 8), extent(16, 48)];
        assert_eq!(faults(&counted), [FaultKind::FreeSpaceCount { found: 3, expected: 2 }]);
        let other = [info(2, 1), extent(0, 8), extent(16, 48)];
        assert_eq!(faults(&other), [FaultKind::FreeSpaceWrongKind, FaultKind::FreeSpaceWrongKind]);
        let beyond = [info(2, 0), extent(0, 8), extent(16, 49)];
        assert_eq!(faults(&beyond)[0], FaultKind::FreeSpaceOutside);
        assert_eq!(faults(&[]), [FaultKind::FreeSpaceInfoMissing]);
    }
}
