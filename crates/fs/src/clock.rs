//! The time that changes are stamped with.

use std::time::UNIX_EPOCH;

use ubtrfs_format::items::Timespec;

/// The time that changes are stamped with. A clock before 1970 was never set.
pub(crate) fn now() -> Timespec {
    let time = ubtrfs_threads::time::wall_clock().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timespec { sec: time.as_secs(), nsec: time.subsec_nanos() }
}
