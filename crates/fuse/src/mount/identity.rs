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
    of_open(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?)
}

/// The same of the mount that something open is on.
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

/// Whether the table of mounts lists one by this number. A lookup of its path would keep the mount
/// busy for a moment, in which nobody can unmount it; this does not.
pub fn is_listed(number: u64) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo");
    let beginning = format!("{number} ");
    table.map_or(true, |table| table.lines().any(|line| line.starts_with(&beginning)))
}

/// The device number of the mounted filesystem, major and minor. Nothing else is asked for: of what
/// another user has mounted, FUSE tells nobody more.
pub fn device_number(path: &Path) -> Option<(u32, u32)> {
    statx(path, StatxFlags::empty()).map(|statx| (statx.stx_dev_major, statx.stx_dev_minor))
}

/// The same of the filesystem that something open is on.
pub fn device_number_of(open: impl AsFd) -> Option<(u32, u32)> {
    statx_open(open, StatxFlags::empty()).map(|statx| (statx.stx_dev_major, statx.stx_dev_minor))
}

/// What distinguishes a filesystem in the table of mounts.
#[derive(Clone, Copy, Debug)]
pub struct Listed<'a> {
    /// Its device number, major and minor.
    pub number: (u32, u32),
    /// Its source, if it is of the type `fuse`: then any filesystem may get the number next.
    pub source: Option<&'a str>,
}

impl Listed<'_> {
    /// All places at which this mount namespace shows it, the last mounted first.
    pub fn points(&self) -> Vec<PathBuf> {
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let lines = table.split(|byte| *byte == b'\n').rev().filter(|line| self.is_of(line));
        let point = |line: &[u8]| Some(PathBuf::from(OsString::from_vec(unescape(fields(line).nth(4)?))));
        lines.filter_map(point).collect()
    }

    /// Whether it is shown, and is read-only wherever it is mounted.
    pub fn is_read_only(&self) -> bool {
        let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
        let line = table.split(|byte| *byte == b'\n').find(|line| self.is_of(line));
        let options = line.and_then(|line| fields(line).last());
        options.is_some_and(|options| options.split(|byte| *byte == b',').any(|option| option == b"ro"))
    }

    fn is_of(&self, line: &[u8]) -> bool {
        let (major, minor) = self.number;
        if fields(line).nth(2) != Some(format!("{major}:{minor}").as_bytes()) {
            return false;
        }
        let Some(source) = self.source else { return true };
        let mut rest = fields(line).skip_while(|field| *field != b"-").skip(1);
        rest.next().is_some_and(|kind| kind == b"fuse" || kind.starts_with(b"fuse."))
            && rest.next().is_some_and(|shown| unescape(shown) == source.as_bytes())
    }
}

fn fields(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| *byte == b' ')
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
        let proc = super::Listed { number, source: None };
        assert!(proc.points().contains(&"/proc".into()) && !proc.is_read_only());
        let fuse = super::Listed { number, source: Some("proc") };
        assert!(fuse.points().is_empty(), "its type is another");
        assert_eq!(super::unescape(b"/mnt/a\\040b\\134"), b"/mnt/a b\\");
    }
}
