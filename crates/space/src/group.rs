//! A block group: the space that may be allocated in it, and what the volume's trees will record of
//! it. The records follow only the edits of a commit (invariant 9). A range that is already
//! recorded as allocated is not recorded so again, nor one as free that is free (invariant 10).

use std::collections::BTreeSet;

use ubtrfs_format::Logical;
use ubtrfs_format::items::BlockGroupFlags;

use crate::free_map::FreeMap;

/// How the free-space tree stores a group's free ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FreeSpaceForm {
    /// An item per range.
    Extents,
    /// Bitmap items.
    Bitmaps,
}

/// The changes of a group's recorded map since it was last written.
#[derive(Clone, Debug, Default)]
pub(crate) struct FreeSpaceDelta {
    /// Ranges whose items have to be deleted.
    pub(crate) gone: BTreeSet<(u64, u64)>,
    /// Ranges that need new items.
    pub(crate) come: BTreeSet<(u64, u64)>,
}

impl FreeSpaceDelta {
    fn remove(&mut self, range: (u64, u64)) {
        if !self.come.remove(&range) {
            let is_new = self.gone.insert(range);
            assert!(is_new, "invariant 9: the free range {range:?} goes twice");
        }
    }

    fn add(&mut self, range: (u64, u64)) {
        if !self.gone.remove(&range) {
            let is_new = self.come.insert(range);
            assert!(is_new, "invariant 9: the free range {range:?} comes twice");
        }
    }
}

/// Whether space in a group may be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Giving {
    /// It may be allocated.
    Open,
    /// It is never allocated: the group is on devices of a seed, to which nothing is written.
    Closed,
}

/// How far the emptying of a group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Emptying {
    /// Its content is being moved.
    UnderWay,
    /// Its content is being moved, but an operation waits for its space: the emptying is to stop.
    AskedBack,
    /// Nothing is left in it. It is removed when the last readers of its content have ended.
    Ended,
}

/// A block group.
#[derive(Clone, Debug)]
pub(crate) struct BlockGroup {
    pub(crate) start: Logical,
    pub(crate) length: u64,
    pub(crate) flags: BlockGroupFlags,
    /// The space that may be allocated: neither allocated nor pinned nor under a superblock copy.
    pub(crate) available: FreeMap,
    /// The complement of the allocated extents, after the edits of the commit in progress (or the
    /// last one).
    pub(crate) recorded_free: FreeMap,
    /// Bytes allocated, after the same edits.
    pub(crate) recorded_used: u64,
    /// Whether block group item and free-space items must be written.
    pub(crate) touched: bool,
    pub(crate) delta: FreeSpaceDelta,
    pub(crate) form: FreeSpaceForm,
    /// All of the group's free-space items must be rewritten.
    pub(crate) rewrite_free_space: bool,
    /// Whether space in it may be allocated at all.
    pub(crate) giving: Giving,
    /// The chunk is not in the trees yet; the next commit adds it.
    pub(crate) new: bool,
    /// How many commits ago the group was last not empty.
    pub(crate) idle_commits: u32,
    /// Where the last allocation ended.
    pub(crate) cursor: u64,
    /// For a group that is being emptied or never allocated from: the space that would be
    /// available. `available` is empty then, so nothing is allocated there.
    pub(crate) held: Option<FreeMap>,
    /// How far its emptying is, if it is being emptied.
    pub(crate) emptying: Option<Emptying>,
}

impl BlockGroup {
    /// A group that is entirely free.
    pub(crate) fn empty(start: Logical, length: u64, flags: BlockGroupFlags) -> Self {
        let mut all = FreeMap::default();
        all.insert(start.0, length);
        Self {
            start,
            length,
            flags,
            available: all.clone(),
            recorded_free: all,
            recorded_used: 0,
            touched: false,
            delta: FreeSpaceDelta::default(),
            form: FreeSpaceForm::Extents,
            rewrite_free_space: false,
            giving: Giving::Open,
            new: false,
            idle_commits: 0,
            cursor: start.0,
            held: None,
            emptying: None,
        }
    }

    /// Allocates an available range.
    pub(crate) fn allocate(&mut self, start: u64, len: u64) {
        assert!(
            self.is_free(Logical(start), len) == Some(true),
            "invariant 3: {start}+{len} is given out, and the trees have it"
        );
        assert!(self.held.is_none(), "invariant 36: {start}+{len} is given out, and the group is being emptied");
        let taken = self.available.remove(start, len);
        assert!(taken, "invariant 3: {start}+{len} is given out, and is not available");
    }

    /// Returns whether it can be closed for emptying: it is not closed yet, or it is always closed.
    pub(crate) fn may_be_closed(&self) -> bool {
        !self.new && (self.held.is_none() || self.giving == Giving::Closed)
    }

    /// Ends its emptying, and makes its space available as before.
    pub(crate) fn open_again(&mut self) {
        self.emptying = None;
        if self.giving == Giving::Open
            && let Some(held) = self.held.take()
        {
            let lost = self.available.total();
            assert!(lost == 0, "invariant 43: {lost} bytes of a group that is emptied were given back to nobody");
            self.available = held;
        }
    }

    /// Returns whether its space is unavailable only because it is being emptied.
    pub(crate) fn is_held_by_emptying(&self) -> bool {
        self.giving == Giving::Open && self.emptying.is_some()
    }

    /// Returns whether what is in it may be overwritten.
    pub(crate) fn may_be_overwritten(&self) -> bool {
        self.held.is_none()
    }

