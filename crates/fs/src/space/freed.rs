//! The ranges that commits have freed since the last discard.

use ubtrfs_format::DeviceId;

use super::free_map::FreeMap;

/// The ranges that were freed since the last look. Some may be in use again by then.
#[derive(Default)]
pub(super) struct Freed {
    /// Whether freed ranges are recorded at all.
    pub(super) wanted: bool,
    pub(super) extents: FreeMap,
    pub(super) vacated: Vec<(DeviceId, u64, u64)>,
}

impl Freed {
    pub(super) fn add_extent(&mut self, start: u64, len: u64) {
        if self.wanted {
            self.extents.remove_any(start, len);
            self.extents.insert(start, len);
        }
    }

    pub(super) fn add_vacated(&mut self, devid: DeviceId, start: u64, len: u64) {
        if self.wanted {
            self.vacated.push((devid, start, len));
        }
    }
}
