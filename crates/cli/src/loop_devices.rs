//! Whether the kernel has an image mounted through a loop device, in whatever mount namespace.
//!
//! A mount table tells of one namespace only. The loop devices themselves are everybody's: whoever
//! opens one exclusively is refused while a file system is mounted from it, wherever that is.

use std::fs::OpenOptions;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;
use ubtrfs_fuse::mount::attached;
use ubtrfs_volume::{OpenMode, backing_file};

use crate::mount_table::{is_source_of_others, is_source_of_ours};

/// Why an image file may not be used.
#[derive(Debug, PartialEq, Eq)]
pub enum User {
    /// The kernel has mounted it through this device.
    Mounted(PathBuf),
    /// A holder that this mount namespace doesn't show has this device open, as mounts do.
    Unseen(PathBuf),
    /// It is attached to this device, and whether that is mounted can't be found out.
    Unknown(PathBuf),
}

/// Who uses an image file through a loop device. Of `except`, a device number, that is known.
pub fn user(image: &Path, except: u64, mode: OpenMode) -> Option<User> {
    let image = std::fs::metadata(image).ok()?;
    let entries = std::fs::read_dir("/sys/block").ok()?.flatten();
    let devices = entries.filter(|entry| entry.path().join("loop").is_dir());
    devices.map(|entry| Path::new("/dev").join(entry.file_name())).find_map(|device| {
        let number = std::fs::metadata(&device).ok()?.rdev();
        if number == except {
            return None;
        }
        let id = (image.dev(), image.ino());
        match attached(&device) {
            Ok(Some(to)) if (to.device, to.inode) == id && !to.is_our_source => held(device),
            Ok(_) => None,
            Err(_) => {
                // Ordinary users may not ask the device; they are told the path of its file.
                let backing = std::fs::metadata(backing_file(number)?).ok()?;
                if (backing.dev(), backing.ino()) != id || is_source_of_ours(&device) {
                    None
                } else if is_source_of_others(&device) {
                    Some(User::Mounted(device))
                } else {
                    (mode == OpenMode::ReadWrite).then_some(User::Unknown(device))
                }
            }
        }
    })
}

fn held(device: PathBuf) -> Option<User> {
    if is_source_of_ours(&device) {
        // Its server has locked the image.
        return None;
    }
    if is_source_of_others(&device) {
        return Some(User::Mounted(device));
    }
    let flags = (OFlags::EXCL | OFlags::CLOEXEC).bits() as i32;
    let claim = OpenOptions::new().read(true).custom_flags(flags).open(&device);
    let is_held = claim.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::BUSY));
    is_held.then_some(User::Unseen(device))
}