    /// Frees a range that was allocated.
    pub(crate) fn give_back(&mut self, start: u64, len: u64) -> bool {
        self.held.as_mut().unwrap_or(&mut self.available).insert(start, len)
    }

    /// Returns the space that is neither allocated nor pinned, whether it may be allocated or not.
    pub(crate) fn unused(&self) -> &FreeMap {
        self.held.as_ref().unwrap_or(&self.available)
    }

    /// Returns whether the recorded used and free bytes add up to the group's length.
    pub(crate) fn adds_up(&self) -> bool {
        self.recorded_used + self.recorded_free.total() == self.length
    }

    /// Returns the address after the group's last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start.0 + self.length
    }

    /// Returns whether all of a range is free according to the trees, or all of it allocated, or
    /// `None` if neither is so.
    pub(crate) fn is_free(&self, start: Logical, len: u64) -> Option<bool> {
        let end = start.0.checked_add(len).filter(|end| *end <= self.end())?;
        match self.recorded_free.overlapping(start.0, end).next() {
            None => Some(false),
            Some((at, size)) => (at <= start.0 && at + size >= end).then_some(true),
        }
    }

    /// Records in the recorded map that a range is now allocated. False if it was already.
    pub(crate) fn record_allocated(&mut self, start: Logical, len: u64) -> bool {
        let Some(end) = start.0.checked_add(len) else { return false };
        let before: Vec<_> = self.recorded_free.overlapping(start.0, end).collect();
        if !self.recorded_free.remove(start.0, len) {
            return false;
        }
        for (at, size) in before {
            self.delta.remove((at, size));
            if at < start.0 {
                self.delta.add((at, start.0 - at));
            }
            if end < at + size {
                self.delta.add((end, at + size - end));
            }
        }
        self.recorded_used += len;
        self.touched = true;
        true
    }

    /// Records in the recorded map that a range is no longer allocated. False if it was not.
    pub(crate) fn record_freed(&mut self, start: Logical, len: u64) -> bool {
        let Some(end) = start.0.checked_add(len).filter(|end| *end <= self.end()) else { return false };
        let neighbours: Vec<_> = self
            .recorded_free
            .overlapping(start.0.saturating_sub(1), end.saturating_add(1))
            .filter(|(at, size)| at + size == start.0 || *at == end)
            .collect();
        if !self.recorded_free.insert(start.0, len) {
            return false;
        }
        let (mut from, mut to) = (start.0, end);
        for (at, size) in neighbours {
            self.delta.remove((at, size));
            from = from.min(at);
            to = to.max(at + size);
        }
        self.delta.add((from, to - from));
        self.recorded_used -= len;
        self.touched = true;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of invariant 10: a range that is recorded twice is refused.
    #[test]
    fn the_delta_is_the_difference_of_the_maps() {
        let mut group = BlockGroup::empty(Logical(1 << 20), 1 << 20, BlockGroupFlags::DATA);
        let mib = 1 << 20;
        assert!(group.record_allocated(Logical(mib + 4096), 8192));
        assert!(!group.record_allocated(Logical(mib + 8192), 4096), "invariant 10: it is allocated already");
        assert!(!group.record_freed(Logical(mib + 16384), 4096), "invariant 10: it is free already");
        assert_eq!(group.delta.gone.iter().copied().collect::<Vec<_>>(), [(mib, mib)]);
        assert_eq!(group.delta.come.iter().copied().collect::<Vec<_>>(), [(mib, 4096), (mib + 12288, mib - 12288)]);
        assert!(group.record_freed(Logical(mib + 4096), 8192));
        assert!(group.delta.gone.is_empty() && group.delta.come.is_empty());
        assert_eq!(group.recorded_used, 0);
    }

    proptest::proptest! {
        /// Of invariant 9: the recorded edits produce the content of the free-space tree.
        #[test]
        fn items_edited_by_the_delta_are_the_complement_of_the_allocated_ranges(
            steps in proptest::collection::vec((proptest::bool::ANY, 0..64_u64, 1..9_u64, 0..4_u8), 1..80),
        ) {
            const SECTOR: u64 = 4096;
            let start = 1_u64 << 20;
            let length = 64 * SECTOR;
            let mut group = BlockGroup::empty(Logical(start), length, BlockGroupFlags::DATA);
            let mut items: BTreeSet<(u64, u64)> = [(start, length)].into();
            let mut allocated = [false; 64];
            for (allocate, first, count, flush) in steps {
                let count = count.min(64 - first);
                let range = first as usize..(first + count) as usize;
                let fits = allocated[range.clone()].iter().all(|taken| *taken != allocate);
                let (at, len) = (Logical(start + first * SECTOR), count * SECTOR);
                let done = if allocate { group.record_allocated(at, len) } else { group.record_freed(at, len) };
                proptest::prop_assert_eq!(done, fits);
                if fits {
                    allocated[range].fill(allocate);
                }
                if flush == 0 {
                    let delta = std::mem::take(&mut group.delta);
                    for gone in delta.gone {
                        proptest::prop_assert!(items.remove(&gone));
                    }
                    for come in delta.come {
                        proptest::prop_assert!(items.insert(come));
                    }
                    proptest::prop_assert_eq!(items.iter().copied().collect::<Vec<_>>(), group.recorded_free.iter().collect::<Vec<_>>());
                }
            }
            let used = allocated.iter().filter(|taken| **taken).count() as u64 * SECTOR;
            proptest::prop_assert_eq!(group.recorded_used, used);
            proptest::prop_assert_eq!(group.recorded_free.total(), length - used);
        }
    }
}
