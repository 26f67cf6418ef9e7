//! Checks the csum tree, and compares data with it.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_errors::sentence;
use ubtrfs_format::items::CsumItem;
use ubtrfs_format::{ChecksumType, ItemType, Key, Leaf, Logical, TreeId, objectid};
use ubtrfs_volume::Buffer;

use crate::fault::{FaultKind, Location};
use crate::media::Media;
use crate::ranges::RangeSet;
use crate::report::{Faults, Progress};
use crate::walk::Visitor;

/// Whether readers find csums by a key; those of other objects are misplaced.
fn is_csum(key: &Key) -> bool {
    key.item_type == ItemType::EXTENT_CSUM && key.objectid == objectid::EXTENT_CSUM
}

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
        for (key, data) in leaf.iter().filter(|(key, _)| is_csum(key)) {
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
    /// The memory for what is read.
    scratch: Buffer,
}

/// The result of reading one copy of a sector.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Outcome {
    Right,
    /// The csum does not match.
    Wrong,
    Unreadable(String),
    /// It is on a missing device.
    Missed,
}

/// A run of sectors of one copy with the same fault.
#[derive(Debug)]
pub(crate) struct Run {
    start: Logical,
    end: Logical,
    outcome: Outcome,
    /// Whether another copy of each sector is right.
    has_good_copy: bool,
}

impl Run {
    fn report(self, copy: usize, faults: &mut Faults) {
        let (copy, length, has_good_copy) = (copy as u64, self.end.0 - self.start.0, self.has_good_copy);
        let kind = match self.outcome {
            Outcome::Unreadable(reason) => FaultKind::UnreadableData { copy, length, reason, has_good_copy },
            _ => FaultKind::BadData { copy, length, has_good_copy },
        };
        faults.add(kind, Location::at(self.start));
    }
}

/// The most wrong sectors that are remembered.
pub(crate) const MAX_WRONG: usize = 1 << 20;

impl<'a> DataCheck<'a> {
    pub(crate) fn new(media: &'a Media, checksum: ChecksumType, sector_size: u32) -> Self {
        Self {
            media,
            checksum,
            sector_size,
            total: 0,
            done: 0,
            read: 0,
            wrong: BTreeSet::new(),
            runs: BTreeMap::new(),
            progress: None,
            scratch: Buffer::zeroed(BATCH as usize),
        }
    }

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
            let copies = self.media.copies(at).max(1);
            let outcomes: Vec<_> = (0..copies).map(|copy| self.batch(item, at, len, copy, faults)).collect();
            self.judge(at, &outcomes, faults);
            at = at.plus(len);
            self.done = self.done.saturating_add(len);
            if let Some(progress) = self.progress {
                progress.report("data", self.done, self.total.max(self.done));
            }
        }
    }

    /// Reads a copy of some sectors, and returns the outcome for each of them; none if all are
    /// right.
    fn batch(&mut self, item: &CsumItem<'_>, at: Logical, len: u64, copy: usize, faults: &mut Faults) -> Vec<Outcome> {
        let sector = self.sector_size as usize;
        self.read = self.read.saturating_add(len);
        let mut outcomes = Vec::new();
        let Some(data) = self.scratch.get_mut(..len as usize) else { return outcomes };
        let whole = self.media.read_copy(at, copy, data);
        for (index, content) in data.chunks_mut(sector).enumerate() {
            let address = at.plus((index * sector) as u64);
            let mut outcome = Outcome::Right;
            // After a failed batch, each sector is read by itself.
            if whole.is_err() {
                if let Some(missed) = self.media.missed(address, copy, sector as u64) {
                    faults.not_read(missed, sector as u64);
                    self.read = self.read.saturating_sub(sector as u64);
                    outcome = Outcome::Missed;
                } else if let Err(error) = self.media.read_copy(address, copy, content) {
                    outcome = Outcome::Unreadable(sentence(&error));
                }
            }
            if outcome == Outcome::Right && item.get(address).is_some_and(|sum| !self.checksum.matches(content, sum)) {
                outcome = Outcome::Wrong;
            }
            if outcome != Outcome::Right && outcomes.is_empty() {
                outcomes = vec![Outcome::Right; len as usize / sector];
            }
            if let Some(place) = outcomes.get_mut(index) {
                *place = outcome;
            }
        }
        outcomes
    }

    /// Notes the faults of all copies of some sectors.
    fn judge(&mut self, start: Logical, copies: &[Vec<Outcome>], faults: &mut Faults) {
        let sectors = copies.iter().map(Vec::len).max().unwrap_or(0);
        for sector in 0..sectors {
            let of = |copy: &Vec<Outcome>| copy.get(sector).cloned().unwrap_or(Outcome::Right);
            let outcomes: Vec<Outcome> = copies.iter().map(of).collect();
            let has_good_copy = outcomes.contains(&Outcome::Right);
            let at = start.plus(sector as u64 * u64::from(self.sector_size));
            for (copy, outcome) in outcomes.into_iter().enumerate() {
                if !matches!(outcome, Outcome::Right | Outcome::Missed) {
                    self.fault(copy, at, outcome, has_good_copy, faults);
                }
            }
        }
    }

    /// Notes a fault of a sector, and joins it to that of the sector before it if that has the same
    /// fault.
    fn fault(&mut self, copy: usize, at: Logical, outcome: Outcome, has_good_copy: bool, faults: &mut Faults) {
        self.note_wrong(at);
        let end = at.plus(self.sector_size.into());
        match self.runs.get_mut(&copy) {
            Some(run) if run.end == at && run.outcome == outcome && run.has_good_copy == has_good_copy => run.end = end,
            _ => {
                if let Some(ended) = self.runs.insert(copy, Run { start: at, end, outcome, has_good_copy }) {
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
        for (key, data) in leaf.iter().filter(|(key, _)| is_csum(key)) {
            if let Ok(item) = CsumItem::parse(Logical(key.offset), data, self.checksum, self.sector_size) {
                self.item(&item, faults);
            }
        }
    }
}
