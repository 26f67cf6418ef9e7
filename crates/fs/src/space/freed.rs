//! The ranges that commits have freed: since the last discard, and those that are still read.

use std::sync::Weak;

use ubtrfs_format::{DeviceId, Logical};

use super::free_map::FreeMap;
use crate::committed::Committed;

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

/// Extents that a commit freed and that readers of the commit before it may still be reading.
pub(super) struct Pinned {
    pub(super) readers: Weak<Committed>,
    pub(super) extents: Vec<(Logical, u64)>,
    /// Whether they are only those that kept commits have in use.
    pub(super) is_sifted: bool,
}

impl Pinned {
    pub(super) fn extents(&self) -> &[(Logical, u64)] {
        &self.extents
    }
}

/// A commit that somebody keeps, and the space that its trees have in use.
pub(super) struct KeptSpace {
    pub(super) commit: Weak<Committed>,
    pub(super) used: FreeMap,
}
