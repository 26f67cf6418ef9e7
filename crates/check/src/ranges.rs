//! Sets of byte ranges, built in ascending order.

/// A set of half-open ranges, which are ascending, disjoint, and merged where they touch.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct RangeSet {
    ranges: Vec<(u64, u64)>,
}

impl RangeSet {
    /// Adds `start..end`. Ranges must come in the order of their starts; one that overlaps the last
    /// is merged with it.
    pub(crate) fn push(&mut self, start: u64, end: u64) {
        if end <= start {
            return;
        }
        match self.ranges.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => self.ranges.push((start, end)),
        }
    }

    /// Makes a set of ranges in any order.
    pub(crate) fn from_unsorted(mut ranges: Vec<(u64, u64)>) -> Self {
        ranges.sort_unstable();
        let mut set = Self::default();
        for (start, end) in ranges {
            set.push(start, end);
        }
        set
    }

    /// The parts of the set inside `start..end`.
    pub(crate) fn within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let first = self.ranges.partition_point(|range| range.1 <= start);
        self.ranges
            .get(first..)
            .unwrap_or_default()
            .iter()
            .take_while(move |range| range.0 < end)
            .map(move |range| (range.0.max(start), range.1.min(end)))
    }

    /// The parts of `start..end` that are not in the set.
    pub(crate) fn gaps(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        let mut from = start;
        self.within(start, end).chain(std::iter::once((end, end))).filter_map(move |(used_start, used_end)| {
            let gap = (from, used_start);
            from = used_end;
            (gap.0 < gap.1).then_some(gap)
        })
    }

    /// The number of bytes of the set inside `start..end`.
    pub(crate) fn len_within(&self, start: u64, end: u64) -> u64 {
        self.within(start, end).map(|(start, end)| end - start).sum()
    }

    /// All ranges.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_clipped_and_complemented() {
        let set = RangeSet::from_unsorted(vec![(40, 50), (10, 20), (20, 30), (45, 60), (7, 7)]);
        assert_eq!(set.iter().collect::<Vec<_>>(), [(10, 30), (40, 60)]);
        assert_eq!(set.within(15, 41).collect::<Vec<_>>(), [(15, 30), (40, 41)]);
        assert_eq!(set.gaps(0, 100).collect::<Vec<_>>(), [(0, 10), (30, 40), (60, 100)]);
        assert_eq!(set.gaps(12, 50).collect::<Vec<_>>(), [(30, 40)]);
        assert_eq!(set.gaps(11, 29).count(), 0);
        assert_eq!(set.gaps(70, 80).collect::<Vec<_>>(), [(70, 80)]);
        assert_eq!(set.len_within(0, 100), 40);
    }
}
