//! What is free and may be discarded; and what was freed and has not been. While a range is
//! discarded it is excluded from allocation (invariant 19).

use ubtrfs_format::{DeviceId, Logical};

use crate::free_map::FreeMap;
use crate::group::BlockGroup;
use crate::space::SpaceState;

/// What commits have freed since it was taken, and what nobody gets any more.
#[derive(Default)]
pub(crate) struct Discards {
    /// Whether freed ranges are recorded at all.
    are_wanted: bool,
    /// Of block groups. Some may be in use again.
    extents: FreeMap,
    /// Of devices.
    vacated: Vec<(DeviceId, u64, u64)>,
    /// Excluded ranges that a device may still discard: in no group's free space in this mount.
    excluded_for_good: Vec<(Logical, u64)>,
}

/// Ranges that commits have freed. Some may be in use again.
#[derive(Debug)]
pub struct FreedRanges {
    /// Of block groups: logical address and length.
    pub extents: Vec<(u64, u64)>,
    /// Of devices, where chunks were: physical address and length.
    pub vacated: Vec<(DeviceId, u64, u64)>,
}

impl Discards {
    pub(crate) fn add_extent(&mut self, start: u64, len: u64) {
        if self.are_wanted {
            self.extents.remove_any(start, len);
            self.extents.insert(start, len);
        }
    }

    pub(crate) fn add_vacated(&mut self, devid: DeviceId, start: u64, len: u64) {
        if self.are_wanted {
            self.vacated.push((devid, start, len));
        }
    }
}

impl SpaceState {
    /// Records the ranges that are freed from now on.
    pub fn start_discards(&mut self) {
        self.discards.are_wanted = true;
    }

    /// … no longer.
    pub fn stop_discards(&mut self) {
        let excluded_for_good = std::mem::take(&mut self.discards.excluded_for_good);
        self.discards = Discards { excluded_for_good, ..Discards::default() };
    }

    /// Takes the ranges that were freed since the last call.
    pub fn take_freed(&mut self) -> FreedRanges {
        let extents = std::mem::take(&mut self.discards.extents);
        FreedRanges { extents: extents.iter().collect(), vacated: std::mem::take(&mut self.discards.vacated) }
    }

    /// Nobody gets an excluded range in this mount any more: a device may still discard it.
    pub fn exclude_for_good(&mut self, start: Logical, len: u64) {
        tracing::warn!("{len} bytes at {start} are not used before the next mount: a discard of them has no answer");
        self.discards.excluded_for_good.push((start, len));
    }

    /// Whether a part of a group is excluded so.
    pub fn is_excluded_for_good(&self, start: Logical) -> bool {
        let end = self.groups.get(start).map_or(start.0, BlockGroup::end);
        self.discards.excluded_for_good.iter().any(|(at, _)| (start.0..end).contains(&at.0))
    }

    /// Excludes free space in `start..end`, in pieces of at least `least` bytes, no more than
    /// `most` and than can be spared. Returns the pieces, and where to continue.
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
