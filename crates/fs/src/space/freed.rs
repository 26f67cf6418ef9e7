//! What commits have freed since it was discarded last.

use ubtrfs_format::DeviceId;

use super::free_map::FreeMap;

/// What was freed since it was last looked at. Some of it may be in use again by then.
#[derive(Default)]
pub(super) struct Freed {
    /// Whether anybody wants to know.
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
