//! A name for a block device that is no path to it.
//!
//! The kernel looks the source of a `fuseblk` mount up as a path, and shows it in the mount table
//! as it was given. To make any other name usable as the source, this creates a tmpfs that is
//! mounted nowhere in the tree and has a node of the device, or a symbolic link to it, under that
//! name. The thread that mounts has the root of the tmpfs as its working directory (for a relative
//! name, such as a URI) or as its root directory (for an absolute one). The tmpfs ends when it is
//! closed.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Component, Path, PathBuf};
use std::thread;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::{chroot, fchdir};
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// A name that refers to a block device within [`with`](Self::with).
pub struct NameOfDevice {
    name: String,
    is_absolute: bool,
    directory: OwnedFd,
}

impl NameOfDevice {
    /// Makes `name` refer to the device at the path `device`. Slashes at the end of the name are
    /// left out, since only a directory may have one. A name with `..` is an error.
    pub fn new(name: &str, device: &str) -> io::Result<Self> {
        let name = name.trim_end_matches('/');
        let relative = name.strip_prefix('/');
        let (is_absolute, relative) = (relative.is_some(), relative.unwrap_or(name));
        let parts: Vec<_> = Path::new(relative).components().collect();
        if parts.is_empty() || parts.iter().any(|part| !matches!(part, Component::Normal(_))) {
            return Err(io::Error::new(ErrorKind::InvalidInput, "it can't be the source of a mount"));
        }
        let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        fsconfig_create(&context)?;
        let directory = fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
        let node = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(relative);
        if let Some(parent) = node.parent() {
            fs::create_dir_all(parent)?;
        }
        if is_absolute {
            let number = fs::metadata(device)?.rdev();
            mknodat(CWD, &node, FileType::BlockDevice, Mode::RUSR | Mode::WUSR, number)?;
        } else {
            symlink(device, &node)?;
        }
        Ok(Self { name: name.to_owned(), is_absolute, directory })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.name
    }

    /// Calls `action` in a thread in which the name refers to the device; other paths may lead
    /// nowhere in that thread.
    pub fn with<T: Send>(&self, action: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let there = scope.spawn(|| {
                // SAFETY: from now on this thread, which ends here, has a working directory, a root
                // directory and a umask of its own; nothing relies on its having those of the
                // process.
                unsafe { unshare_unsafe(UnshareFlags::FS) }?;
                fchdir(&self.directory)?;
                if self.is_absolute {
                    chroot(".")?;
                }
                Ok(action())
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["", "/", "..", "/dev/../null", "//", "nbd+unix:///?socket=/run/../x"] {
            let refused = NameOfDevice::new(name, "/dev/null").map(drop);
            assert!(refused.is_err_and(|error| error.kind() == ErrorKind::InvalidInput), "{name}");
        }
    }
}
