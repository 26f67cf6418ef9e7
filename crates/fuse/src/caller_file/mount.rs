//! The mount through which a caller has a file open.
//!
//! FUSE tells a server which process asks for an ioctl, but not through which mount, although a
//! bind mount may be read-only or show other ids. Where the caller's descriptor can't be seen, all
//! its descriptors of the file count; where these can't be seen, all mounts of the filesystem that
//! the caller sees count. What any of them forbids is forbidden (invariant 40).

use std::fs;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};

use super::id_map::IdMaps;
use super::{arguments, statmount};
use ubtrfs_mounts::Mounted;

/// What a mount allows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallerMount {
    /// Nothing may be changed through it.
    pub read_only: bool,
    /// How it shows ids.
    pub ids: IdMaps,
}

/// The file and the ioctl that a mount is looked up for.
pub struct Asked<'a> {
    /// The caller's thread.
    pub pid: u32,
    /// The ioctl's number.
    pub command: u32,
    /// The device number of the filesystem, major and minor.
    pub device: (u32, u32),
    /// Returns whether the file has this inode number.
    pub is_file: &'a dyn Fn(u64) -> bool,
}

/// The mount through which a caller has the file open on which it calls an ioctl. `None` if that
/// can't be found out, or if several mounts are possible that show ids differently.
pub fn mount_of(asked: &Asked<'_>) -> Option<CallerMount> {
    let found = match descriptors(asked) {
        Some(open) => open.into_iter().map(|open| mount_of_open(asked, &open)).collect::<Option<Vec<_>>>()?,
        None => all_mounts(asked)?,
    };
    let ids = found.first()?.ids.clone();
    let read_only = found.iter().any(|mount| mount.read_only);
    found.iter().all(|mount| mount.ids == ids).then_some(CallerMount { read_only, ids })
}

/// The descriptors of the file that the caller may have meant, each opened again by this process
/// with `O_PATH`, which sends the filesystem no request and stays on the same mount. `None` if the
/// caller's descriptors can't be seen.
fn descriptors(asked: &Asked<'_>) -> Option<Vec<OwnedFd>> {
    let open = |number: &str| -> Option<OwnedFd> {
        let link = format!("/proc/{}/fd/{number}", asked.pid);
        let open = rustix::fs::openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = rustix::fs::statx(&open, "", flags, StatxFlags::INO).ok()?;
        let is_file = (found.stx_dev_major, found.stx_dev_minor) == asked.device && (asked.is_file)(found.stx_ino);
        is_file.then_some(open)
    };
    let line = fs::read_to_string(format!("/proc/{}/syscall", asked.pid)).unwrap_or_default();
    if let Some(number) = descriptor_in(&line, asked.command)
        && let Some(open) = open(&number.to_string())
    {
        return Some(vec![open]);
    }
    let all = fs::read_dir(format!("/proc/{}/fd", asked.pid)).ok()?;
    Some(all.flatten().filter_map(|entry| open(entry.file_name().to_str()?)).collect())
}

/// The descriptor of an ioctl, from the line in which `/proc` shows the system call.
fn descriptor_in(line: &str, command: u32) -> Option<u32> {
    let mut arguments = arguments(line);
    let (descriptor, asked) = (arguments.next()?, arguments.next()?);
    // The kernel takes 32 bits of both.
    (asked as u32 == command).then_some(descriptor as u32)
}

/// What the mount of an open file allows.
fn mount_of_open(asked: &Asked<'_>, open: &OwnedFd) -> Option<CallerMount> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let number = rustix::fs::statx(open, "", flags, StatxFlags::MNT_ID).ok()?.stx_mnt_id;
    let is_it = |mount: &Mounted| mount.number == number;
    // A caller that has changed its root directory does not see mounts outside it.
    let listed = [asked.pid.to_string(), "self".to_owned()]
        .iter()
        .find_map(|process| ubtrfs_mounts::seen_by(process).ok()?.into_iter().find(is_it))?;
    let ids = if is_idmapped(&listed) { statmount::id_maps(open.as_fd(), asked.pid)? } else { IdMaps::default() };
    Some(CallerMount { read_only: is_read_only(&listed), ids })
}

/// What the mounts of the filesystem that the caller sees allow; `None` if that is unknown.
fn all_mounts(asked: &Asked<'_>) -> Option<Vec<CallerMount>> {
    let all = ubtrfs_mounts::seen_by(&asked.pid.to_string()).ok()?;
    let of_device = all.into_iter().filter(|mount| mount.device == asked.device);
    let plain = |mount: Mounted| {
        (!is_idmapped(&mount)).then(|| CallerMount { read_only: is_read_only(&mount), ..CallerMount::default() })
    };
    of_device.map(plain).collect()
}

/// Returns whether nothing can be changed through this mount, since the mount or the whole file
/// system is read-only.
fn is_read_only(mount: &Mounted) -> bool {
    mount.has_own("ro") || mount.read_only
}

fn is_idmapped(mount: &Mounted) -> bool {
    mount.has_own("idmapped")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn the_descriptor_of_an_ioctl_is_read() {
        let line = "16 0x5 0x5000940e 0x7ffe 0x0 0x0 0x0 0x7ffe 0x7f00\n";
        assert_eq!(descriptor_in(line, 0x5000_940e), Some(5));
        assert_eq!(descriptor_in("16 0x5 0xffffffff5000940e 0x7ffe", 0x5000_940e), Some(5));
        for other in [line, "running", "", "16 0x5", "-1 0x7ffe 0x7f00"] {
            assert_eq!(descriptor_in(other, 0x9408), None, "{other}");
        }
    }

    /// Invariant 40.
    #[test]
    fn a_file_that_the_caller_has_not_open_is_on_no_mount_of_its() {
        let file = tempfile::tempfile().unwrap();
        let (number, ino) = (file.metadata().unwrap().dev(), file.metadata().unwrap().ino());
        let device = (rustix::fs::major(number), rustix::fs::minor(number));
        let asked = |pid, ino| {
            let is_file = move |number| number == ino;
            mount_of(&Asked { pid, command: 1, device, is_file: &is_file })
        };
        assert_eq!(asked(std::process::id(), ino), Some(CallerMount::default()));
        assert_eq!(asked(std::process::id(), u64::MAX), None);
        assert_eq!(asked(0, ino), None, "a process that is not visible");
        drop(file);
        assert_eq!(asked(std::process::id(), ino), None);
    }
}
