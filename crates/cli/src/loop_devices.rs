//! Whether the kernel has an image mounted through a loop device, in whatever mount namespace.
//!
//! A mount table tells of one namespace only. The loop devices themselves are everybody's: whoever
//! opens one exclusively is refused while a file system is mounted from it, wherever that is.

use std::fs::{Metadata, OpenOptions};
use std::io::ErrorKind;
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
    /// It may be attached to this device: what the device is attached to can't be looked at.
    Hidden(PathBuf),
}

/// Who uses an image file through a loop device. Of `known`, device numbers, that is known.
pub fn user(image: &Path, known: &[u64], mode: OpenMode) -> Option<User> {
    let image = std::fs::metadata(image).ok()?;
    let entries = std::fs::read_dir("/sys/block").ok()?.flatten();
    let attached = entries.filter(|entry| entry.path().join("loop").is_dir());
    let devices = attached.filter_map(|entry| LoopDevice::of(&entry.path()));
    let mut hidden = None;
    for device in devices.filter(|device| !known.contains(&device.number)) {
        match device.user(&image, mode) {
            Some(user @ User::Hidden(_)) => hidden = Some(user),
            None => {}
            certain => return certain,
        }
    }
    hidden
}

/// A loop device that is attached to something.
struct LoopDevice {
    /// What sysfs tells of it.
    told: PathBuf,
    node: PathBuf,
    number: u64,
}

impl LoopDevice {
    fn of(told: &Path) -> Option<Self> {
        let number = std::fs::read_to_string(told.join("dev")).ok()?;
        let (major, minor) = number.trim().split_once(':')?;
        let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let node = Path::new("/dev").join(told.file_name()?);
        Some(Self { told: told.into(), node, number })
    }

    /// Who uses the image through this device.
    fn user(self, image: &Metadata, mode: OpenMode) -> Option<User> {
        let id = (image.dev(), image.ino());
        // In a container or a chroot there may be no node, or another device's.
        let has_node = std::fs::metadata(&self.node).is_ok_and(|node| node.rdev() == self.number);
        if has_node && let Ok(attached) = attached(&self.node) {
            let is_it = attached.is_some_and(|to| (to.device, to.inode) == id && !to.is_our_source);
            return if is_it { held(self.node) } else { None };
        }
        // Ordinary users may not ask the device; they are told the path of its file.
        let writes = mode == OpenMode::ReadWrite;
        match std::fs::metadata(backing_file(self.number)?) {
            Ok(backing) if (backing.dev(), backing.ino()) != id || is_source_of_ours(&self.node) => None,
            Ok(_) if is_source_of_others(&self.node) => Some(User::Mounted(self.node)),
            Ok(_) => writes.then_some(User::Unknown(self.node)),
            // A path that may not be followed is another name of the file, or of another file.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && image.nlink() < 2 => None,
            Err(_) => (writes && self.may_show(image.len())).then_some(User::Hidden(self.node)),
        }
    }

    /// Whether the size of the device is what a file of so many bytes gives it.
    fn may_show(&self, bytes: u64) -> bool {
        let number = |name: &str| std::fs::read_to_string(self.told.join(name)).ok()?.trim().parse::<u64>().ok();
        let (Some(sectors), Some(offset), Some(limit)) =
            (number("size"), number("loop/offset"), number("loop/sizelimit"))
        else {
            return true;
        };
        bytes.checked_sub(offset).is_some_and(|rest| {
            let rest = if limit == 0 { rest } else { rest.min(limit) };
            rest >> 9 == sectors
        })
    }
}

fn held(device: PathBuf) -> Option<User> {
    if is_source_of_others(&device) {
        return Some(User::Mounted(device));
    }
    if is_source_of_ours(&device) {
        // Its server has locked the image.
        return None;
    }
    let flags = (OFlags::EXCL | OFlags::CLOEXEC).bits() as i32;
    let claim = OpenOptions::new().read(true).custom_flags(flags).open(&device);
    let is_held = claim.is_err_and(|error| Errno::from_io_error(&error) == Some(Errno::BUSY));
    is_held.then_some(User::Unseen(device))
}
