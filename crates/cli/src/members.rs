//! The other devices of a volume, of which some are named: block devices are looked for in /dev.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs_format::{DeviceId, Superblock};
use ubtrfs_volume::{Device, FoundDevice, OpenOptions, Volume, is_remote, open_to_look, scan_devices};

use crate::failure::{Failure, Result};

/// Refuses a device that is given twice, under whatever names.
pub fn check_distinct(paths: &[PathBuf]) -> Result<()> {
    let mut seen: BTreeMap<(u64, u64, &Path), &Path> = BTreeMap::new();
    for path in paths {
        let identity = match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_block_device() => (0, found.rdev(), Path::new("")),
            Ok(found) => (found.dev(), found.ino(), Path::new("")),
            // An export, or an image that is made.
            Err(_) => (0, 0, path.as_path()),
        };
        if let Some(first) = seen.insert(identity, path) {
            let (path, first) = (path.display(), first.display());
            let same = if path.to_string() == first.to_string() { String::new() } else { format!(", also as {first}") };
            return Err(Failure::new(format!("{path} is given twice{same}")));
        }
    }
    Ok(())
}

/// The devices that are named, and block devices with the rest of their volume, if a block device
/// is among those. What is not found is missing when the volume is opened.
pub fn with_others(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    check_distinct(paths)?;
    let mut paths = paths.to_vec();
    let is_block = |path: &PathBuf| {
        !is_remote(path) && std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
    };
    if !paths.iter().any(is_block) {
        return Ok(paths);
    }
    // Whatever can't be opened now says so later.
    let devices: Option<Vec<Arc<dyn Device>>> = paths.iter().map(|path| open_to_look(path).ok()).collect();
    let Some(devices) = devices else { return Ok(paths) };
    let superblocks: Option<Vec<Superblock>> = devices.iter().map(|device| Volume::superblock_of(&**device)).collect();
    let Some(superblocks) = superblocks else { return Ok(paths) };
    let most = superblocks.iter().map(|superblock| superblock.num_devices).max().unwrap_or_default();
    if most <= paths.len() as u64 {
        return Ok(paths);
    }
    let mut others: BTreeMap<DeviceId, PathBuf> = BTreeMap::new();
    for FoundDevice { path, superblock } in missing(&devices, &superblocks) {
        let devid = superblock.dev_item.devid;
        if let Some(first) = others.insert(devid, path.clone()) {
            return Err(Failure::new(format!(
                "{} and {} both say that they are device {devid} of the volume {}: name the one that is meant",
                first.display(),
                path.display(),
                superblock.fsid
            )));
        }
    }
    paths.extend(others.into_values());
    Ok(paths)
}

/// Devices of the machine that these lack.
fn missing(devices: &[Arc<dyn Device>], superblocks: &[Superblock]) -> Vec<FoundDevice> {
    let mut found = scan_devices();
    if let Ok(volume) = Volume::open_degraded(devices.to_vec(), OpenOptions { read_only: true }) {
        let lacks = volume.missing_devices();
        let own = |found: &FoundDevice| (found.superblock.dev_item.devid, found.superblock.dev_item.uuid);
        found.retain(|found| lacks.iter().any(|item| (item.devid, item.uuid) == own(found)));
        return found;
    }
    // Those that are there don't have the whole chunk tree.
    let given: BTreeSet<_> = superblocks.iter().map(|superblock| superblock.dev_item.devid).collect();
    let is_same = |found: &FoundDevice| superblocks.iter().any(|given| given.fsid == found.superblock.fsid);
    found.retain(|found| is_same(found) && !given.contains(&found.superblock.dev_item.devid));
    found
}
