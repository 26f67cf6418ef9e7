//! Which mount is visible at a path.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags};

/// `STATX_MNT_ID_UNIQUE` (since Linux 6.8): a number that no later mount gets.
const UNIQUE_ID: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The identity of the mount that is visible at `path`, by statx(2). It sends no request to the
/// filesystem, so it works without a server.
fn statx(path: &Path, what: StatxFlags) -> Option<Statx> {
    let place = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    statx_open(&place, what)
}

fn statx_open(place: impl AsFd, what: StatxFlags) -> Option<Statx> {
    rustix::fs::statx(place, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, what).ok()
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

/// The same of the filesystem that something open is on.
pub fn device_number_of(open: impl AsFd) -> Option<(u32, u32)> {
    statx_open(open, StatxFlags::MNT_ID).map(|statx| (statx.stx_dev_major, statx.stx_dev_minor))
}

/// All places at which this mount namespace shows the filesystem of this device number, the last
/// mounted first.
pub fn points_of((major, minor): (u32, u32)) -> Vec<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let number = format!("{major}:{minor}");
    let lines = table.split(|byte| *byte == b'\n').rev();
    let points = lines.filter_map(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        (fields.nth(2)? == number.as_bytes()).then_some(())?;
        Some(PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?))))
    });
    points.collect()
}

/// Undoes the table's escapes: a backslash and three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..b'8').contains(digit)));
        match digits {
            Some(digits) if *first == b'\\' => {
                bytes.push(digits.iter().fold(0_u8, |value, digit| value.wrapping_mul(8).wrapping_add(digit - b'0')));
                rest = &after[3..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
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
        assert!(super::points_of(number).contains(&"/proc".into()));
        assert_eq!(super::unescape(b"/mnt/a\\040b\\134"), b"/mnt/a b\\");
    }
}
