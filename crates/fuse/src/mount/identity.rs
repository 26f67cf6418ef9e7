//! Finds out which mount is visible at a path.

use crate::caller_file::UNIQUE_ID;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use ubtrfs_mounts::Mounted;

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};

/// Calls statx(2) for the mount that is visible at `path`. This sends no request to the filesystem,
/// so it works without a server.
fn statx(path: &Path, what: StatxFlags) -> Option<Statx> {
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    statx_open(&place, what)
}

fn statx_open(place: impl AsFd, what: StatxFlags) -> Option<Statx> {
    rustix::fs::statx(place, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, what).ok()
}

/// The number of the mount that is visible at `path`. Before Linux 6.8 another mount may get the
/// number when this one has ended.
pub fn of(path: &Path) -> Option<u64> {
    of_open(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?)
}

/// The same number of the mount that something open is on.
pub fn of_open(open: impl AsFd) -> Option<u64> {
    [UNIQUE_ID, StatxFlags::MNT_ID].into_iter().find_map(|kind| {
        let statx = statx_open(&open, kind)?;
        StatxFlags::from_bits_retain(statx.stx_mask).contains(kind).then_some(statx.stx_mnt_id)
    })
}

/// The number by which the table of mounts lists the mount that is visible at `path`. Another mount
/// may get it when this one has ended.
pub fn listed_as(path: &Path) -> Option<u64> {
    statx(path, StatxFlags::MNT_ID).map(|statx| statx.stx_mnt_id)
}

/// Returns whether the table of mounts lists a mount of this number. Unlike a lookup of its path,
/// this does not keep the mount busy for a moment in which nobody can unmount it.
pub fn is_listed(number: u64) -> bool {
    ubtrfs_mounts::all().map_or(true, |all| all.iter().any(|mounted| mounted.number == number))
}

/// The device number of the mounted filesystem, major and minor. The call asks for nothing else,
/// since FUSE tells nothing more about what another user has mounted.
pub fn device_number(path: &Path) -> Option<(u32, u32)> {
    statx(path, StatxFlags::empty()).map(|statx| (statx.stx_dev_major, statx.stx_dev_minor))
}

/// The device number of the filesystem that something open is on.
pub fn device_number_of(open: impl AsFd) -> Option<(u32, u32)> {
    statx_open(open, StatxFlags::empty()).map(|statx| (statx.stx_dev_major, statx.stx_dev_minor))
}

/// What distinguishes a filesystem in the table of mounts.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// Its device number, major and minor.
    pub number: (u32, u32),
    /// Its source, if it is of the type `fuse`, since then any filesystem may get the number next.
    pub source: Option<&'a str>,
}

impl Listed<'_> {
    /// All mount points at which this mount namespace shows the filesystem, the last mounted first.
    pub fn points(&self) -> Vec<PathBuf> {
        self.mounts().map(|mounted| mounted.point).collect()
    }

    /// Returns whether the table lists the filesystem, and it is read-only wherever it is mounted.
    pub fn is_read_only(&self) -> bool {
        self.mounts().next_back().is_some_and(|mounted| mounted.read_only)
    }

    /// The mounts of the filesystem, the last first.
    fn mounts(&self) -> impl DoubleEndedIterator<Item = Mounted> {
        let all = ubtrfs_mounts::all().unwrap_or_default();
        all.into_iter().rev().filter(|mounted| self.is_of(mounted))
    }

    fn is_of(&self, mounted: &Mounted) -> bool {
        let is_fuse = || mounted.kind == "fuse" || mounted.kind.starts_with("fuse.");
        mounted.device == self.number
            && self.source.is_none_or(|source| is_fuse() && mounted.source.as_os_str() == source)
    }
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
        let number = super::device_number("/proc".as_ref()).unwrap();
        let proc = super::Listed { number, source: None };
        assert!(proc.points().contains(&"/proc".into()) && !proc.is_read_only());
        let fuse = super::Listed { number, source: Some("proc") };
        assert!(fuse.points().is_empty(), "its type is another");
    }
}
