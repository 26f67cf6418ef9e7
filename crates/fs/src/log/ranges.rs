//! Sets of directory entry indices for which the log is authoritative.

use std::collections::BTreeMap;

/// Ranges of indices, first to last. At least one index lies between two ranges.
#[derive(Debug, Default)]
pub(super) struct NumberRanges(BTreeMap<u64, u64>);

impl NumberRanges {
    /// Adds an index. Returns the range that it became part of, or `None` if it was in the set
    /// already.
    pub(super) fn insert(&mut self, number: u64) -> Option<(u64, u64)> {
        let (mut first, mut last) = (number, number);
        if let Some((&from, &to)) = self.0.range(..=number).next_back() {
            if to >= number {
                return None;
            }
            if to + 1 == number {
                first = from;
            }
        }
        if let Some(after) = number.checked_add(1)
            && let Some(to) = self.0.remove(&after)
        {
            last = to;
        }
        self.0.insert(first, last);
        Some((first, last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_next_to_each_other_become_one_range() {
        let mut ranges = NumberRanges::default();
        assert_eq!(ranges.insert(5), Some((5, 5)));
        assert_eq!(ranges.insert(7), Some((7, 7)));
        assert_eq!(ranges.insert(6), Some((5, 7)));
        assert_eq!(ranges.insert(6), None);
        assert_eq!(ranges.insert(u64::MAX), Some((u64::MAX, u64::MAX)));
        assert_eq!(ranges.insert(8), Some((5, 8)));
        assert_eq!(ranges.insert(4), Some((4, 8)));
    }
}
