//! The time of changes.

use std::time::UNIX_EPOCH;

use ubtrfs_format::items::Timespec;

/// Returns the time of a change made now. A clock before 1970 was never set, and counts as 1970.
pub(crate) fn now() -> Timespec {
    let time = ubtrfs_threads::time::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timespec { sec: time.as_secs(), nsec: time.subsec_nanos() }
}
