//! The ranges that commits have freed since the last discard.

use std::ops::Range;

use ubtrfs_format::{DeviceId, Logical};

use crate::free_map::FreeMap;

/// The ranges that commits have freed since they were last taken, and those that are never
/// allocated again in this mount.
#[derive(Default)]
pub(crate) struct Discards {
    /// Whether freed ranges are recorded at all.
    are_wanted: bool,
    /// Ranges of block groups. Some may be in use again.
    extents: FreeMap,
    /// Ranges of devices.
    vacated: Vec<(DeviceId, u64, u64)>,
    /// Excluded ranges that a device may still discard. They are not in any group's free space in
    /// this mount.
    excluded_for_good: Vec<(Logical, u64)>,
}

/// Ranges that commits have freed. Some may be in use again.
#[derive(Debug)]
pub struct FreedRanges {
    /// In block groups: logical address and length.
    pub extents: Vec<(u64, u64)>,
    /// On devices, where chunks were: physical address and length.
    pub vacated: Vec<(DeviceId, u64, u64)>,
}

impl Discards {
    /// Records the ranges that are freed from now on.
    pub(crate) fn start(&mut self) {
        self.are_wanted = true;
    }

    /// Records no more freed ranges.
    pub(crate) fn stop(&mut self) {
        let excluded_for_good = std::mem::take(&mut self.excluded_for_good);
        *self = Self { excluded_for_good, ..Self::default() };
    }

    /// Takes the ranges that were freed since the last call.
    pub(crate) fn take_freed(&mut self) -> FreedRanges {
        let extents = std::mem::take(&mut self.extents);
        FreedRanges { extents: extents.iter().collect(), vacated: std::mem::take(&mut self.vacated) }
    }

    pub(crate) fn exclude_for_good(&mut self, start: Logical, len: u64) {
        self.excluded_for_good.push((start, len));
    }

    /// Returns whether a range that is excluded for good begins in this range of addresses.
    pub(crate) fn excludes_for_good(&self, range: &Range<u64>) -> bool {
        self.excluded_for_good.iter().any(|(at, _)| range.contains(&at.0))
    }

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
