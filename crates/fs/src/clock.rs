//! The time that changes are stamped with.

use ubtrfs_format::items::Timespec;

/// The time that changes are stamped with.
pub(crate) fn now() -> Timespec {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    Timespec { sec: time.tv_sec as u64, nsec: time.tv_nsec as u32 }
}
