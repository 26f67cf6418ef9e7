//! Free space that may be discarded, and freed ranges that were not discarded yet. While a range is
//! discarded it is excluded from allocation (invariant 19).

use ubtrfs_format::Logical;

use crate::freed_ranges::FreedRanges;
use crate::group::BlockGroup;
use crate::space::SpaceState;

impl SpaceState {
    /// Records the ranges that are freed from now on.
    pub fn start_discards(&mut self) {
        self.discards.start();
    }

    /// Records no more freed ranges.
    pub fn stop_discards(&mut self) {
        self.discards.stop();
    }

    /// Takes the ranges that were freed since the last call.
    pub fn take_freed(&mut self) -> FreedRanges {
        self.discards.take_freed()
    }

    /// Keeps an excluded range from being allocated for the rest of this mount, since a device may
    /// still discard it.
    pub fn exclude_for_good(&mut self, start: Logical, len: u64) {
        tracing::warn!("{len} bytes at {start} are not used before the next mount: a discard of them has no answer");
        self.discards.exclude_for_good(start, len);
    }

    /// Returns whether a part of a group is excluded for good.
    pub fn is_excluded_for_good(&self, start: Logical) -> bool {
        let end = self.groups.get(start).map_or(start.0, BlockGroup::end);
        self.discards.excludes_for_good(&(start.0..end))
    }

    /// Excludes free space in `start..end`, in pieces of at least `least` bytes. Excludes at most
    /// `most` bytes in all, and no more than can be spared. Returns the pieces, and where to
    /// continue.
    pub fn exclude_free(&mut self, start: u64, end: u64, least: u64, most: u64) -> (Vec<(u64, u64)>, Option<u64>) {
        let Some(next) = self.groups.first_behind(Logical(start)) else { return (Vec::new(), None) };
        if next.start.0 >= end {
            return (Vec::new(), None);
        }
        let (key, group_end) = (next.start, next.end());
        let mut left = most.min(self.spare(next.flags)) / self.sector_size * self.sector_size;
        let mut taken = Vec::new();
        let mut resume_at = group_end;
        for (at, len) in next.available.overlapping(start, end.min(group_end)) {
            let (from, to) = (at.max(start), (at + len).min(end));
            if to - from < least {
                continue;
            }
            let len = (to - from).min(left);
            if len < least || len == 0 {
                break;
            }
            left -= len;
            taken.push((from, len));
            if left == 0 {
                resume_at = from + len;
                break;
            }
        }
        if let Some(mut group) = self.groups.get_mut(key) {
            for (at, len) in &taken {
                let excluded = group.available.remove(*at, *len);
                assert!(excluded, "invariant 19: {at}+{len} is discarded, and may not be allocated");
            }
        }
        (taken, Some(resume_at))
    }
}
