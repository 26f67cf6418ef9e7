//! Checks the log tree, which has what fsyncs wrote since the last commit. The extent tree has
//! neither its blocks nor the data extents that only the log refers to; they must be in space that
//! is otherwise free.

use ubtrfs_format::items::{BlockGroupFlags, Compression, CsumItem, FileExtent, FileExtentKind, InodeFlags, InodeItem};
use ubtrfs_format::{ChecksumType, ItemType, Key, Leaf, Logical, TreeId};

use crate::csums::{Covered, DataCheck};
use crate::extents::Allocated;
use crate::fault::{FaultKind, Location};
use crate::groups::Groups;
use crate::ranges::RangeSet;
use crate::report::{Faults, LogStats};
use crate::walk::Visitor;

/// A data extent that a file of the log uses.
struct Used {
    key: Key,
    start: u64,
    length: u64,
    /// The part whose data is read, if any of it has csums.
    summed: Option<(u64, u64)>,
}

/// The contents of the logs of subvolumes, which are collected one after the other.
#[derive(Default)]
pub(crate) struct Contents {
    pub(crate) stats: LogStats,
    extents: Vec<Used>,
    sums: Vec<(u64, Vec<u8>)>,
    /// The inode whose items are visited: its number, whether it is replayed, and whether its data
    /// has csums.
    inode: Option<(u64, bool, bool)>,
}

impl Contents {
    /// Begins the log of another subvolume.
    pub(crate) fn begin_subvolume(&mut self) {
        self.stats.subvolumes += 1;
        self.inode = None;
    }

    fn item(&mut self, block: Logical, key: Key, data: &[u8], faults: &mut Faults) {
        if key.item_type == ItemType::INODE_ITEM
            && let Ok(item) = InodeItem::parse(data)
        {
            let has_sums = item.flags & InodeFlags::NODATASUM == 0;
            self.inode = Some((key.objectid, item.nlink > 0, has_sums));
            self.stats.inodes += u64::from(item.nlink > 0);
        }
        let (is_live, has_sums) = match self.inode {
            Some((ino, is_live, has_sums)) if ino == key.objectid => (is_live, has_sums),
            _ => (true, true),
        };
        match key.item_type {
            ItemType::DIR_INDEX if is_live => self.stats.entries += 1,
            ItemType::EXTENT_DATA if is_live => self.extent(key, data, has_sums),
            ItemType::EXTENT_CSUM => self.sums.push((key.offset, data.to_vec())),
            ItemType::DIR_LOG_INDEX if data.len() != 8 => {
                let kind = FaultKind::BadItem { reason: "directory range of a wrong length".to_owned() };
                faults.add(kind, Location::item(TreeId::LOG, key).in_block(block));
            }
            _ => {}
        }
    }

    fn extent(&mut self, key: Key, data: &[u8], has_sums: bool) {
        let Ok(extent) = FileExtent::parse(data) else { return };
        let FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, num_bytes, prealloc } = extent.kind else {
            return;
        };
        if disk_bytenr.0 == 0 {
            return;
        }
        let start = disk_bytenr.0;
        let part = if extent.compression == Compression::None {
            (start.saturating_add(offset), start.saturating_add(offset).saturating_add(num_bytes))
        } else {
            (start, start.saturating_add(disk_num_bytes))
        };
        let summed = (has_sums && !prealloc).then_some(part);
        self.extents.push(Used { key, start, length: disk_num_bytes, summed });
        self.stats.extents += 1;
    }

    /// Checks the space: extents must be whole extents of the last commit, or in unused space of
    /// block groups for data; blocks must be in unused space of block groups for metadata.
    pub(crate) fn judge_space(
        &self,
        blocks: &[Logical],
        node_size: u64,
        allocated: &Allocated,
        groups: &Groups,
        faults: &mut Faults,
    ) {
        let mut new: Vec<(u64, u64)> = Vec::new();
        for block in blocks {
            let end = block.plus(node_size).0;
            let fits = groups.holding(block.0, end).is_some_and(|g| g.flags.contains(BlockGroupFlags::METADATA));
            if !fits || allocated.used.len_within(block.0, end) > 0 {
                faults.add(FaultKind::LogOverUsedSpace, Location::at(*block));
            }
            new.push((block.0, end));
        }
        let mut extents: Vec<&Used> = self.extents.iter().collect();
        extents.sort_by_key(|used| (used.start, used.length));
        extents.dedup_by_key(|used| (used.start, used.length));
        for Used { key, start, length, .. } in extents {
            let end = start.saturating_add(*length);
            let known = allocated.data.len_within(*start, end);
            if known == *length {
                continue;
            }
            let fits = groups.holding(*start, end).is_some_and(|g| g.flags.contains(BlockGroupFlags::DATA));
            if !fits || allocated.used.len_within(*start, end) > 0 {
                faults.add(FaultKind::LogOverUsedSpace, Location::item(TreeId::LOG, *key).in_block(Logical(*start)));
            }
            new.push((*start, end));
        }
        new.sort_unstable();
        for pair in new.windows(2) {
            if pair[1].0 < pair[0].1 {
                faults.add(FaultKind::LogOverlapsItself, Location::at(Logical(pair[1].0)));
            }
        }
    }

    /// Checks that all data of the log's files has csums, and that these are right.
    pub(crate) fn judge_data(
        &mut self,
        (checksum, sector_size): (ChecksumType, u32),
        committed: Option<&Covered>,
        mut data: Option<&mut DataCheck<'_>>,
        faults: &mut Faults,
    ) {
        let item = |start: u64, sums| CsumItem::parse(Logical(start), sums, checksum, sector_size).ok();
        let wanted = RangeSet::from_unsorted(self.extents.iter().filter_map(|used| used.summed).collect());
        let logged = self.sums.iter().filter_map(|(start, sums)| item(*start, sums));
        let logged = RangeSet::from_unsorted(logged.map(|item| (item.start().0, item.end().0)).collect());
        if let Some(committed) = committed {
            for (start, end) in wanted.iter() {
                for (start, end) in logged.gaps(start, end) {
                    for (start, end) in committed.ranges.gaps(start, end) {
                        let kind = FaultKind::MissingChecksum { length: end - start };
                        faults.add(kind, Location::tree(TreeId::LOG).in_block(Logical(start)));
                    }
                }
            }
        }
        let (sector, size) = (u64::from(sector_size.max(1)), checksum.size());
        for (start, sums) in &self.sums {
            let Some(whole) = item(*start, sums) else { continue };
            // Only extents of files are checked, since a log may still have csums of extents that
            // were dropped since.
            for (from, to) in wanted.within(whole.start().0, whole.end().0) {
                let position = |address: u64| ((address - start) / sector) as usize * size;
                let Some(part) = sums.get(position(from)..position(to)).and_then(|part| item(from, part)) else {
                    continue;
                };
                self.stats.data_bytes += to - from;
                if let Some(data) = &mut data {
                    data.item(&part, faults);
                }
            }
        }
    }
}

impl Visitor for Contents {
    fn leaf(&mut self, block: Logical, leaf: &Leaf<'_>, faults: &mut Faults) {
        for (key, data) in leaf.iter() {
            self.item(block, key, data, faults);
        }
    }
}
