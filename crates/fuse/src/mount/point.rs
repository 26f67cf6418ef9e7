//! Directories to mount on.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::error::MountError;

/// Whether `path` is the mount of a server that is no more.
pub fn is_dead(path: &Path) -> bool {
    // The kernel may still know the attributes.
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

/// The path of a mount point as the mount table has it.
pub(super) fn real_path(path: &Path) -> Result<PathBuf, MountError> {
    let path = std::path::absolute(path).map_err(|error| MountError::MountPoint(path.into(), error))?;
    Ok(path.canonicalize().unwrap_or(path))
}
