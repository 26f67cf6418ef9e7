//! A set of free byte ranges, merged and ordered, found by address or by size.

use std::collections::{BTreeMap, BTreeSet};

/// Free ranges of a block group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct FreeMap {
    by_start: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    total: u64,
}

impl FreeMap {
    /// Returns how many bytes are free.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the bytes of the largest range.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.by_size.last().map(|(len, _)| *len)
    }

    /// Returns the number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.by_start.len()
    }

    /// Returns the ranges `(start, length)` in order.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (u64, u64)> + '_ {
        self.by_start.iter().map(|(start, len)| (*start, *len))
    }

    /// Returns the ranges that overlap `start..end`, whole.
    pub(crate) fn overlapping(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.by_start.range(..start).next_back().filter(|(at, len)| *at + *len > start).map(|(at, _)| *at);
        self.by_start.range(first.unwrap_or(start)..end).map(|(at, len)| (*at, *len))
    }

    fn put(&mut self, start: u64, len: u64) {
        let is_new = self.by_start.insert(start, len).is_none() && self.by_size.insert((len, start));
        assert!(is_new, "two free ranges begin at {start}");
        self.total += len;
    }

    fn drop_range(&mut self, start: u64, len: u64) {
        let was_there = self.by_start.remove(&start) == Some(len) && self.by_size.remove(&(len, start));
        assert!(was_there, "the free range {start}+{len} is not in both indexes");
        self.total -= len;
    }

    /// Adds a range, and joins it with its neighbours. Returns whether all of it was absent before.
    pub(crate) fn insert(&mut self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len).filter(|_| len > 0) else { return len == 0 };
        if self.overlapping(start, end).next().is_some() {
            return false;
        }
        let (mut from, mut to) = (start, end);
        if let Some((at, size)) = self.by_start.range(..start).next_back().map(|(at, size)| (*at, *size))
            && at + size == start
        {
            self.drop_range(at, size);
            from = at;
        }
        if let Some(size) = self.by_start.get(&end).copied() {
            self.drop_range(end, size);
            to = end + size;
        }
        self.put(from, to - from);
        true
    }

    /// Removes a range if all of it is there, and returns whether it was. Otherwise nothing
    /// changes.
    pub(crate) fn remove(&mut self, start: u64, len: u64) -> bool {
        let Some(end) = start.checked_add(len).filter(|_| len > 0) else { return len == 0 };
        let Some((at, size)) = self.by_start.range(..=start).next_back().map(|(at, size)| (*at, *size)) else {
            return false;
        };
        if at + size < end {
            return false;
        }
        self.drop_range(at, size);
        if at < start {
            self.put(at, start - at);
        }
        if end < at + size {
            self.put(end, at + size - end);
        }
        true
    }

    /// Removes those parts of `start..start+len` that are there.
    pub(crate) fn remove_any(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len);
        let overlaps: Vec<_> = self.overlapping(start, end).collect();
        for (at, size) in overlaps {
            let (from, to) = (at.max(start), (at + size).min(end));
            self.remove(from, to - from);
        }
    }

    /// Returns a place for up to `want` bytes: the first range from `hint` on that holds all of it,
    /// else the first range that does, else the largest range. Returns start and length, both
    /// multiples of `align`.
    pub(crate) fn find(&self, hint: u64, want: u64, align: u64) -> Option<(u64, u64)> {
        const LOOK_AT: usize = 64;
        let fit = |(start, len): (u64, u64)| {
            let from = start.checked_next_multiple_of(align)?;
            let usable = (start + len).saturating_sub(from) / align * align;
            (usable > 0).then(|| (from, usable.min(want)))
        };
        let whole = |range| fit(range).filter(|(_, len)| *len == want);
        if let Some((at, size)) = self.by_start.range(..hint).next_back().map(|(at, size)| (*at, *size))
            && at + size > hint
            && let Some(found) = whole((hint, at + size - hint))
        {
            return Some(found);
        }
        let from_hint = self.by_start.range(hint..).take(LOOK_AT).find_map(|(start, len)| whole((*start, *len)));
        from_hint
            .or_else(|| self.by_size.range((want, 0)..).take(LOOK_AT).find_map(|(len, start)| whole((*start, *len))))
            .or_else(|| self.by_size.iter().rev().take(LOOK_AT).find_map(|(len, start)| fit((*start, *len))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_join_and_split() {
        let mut map = FreeMap::default();
        assert!(map.insert(100, 50));
        assert!(map.insert(200, 50));
        assert!(map.insert(150, 50));
        assert_eq!(map.iter().collect::<Vec<_>>(), [(100, 150)]);
        assert!(!map.insert(120, 1));
        assert!(map.remove(120, 10));
        assert!(!map.remove(125, 10));
        assert_eq!(map.iter().collect::<Vec<_>>(), [(100, 20), (130, 120)]);
        assert_eq!(map.total(), 140);
        map.remove_any(110, 30);
        assert_eq!(map.iter().collect::<Vec<_>>(), [(100, 10), (140, 110)]);
    }

    #[test]
    fn find_prefers_the_hint_then_any_whole_range_then_the_largest() {
        let mut map = FreeMap::default();
        map.insert(4096, 4096);
        map.insert(20480, 16384);
        map.insert(65536, 32768);
        assert_eq!(map.find(65536, 8192, 4096), Some((65536, 8192)));
        assert_eq!(map.find(24576, 8192, 4096), Some((24576, 8192)));
        assert_eq!(map.find(90112, 16384, 4096), Some((20480, 16384)));
        assert_eq!(map.find(0, 1 << 20, 4096), Some((65536, 32768)));
        assert_eq!(map.find(0, 16384, 16384), Some((65536, 16384)));
        assert_eq!(FreeMap::default().find(0, 4096, 4096), None);
    }
}
