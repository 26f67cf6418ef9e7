//! Checks the csum tree, and compares data with it.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_errors::sentence;
use ubtrfs_format::items::CsumItem;
use ubtrfs_format::{ChecksumType, ItemType, Leaf, Logical, TreeId};
use ubtrfs_volume::Buffer;

use crate::fault::{FaultKind, Location};
use crate::media::Media;
use crate::ranges::RangeSet;
use crate::report::{Faults, Progress};
use crate::walk::Visitor;

/// The logical addresses that have csums.
pub(crate) struct Covered {
    checksum: ChecksumType,
    sector_size: u32,
    pub(crate) ranges: RangeSet,
    last_end: u64,
}

impl Covered {
    pub(crate) fn new(checksum: ChecksumType, sector_size: u32) -> Self {
        Self { checksum, sector_size, ranges: RangeSet::default(), last_end: 0 }
    }

    /// Checks that csums belong to data extents.
    pub(crate) fn judge(&self, data: &RangeSet, faults: &mut Faults) {
        for (start, end) in self.ranges.iter() {
            for (start, end) in data.gaps(start, end) {
                let kind = FaultKind::ChecksumWithoutExtent { length: end - start };
                faults.add(kind, Location::tree(TreeId::CSUM).in_block(Logical(start)));
            }
        }
    }
}

impl Visitor for Covered {
    fn leaf(&mut self, _: Logical, leaf: &Leaf<'_>, faults: &mut Faults) {
        for (key, data) in leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_CSUM) {
            let Ok(item) = CsumItem::parse(Logical(key.offset), data, self.checksum, self.sector_size) else {
                continue;
            };
            if item.start().0 < self.last_end {
                faults.add(FaultKind::ChecksumsOverlap, Location::item(TreeId::CSUM, key));
            }
            self.last_end = self.last_end.max(item.end().0);
            self.ranges.push(item.start().0, item.end().0);
        }
    }
}

/// How many bytes of data are read at once.
const BATCH: u64 = 1 << 20;

/// Reads all data that has csums, from every copy, and compares it with them.
pub(crate) struct DataCheck<'a> {
    pub(crate) media: &'a Media,
    pub(crate) checksum: ChecksumType,
    pub(crate) sector_size: u32,
    /// How many bytes have csums, for the progress.
    pub(crate) total: u64,
    /// How many bytes with csums have been checked, each counted once.
    pub(crate) done: u64,
    /// How many bytes were read, with each copy counted.
    pub(crate) read: u64,
    /// The addresses of sectors that are wrong or can't be read, up to [`MAX_WRONG`].
    pub(crate) wrong: BTreeSet<u64>,
    /// Faults that may continue with the next sector, by copy.
    pub(crate) runs: BTreeMap<usize, Run>,
    pub(crate) progress: Option<&'a dyn Progress>,
}

/// A run of sectors of one copy with the same fault.
#[derive(Debug)]
pub(crate) struct Run {
    start: Logical,
    end: Logical,
    /// Why they can't be read; `None` if their csums do not match.
    reason: Option<String>,
}

impl Run {
    fn report(self, copy: usize, faults: &mut Faults) {
        let (copy, length) = (copy as u64, self.end.0 - self.start.0);
        let kind = match self.reason {
            Some(reason) => FaultKind::UnreadableData { copy, length, reason },
            None => FaultKind::BadData { copy, length },
        };
        faults.add(kind, Location::at(self.start));
    }
}

/// The most wrong sectors that are remembered.
pub(crate) const MAX_WRONG: usize = 1 << 20;

impl DataCheck<'_> {
    fn note_wrong(&mut self, at: Logical) {
        if self.wrong.len() < MAX_WRONG {
            self.wrong.insert(at.0);
        }
    }

    /// Reads the data of a csum item.
    pub(crate) fn item(&mut self, item: &CsumItem<'_>, faults: &mut Faults) {
        let mut at = item.start();
        while at < item.end() {
            // A csum item may span chunks with different numbers of copies.
            let in_chunk = self.media.chunk_end(at).map_or(u64::MAX, |end| end.saturating_sub(at.0));
            let len = (item.end().0 - at.0).min(BATCH).min(in_chunk.max(self.sector_size.into()));
            for copy in 0..self.media.copies(at).max(1) {
                self.batch(item, at, len, copy, faults);
            }
            at = at.plus(len);
            self.done = self.done.saturating_add(len);
            if let Some(progress) = self.progress {
                progress.report("data", self.done, self.total.max(self.done));
            }
        }
    }

    fn batch(&mut self, item: &CsumItem<'_>, at: Logical, len: u64, copy: usize, faults: &mut Faults) {
        let sector = self.sector_size as usize;
        let mut data = Buffer::zeroed(len as usize);
        self.read = self.read.saturating_add(len);
        let whole = self.media.read_copy(at, copy, &mut data);
        for (index, content) in data.chunks_mut(sector).enumerate() {
            let address = at.plus((index * sector) as u64);
            // After a failed batch, each sector is read by itself.
            if whole.is_err() {
                if let Some(device) = self.media.is_missed(address, copy, sector as u64) {
                    faults.not_read(device, sector as u64);
                    self.read = self.read.saturating_sub(sector as u64);
                    continue;
                }
                if let Err(error) = self.media.read_copy(address, copy, content) {
                    self.fault(copy, address, Some(sentence(&error)), faults);
                    continue;
                }
            }
            if item.get(address).is_some_and(|sum| !self.checksum.matches(content, sum)) {
                self.fault(copy, address, None, faults);
            }
        }
    }

    /// Notes a fault of a sector, and joins it to that of the sector before it if that has the same
    /// fault.
    fn fault(&mut self, copy: usize, at: Logical, reason: Option<String>, faults: &mut Faults) {
        self.note_wrong(at);
        let end = at.plus(self.sector_size.into());
        match self.runs.get_mut(&copy) {
            Some(run) if run.end == at && run.reason == reason => run.end = end,
            _ => {
                if let Some(ended) = self.runs.insert(copy, Run { start: at, end, reason }) {
                    ended.report(copy, faults);
                }
            }
        }
    }

    /// Reports the runs that are left.
    pub(crate) fn finish(&mut self, faults: &mut Faults) {
        for (copy, run) in std::mem::take(&mut self.runs) {
            run.report(copy, faults);
        }
    }
}

impl Visitor for DataCheck<'_> {
    fn leaf(&mut self, _: Logical, leaf: &Leaf<'_>, faults: &mut Faults) {
        for (key, data) in leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_CSUM) {
            if let Ok(item) = CsumItem::parse(Logical(key.offset), data, self.checksum, self.sector_size) {
                self.item(&item, faults);
            }
        }
    }
}
