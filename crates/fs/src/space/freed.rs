//! The ranges that commits have freed: since the last discard, and those that are still read.

use std::sync::{Arc, Weak};

use ubtrfs_format::{DeviceId, Generation, Logical};

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

/// A commit that somebody keeps, and what has been allocated since.
pub(super) struct KeptSpace {
    generation: Generation,
    commit: Weak<Committed>,
    /// None of it is in use in the commit, though it may have been freed again.
    allocated: FreeMap,
}

impl KeptSpace {
    pub(super) fn new(commit: &Arc<Committed>) -> Self {
        Self { generation: commit.generation, commit: Arc::downgrade(commit), allocated: FreeMap::default() }
    }

    /// Whether somebody keeps it still.
    pub(super) fn is_read(&self) -> bool {
        self.commit.strong_count() > 0
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    /// Whether these readers are its own.
    pub(super) fn has_readers(&self, readers: &Weak<Committed>) -> bool {
        self.commit.ptr_eq(readers)
    }

    /// Notes a range that is allocated now.
    pub(super) fn add_allocated(&mut self, start: u64, len: u64) {
        self.allocated.remove_any(start, len);
        self.allocated.insert(start, len);
    }

    /// Whether the commit may have some of a range in use: not all of it was allocated since.
    pub(super) fn may_use(&self, start: u64, len: u64) -> bool {
        let mut allocated = self.allocated.overlapping(start, start + len);
        !allocated.next().is_some_and(|(at, size)| at <= start && start + len <= at + size)
    }
}
