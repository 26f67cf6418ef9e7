//! Finding out whether the kernel has mounted an image through a loop device, in any mount
//! namespace.
//!
//! A mount table shows one namespace only. The loop devices themselves are common to all: opening
//! one exclusively fails while a file system is mounted from it, in any namespace.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::device_part::DevicePart;
use crate::device_user::User;
use crate::file_device::{OpenMode, backing_file};
use crate::mount_table::{is_source_of_others, is_source_of_ours};

/// The prefix of the file name in the status of a loop device that only serves a mount of ours as
/// its source. Data is read and written through the image itself. The programs that mount set this
/// name.
pub const SOURCE_LABEL: &[u8] = b"ubtrfs:";

/// Returns who uses this part of an image file through a loop device. The devices with the numbers
/// in `known` are not looked at.
pub(crate) fn user(image: &Path, known: &[u64], mode: OpenMode, part: DevicePart) -> Option<User> {
    let image = std::fs::metadata(image).ok()?;
    let entries = std::fs::read_dir("/sys/block").ok()?.flatten();
    let attached = entries.filter(|entry| entry.path().join("loop").is_dir());
    let devices = attached.filter_map(|entry| LoopDevice::of(&entry.path()));
    let mut hidden = None;
    let others = devices.filter(|device| !known.contains(&device.number));
    for device in others.filter(|device| device.part().is_none_or(|its| its.overlaps(part))) {
        match device.user(&image, mode) {
            Some(user @ User::Hidden(_)) => hidden = Some(user),
            None => {}
            certain => return certain,
        }
    }
    hidden
}

/// Returns whether this is a loop device that only serves one of our mounts as its source.
pub(crate) fn serves_our_mount(device: &Path) -> bool {
    matches!(attached(device), Ok(Some(attached)) if attached.is_our_source)
}

/// A loop device that is attached to something.
struct LoopDevice {
    /// Its attributes in sysfs.
    reported: PathBuf,
    node: PathBuf,
    number: u64,
}

impl LoopDevice {
    fn of(reported: &Path) -> Option<Self> {
        let number = std::fs::read_to_string(reported.join("dev")).ok()?;
        let (major, minor) = number.trim().split_once(':')?;
        let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
        let node = Path::new("/dev").join(reported.file_name()?);
        Some(Self { reported: reported.into(), node, number })
    }

    /// Returns the use of the image through this device.
    fn user(self, image: &Metadata, mode: OpenMode) -> Option<User> {
        let id = (image.dev(), image.ino());
        // In a container or a chroot there may be no node, or another device's.
        let has_node = std::fs::metadata(&self.node).is_ok_and(|node| node.rdev() == self.number);
        if has_node && let Ok(attached) = attached(&self.node) {
            let is_it = attached.is_some_and(|to| (to.device, to.inode) == id && !to.is_our_source);
            return if is_it { held(self.node) } else { None };
        }
        // Ordinary users may not query the device, but sysfs shows them the path of its file.
        let writes = mode == OpenMode::ReadWrite;
        match std::fs::metadata(backing_file(self.number)?) {
            Ok(backing) if (backing.dev(), backing.ino()) != id || is_source_of_ours(&self.node) => None,
            Ok(_) if is_source_of_others(&self.node) => Some(User::Mounted(self.node)),
            Ok(_) => writes.then_some(User::Unknown(self.node)),
            // A path without permission may be another name of this file, or of another file.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && image.nlink() < 2 => None,
            Err(_) => (writes && self.may_show(image.len())).then_some(User::Hidden(self.node)),
        }
    }

    /// Returns an attribute that is a number.
    fn number_of(&self, name: &str) -> Option<u64> {
        std::fs::read_to_string(self.reported.join(name)).ok()?.trim().parse().ok()
    }

    /// Returns the part of its file that the device shows.
    fn part(&self) -> Option<DevicePart> {
        let (start, sectors) = (self.number_of("loop/offset")?, self.number_of("size")?);
        Some(DevicePart { start, size: Some(sectors.checked_mul(512)?) })
    }

    /// Returns whether the size of the device is the one that it would have over a file of so many
    /// bytes.
    fn may_show(&self, bytes: u64) -> bool {
        let (Some(sectors), Some(offset), Some(limit)) =
            (self.number_of("size"), self.number_of("loop/offset"), self.number_of("loop/sizelimit"))
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
    is_held.then_some(User::Undetermined(device))
}

/// The file that a loop device is attached to.
struct Attached {
    /// The device number of the file system that the file is on.
    device: u64,
    /// The file's inode number on it.
    inode: u64,
    /// Whether the device only serves one of our mounts as its source.
    is_our_source: bool,
}

/// `struct loop_info64`
#[repr(C)]
struct LoopStatus {
    device: u64,
    inode: u64,
    _numbers: [u64; 5],
    file_name: [u8; 64],
    _rest: [u64; 14],
}

/// Returns the file that the loop device at `path` is attached to, or `None` if it is no loop
/// device or attached to nothing.
fn attached(path: &Path) -> io::Result<Option<Attached>> {
    /// `LOOP_GET_STATUS64`
    const GET_STATUS: libc::c_ulong = 0x4c05;
    let flags = (OFlags::CLOEXEC | OFlags::NONBLOCK).bits() as i32;
    let device: File = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let mut status = LoopStatus { device: 0, inode: 0, _numbers: [0; 5], file_name: [0; 64], _rest: [0; 14] };
    // SAFETY: the request writes a `struct loop_info64`, whose size and layout `LoopStatus` has.
    let result = unsafe { libc::ioctl(device.as_raw_fd(), GET_STATUS as _, &raw mut status) };
    if result == 0 {
        let is_our_source = status.file_name.starts_with(SOURCE_LABEL);
        return Ok(Some(Attached { device: status.device, inode: status.inode, is_our_source }));
    }
    let error = io::Error::last_os_error();
    match Errno::from_io_error(&error) {
        Some(Errno::NXIO | Errno::NOTTY | Errno::INVAL) => Ok(None),
        _ => Err(error),
    }
}
