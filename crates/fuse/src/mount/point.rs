//! Directories to mount on, and those on which something is mounted (invariant 52).

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::error::{MountError, Unmount};
use super::{fusermount, identity};

/// A mount point, as the name of a directory in its parent, which is open. A path may lead
/// elsewhere at any time, since its directories may belong to other users. A `Point` does not: as
/// long as something is mounted there, the kernel lets nobody rename or remove that directory
/// (invariant 52).
///
/// It keeps the file system busy in which the mount point is, but not the mount.
#[derive(Debug)]
pub struct Point {
    path: PathBuf,
    parent: OwnedFd,
    name: OsString,
}

impl Point {
    /// Opens the parent of a path that has the form of the mount table.
    pub fn open(path: &Path) -> io::Result<Self> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) => (parent, name.to_owned()),
            _ => (path, ".".into()),
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { path: path.into(), parent: rustix::fs::open(parent, flags, Mode::empty())?, name })
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A path to the mount, for as long as this lives and it is mounted.
    pub fn place(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.parent.as_raw_fd())).join(&self.name)
    }

    /// Opens the root of what is mounted there, with `O_PATH`. While that is open, it can only be
    /// unmounted lazily.
    pub fn open_mounted(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.parent, &*self.name, flags, Mode::empty())?)
    }

    /// The device number of what is mounted there, major and minor.
    pub fn device_number(&self) -> Option<(u32, u32)> {
        identity::device_number_of(self.open_mounted().ok()?)
    }

    /// Unmounts `mounted`, which is the open root of what is mounted there. A lazy unmount by root
    /// takes this mount and no other.
    pub(super) fn unmount_opened(&self, mounted: OwnedFd, how: Unmount) -> Result<(), MountError> {
        if how == Unmount::Now || !rustix::process::geteuid().is_root() {
            // The mount is busy while its root is open.
            drop(mounted);
            return self.unmount(how);
        }
        rustix::mount::unmount(format!("/proc/self/fd/{}", mounted.as_raw_fd()), UnmountFlags::DETACH)
            .map_err(|errno| MountError::Unmount(self.path.clone(), errno.into()))
    }

    /// Unmounts what is mounted there, also the mount of a server that has ended ("Transport
    /// endpoint is not connected").
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        if !rustix::process::geteuid().is_root() {
            return fusermount::unmount(&self.path, how);
        }
        let flags = match how {
            Unmount::Now => UnmountFlags::NOFOLLOW,
            Unmount::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        };
        rustix::mount::unmount(self.place(), flags)
            .map_err(|errno| MountError::Unmount(self.path.clone(), errno.into()))
    }
}

/// Returns whether `path` is the mount of a server that has ended.
pub fn is_dead(path: &Path) -> bool {
    // statfs(2) asks the server, while the kernel may have the attributes of the root cached.
    rustix::fs::statfs(path).is_err_and(|errno| is_dead_error(&errno.into()))
}

fn is_dead_error(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOTCONN | Errno::CONNABORTED))
}

/// Opens the mount point, a directory, so that the mount is made on the directory that was checked.
pub(super) fn open_point(path: &Path) -> Result<File, MountError> {
    let flags = (OFlags::PATH | OFlags::CLOEXEC).bits() as i32;
    let failed = |error: io::Error| match error {
        error if is_dead_error(&error) => MountError::Dead(path.into()),
        error => MountError::MountPoint(path.into(), error),
    };
    let point = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let metadata = point.metadata().map_err(failed)?;
    if metadata.is_dir() { Ok(point) } else { Err(MountError::NotADirectory(path.into())) }
}

/// The path of a mount point in the form of the mount table.
pub(super) fn real_path(path: &Path) -> Result<PathBuf, MountError> {
    let path = std::path::absolute(path).map_err(|error| MountError::MountPoint(path.into(), error))?;
    Ok(path.canonicalize().unwrap_or(path))
}
