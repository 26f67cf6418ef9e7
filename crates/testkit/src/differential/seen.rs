//! Reduces an answer of statx(2) to what is the same on any two volumes.

use std::collections::HashMap;

/// Times before this (in 2001) were set by a call, later ones are the present.
pub(super) const SET_BEFORE: i64 = 1_000_000_000;

/// The inodes that a sequence has looked at, numbered in the order in which it met them.
#[derive(Debug, Default)]
pub(super) struct Seen {
    inodes: HashMap<(u32, u32, u64, i64), Inode>,
}

#[derive(Debug)]
struct Inode {
    number: usize,
    modified: (i64, u32),
    changed: (i64, u32),
}

impl Seen {
    /// Returns the line of an answer of statx(2). Of times it says which were set, and which are
    /// new since the last look at the inode. Attributes (immutable, compressed, …) are left out,
    /// since the kernel's FUSE ignores those in a server's answer.
    pub(super) fn stat(&mut self, seen: &libc::statx) -> String {
        // Numbers are reused only after a remount; the time of birth distinguishes inodes
        // nevertheless.
        let key = (seen.stx_dev_major, seen.stx_dev_minor, seen.stx_ino, seen.stx_btime.tv_sec);
        let modified = (seen.stx_mtime.tv_sec, seen.stx_mtime.tv_nsec);
        let changed = (seen.stx_ctime.tv_sec, seen.stx_ctime.tv_nsec);
        let next = self.inodes.len();
        let inode = self.inodes.entry(key).or_insert(Inode { number: next, modified, changed });
        let time = |time: (i64, u32), before: (i64, u32)| match time {
            (seconds, nanoseconds) if seconds < SET_BEFORE => format!("{seconds}.{nanoseconds}"),
            _ if time == before => "same".into(),
            _ => "new".into(),
        };
        let (mtime, ctime) = (time(modified, inode.modified), time(changed, inode.changed));
        (inode.modified, inode.changed) = (modified, changed);
        let atime = (seen.stx_atime.tv_sec, seen.stx_atime.tv_nsec);
        let atime = if atime.0 < SET_BEFORE { format!("{}.{}", atime.0, atime.1) } else { "now".into() };
        format!(
            "i{} {:o} x{} {}:{} size {} rdev {}:{} block {} mask {:x} a {atime} m {mtime} c {ctime} b {}",
            inode.number,
            seen.stx_mode,
            seen.stx_nlink,
            seen.stx_uid,
            seen.stx_gid,
            seen.stx_size,
            seen.stx_rdev_major,
            seen.stx_rdev_minor,
            seen.stx_blksize,
            seen.stx_mask & MASK,
            seen.stx_btime.tv_sec >= SET_BEFORE,
        )
    }
}

/// Everything that stat(2) shows, and the time of birth.
const MASK: u32 = 0xfff;
