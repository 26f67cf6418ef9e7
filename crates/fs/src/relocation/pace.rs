//! Limits how fast extents are moved.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ubtrfs_threads::time::Instant;

/// A waiting operation asks this often whether to go on.
const MOMENT: Duration = Duration::from_millis(50);

/// The bytes that a mount has moved, and how many it may move per second.
#[derive(Debug, Default)]
pub(super) struct Rate {
    moved: AtomicU64,
    /// 0 means no limit.
    bytes_per_second: AtomicU64,
}

/// The bytes that an operation may move since it has begun.
pub(crate) struct Pace<'a> {
    rate: &'a Rate,
    begun: Instant,
    from: u64,
}

impl Rate {
    /// Counts bytes that have been moved.
    pub(super) fn count(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Sets how many bytes may be moved per second from now on.
    pub(super) fn limit(&self, bytes_per_second: Option<u64>) {
        self.bytes_per_second.store(bytes_per_second.unwrap_or(0), Ordering::Relaxed);
    }

    /// Returns the most bytes to move at a time: as many as may be moved in a second, so that there
    /// is no long pause after them.
    pub(super) fn step(&self, most: u64) -> u64 {
        match self.bytes_per_second.load(Ordering::Relaxed) {
            0 => most,
            rate => most.min(rate),
        }
    }

    /// Begins an operation.
    pub(super) fn begin(&self) -> Pace<'_> {
        Pace { rate: self, begun: Instant::now(), from: self.moved.load(Ordering::Relaxed) }
    }
}

impl Pace<'_> {
    /// Waits until more may be moved, and returns true; or until `goes_on` returns false, and
    /// returns that.
    pub(super) fn may_go_on(&self, goes_on: &dyn Fn() -> bool) -> bool {
        loop {
            if !goes_on() {
                return false;
            }
            let moved = self.rate.moved.load(Ordering::Relaxed) - self.from;
            let rate = self.rate.bytes_per_second.load(Ordering::Relaxed);
            let micros = (u128::from(moved) * 1_000_000).checked_div(u128::from(rate)).unwrap_or(0);
            let due = Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX));
            let rest = due.saturating_sub(self.begun.elapsed());
            if rest.is_zero() {
                return true;
            }
            ubtrfs_threads::thread::sleep(rest.min(MOMENT));
        }
    }
}
