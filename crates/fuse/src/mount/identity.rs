//! Which mount is visible at a path.

use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};

/// `STATX_MNT_ID_UNIQUE` (since Linux 6.8): a number that no later mount gets.
const UNIQUE_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The identity of the mount that is visible at `path`, by statx(2). It sends no request to the
/// filesystem, so it works without a server.
fn statx(path: &Path, what: StatxFlags) -> Option<Statx> {
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    rustix::fs::statx(&place, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, what).ok()
}

/// The number of the mount. Before Linux 6.8 another mount may get it when this one has ended.
pub fn of(path: &Path) -> Option<u64> {
    [UNIQUE_ID, StatxFlags::MNT_ID].into_iter().find_map(|kind| {
        let statx = statx(path, kind)?;
        StatxFlags::from_bits_retain(statx.stx_mask).contains(kind).then_some(statx.stx_mnt_id)
    })
}

/// The number by which the table of mounts lists the mount that is visible at `path`. Another mount
/// may get it when this one has ended.
pub fn listed_as(path: &Path) -> Option<u64> {
    statx(path, StatxFlags::MNT_ID).map(|statx| statx.stx_mnt_id)
}

/// Whether the table of mounts lists one by this number. A lookup of its path would keep the mount
/// busy for a moment, in which nobody can unmount it; this does not.
pub fn is_listed(number: u64) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo");
    let beginning = format!("{number} ");
    table.map_or(true, |table| table.lines().any(|line| line.starts_with(&beginning)))
}

/// Whether the table of mounts lists one by this number whose file system is read-only.
pub fn is_listed_read_only(number: u64) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let beginning = format!("{number} ");
    let line = table.lines().find(|line| line.starts_with(&beginning));
    let options = line.and_then(|line| line.split_once(" - ")).and_then(|(_, rest)| rest.rsplit(' ').next());
    options.is_some_and(|options| options.split(',').any(|option| option == "ro"))
}

/// The device number of the mounted filesystem, major and minor.
pub fn device_number(path: &Path) -> Option<(u32, u32)> {
    statx(path, StatxFlags::MNT_ID).map(|statx| (statx.stx_dev_major, statx.stx_dev_minor))
}

#[cfg(test)]
mod tests {
    #[test]
    fn mounts_differ() {
        let root = super::of("/".as_ref()).unwrap();
        assert_eq!(super::of("/".as_ref()), Some(root));
        assert_ne!(super::of("/proc".as_ref()), Some(root));
        assert_eq!(super::of("/does/not/exist".as_ref()), None);
        assert!(super::is_listed(super::listed_as("/proc".as_ref()).unwrap()));
        assert!(!super::is_listed(u64::MAX));
    }
}
