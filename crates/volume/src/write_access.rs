//! Whether the volume may be written, and what is being written to it.

use std::sync::Arc;
use std::time::Duration;

use ubtrfs_threads::atomic::{AtomicBool, Ordering};

use crate::in_flight::InFlight;

/// Whether writes are refused, and the writes and repairs that are under way.
#[derive(Debug)]
pub(crate) struct WriteAccess {
    read_only: AtomicBool,
    /// The volume has been opened. Before that nothing is repaired, so that nothing is written
    /// before the caller has seen what the volume is.
    is_open: bool,
    /// Writes that have been submitted and not yet waited for.
    in_flight: Arc<InFlight>,
}

impl WriteAccess {
    pub(crate) fn new(read_only: bool, is_open: bool) -> Self {
        Self { read_only: AtomicBool::new(read_only), is_open, in_flight: Arc::default() }
    }

    /// Returns whether writes are refused.
    pub(crate) fn is_read_only(&self) -> bool {
        self.read_only.load(Ordering::Acquire)
    }

    /// Refuses all writes from now on. There is no way back.
    pub(crate) fn set_read_only(&self) {
        self.read_only.store(true, Ordering::Release);
    }

    /// Returns whether damaged copies may be overwritten.
    pub(crate) fn may_repair(&self) -> bool {
        self.is_open && !self.is_read_only()
    }

    /// Returns the writes that are under way, which also tell one volume from another.
    pub(crate) fn in_flight(&self) -> &Arc<InFlight> {
        &self.in_flight
    }

    /// Refuses all writes from now on, and waits until those that are under way have ended, but not
    /// longer than `limit`. Returns whether they have ended.
    pub(crate) fn end_within(&self, limit: Duration) -> bool {
        self.set_read_only();
        self.in_flight.is_empty_within(limit)
    }
}
