//! The block devices of this machine that hold a btrfs. Only devices that this user may read are
//! looked at, and only the superblock of each device that has a size.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ubtrfs_format::{SUPERBLOCK_COPIES, Superblock};

use crate::loop_devices::serves_our_mount;
use crate::named_device::open_to_look;
use crate::superblock_copy::read_copy;

/// A block device with a btrfs.
#[derive(Clone, Debug)]
pub struct FoundDevice {
    /// Its node in /dev.
    pub path: PathBuf,
    /// Its primary superblock.
    pub superblock: Superblock,
}

/// Returns all block devices with a btrfs, sorted by name. Leaves out those that are parts of other
/// devices (of a RAID, of several paths to one disk), and loop devices that only serve a mount of
/// ubtrfs as its source.
pub fn scan_devices() -> Vec<FoundDevice> {
    let Ok(entries) = std::fs::read_dir("/sys/class/block") else { return Vec::new() };
    let mut found: Vec<FoundDevice> = entries.flatten().filter_map(|entry| look_at(&entry.path())).collect();
    found.sort_by(|one, other| one.path.cmp(&other.path));
    found
}

fn look_at(reported: &Path) -> Option<FoundDevice> {
    let attribute = |name: &str| std::fs::read_to_string(reported.join(name)).ok();
    let sectors: u64 = attribute("size")?.trim().parse().ok()?;
    let is_part = std::fs::read_dir(reported.join("holders")).is_ok_and(|mut holders| holders.next().is_some());
    if sectors == 0 || is_part {
        return None;
    }
    // A slash in the name of a device is an exclamation mark there.
    let name = reported.file_name()?.to_str()?.replace('!', "/");
    let path = Path::new("/dev").join(name);
    let number = attribute("dev")?;
    let (major, minor) = number.trim().split_once(':')?;
    let number = rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?);
    // In a container or a chroot there may be no node, or another device's.
    if std::fs::metadata(&path).ok()?.rdev() != number || serves_our_mount(&path) {
        return None;
    }
    let device = open_to_look(&path).ok()?;
    let superblock = read_copy(&*device, SUPERBLOCK_COPIES[0]).ok()?.superblock;
    Some(FoundDevice { path, superblock })
}
