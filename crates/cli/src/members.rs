//! Finds the other devices of a volume of which some are named: it searches the block devices in
//! `/dev`.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ubtrfs_format::{DeviceId, Superblock};
use ubtrfs_volume::{Device, FoundDevice, OpenOptions, Volume, is_remote, open_to_look, scan_devices};

use crate::failure::{Failure, Result};

/// Refuses a device that is given twice, even under different names.
pub fn check_distinct(paths: &[PathBuf]) -> Result<()> {
    let mut seen = BTreeMap::new();
    for path in paths {
        if let Some(first) = seen.insert(identity(path), path) {
            let (path, first) = (path.display(), first.display());
            let same = if path.to_string() == first.to_string() { String::new() } else { format!(", also as {first}") };
            return Err(Failure::new(format!("{path} is given twice{same}")));
        }
    }
    Ok(())
}

/// Adds the devices of the option `device=` to those that are named. If an fstab lists all devices
/// of a volume there, it also lists the one that the UUID stands for: that device counts once.
pub fn add_of_options(paths: &mut Vec<PathBuf>, of_options: Vec<PathBuf>) {
    let mut seen: BTreeSet<_> = paths.iter().map(|path| identity(path)).collect();
    paths.extend(of_options.into_iter().filter(|path| seen.insert(identity(path))));
}

/// Returns a value that is equal for two names of one device.
fn identity(path: &Path) -> (u64, u64, PathBuf) {
    match std::fs::metadata(path) {
        Ok(found) if found.file_type().is_block_device() => (0, found.rdev(), PathBuf::new()),
        Ok(found) => (found.dev(), found.ino(), PathBuf::new()),
        // An export, or an image that is to be made.
        Err(_) => (0, 0, path.into()),
    }
}

/// Returns the devices that are named and, if a block device is among them, the other block devices
/// of their volume. A device that is not found here is missing when the volume is opened.
///
/// The newest superblock says which devices the volume has: a device that is named, or found by
/// another one, may have been removed or replaced meanwhile.
pub fn with_others(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    check_distinct(paths)?;
    let mut paths = paths.to_vec();
    let is_block = |path: &PathBuf| {
        !is_remote(path) && std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
    };
    if !paths.iter().any(is_block) {
        return Ok(paths);
    }
    // A device that can't be opened now is reported when it is opened for use.
    let devices: Option<Vec<Arc<dyn Device>>> = paths.iter().map(|path| open_to_look(path).ok()).collect();
    let Some(mut devices) = devices else { return Ok(paths) };
    let superblocks: Option<Vec<Superblock>> = devices.iter().map(|device| Volume::superblock_of(&**device)).collect();
    let Some(mut superblocks) = superblocks else { return Ok(paths) };
    let named = paths.len();
    let mut attached = None;
    while !are_all_there(&superblocks) {
        let attached = attached.get_or_insert_with(scan_devices);
        let mut others: BTreeMap<DeviceId, FoundDevice> = BTreeMap::new();
        for found in missing(&devices, &superblocks, attached) {
            let devid = found.superblock.dev_item.devid;
            if let Some(first) = others.get(&devid) {
                return Err(both(&first.path, &found));
            }
            others.insert(devid, found);
        }
        if others.is_empty() {
            break;
        }
        for FoundDevice { path, superblock } in others.into_values() {
            let Ok(device) = open_to_look(&path) else { return Ok(paths) };
            attached.retain(|other| other.path != path);
            devices.push(device);
            superblocks.push(superblock);
            paths.push(path);
        }
    }
    if paths.len() > named {
        // The user may have meant the newer device; and if the volume were opened with the older
        // one, the outdated contents would become the current ones.
        for (path, own) in paths.iter().zip(&superblocks) {
            if let Some(newer) = attached.iter().flatten().find(|found| is_newer(&found.superblock, own)) {
                return Err(both(path, newer));
            }
        }
    }
    Ok(paths)
}

/// Returns the failure about two devices that have the same number in the same volume.
fn both(first: &Path, second: &FoundDevice) -> Failure {
    let FoundDevice { path, superblock } = second;
    Failure::new(format!(
        "{} and {} both say that they are device {} of the volume {}: name all devices that are meant",
        first.display(),
        path.display(),
        superblock.dev_item.devid,
        superblock.fsid
    ))
}

/// Whether `one` is a newer superblock of the device of `other`: its device has replaced that of
/// `other`, or `other` is on an old copy.
fn is_newer(one: &Superblock, other: &Superblock) -> bool {
    let id = |superblock: &Superblock| (superblock.fsid, superblock.dev_item.devid, superblock.dev_item.uuid);
    id(one) == id(other) && one.generation > other.generation
}

/// Whether these are all devices of their volume, and all are of the same generation. A device that
/// is behind the others may not know of all devices.
fn are_all_there(superblocks: &[Superblock]) -> bool {
    let newest = superblocks.iter().max_by_key(|superblock| superblock.generation);
    newest.is_some_and(|newest| {
        let current = superblocks.iter().filter(|superblock| superblock.generation == newest.generation);
        newest.num_devices <= current.count() as u64
    })
}

/// Returns the devices of this machine that the volume on these devices lacks.
fn missing(devices: &[Arc<dyn Device>], superblocks: &[Superblock], attached: &[FoundDevice]) -> Vec<FoundDevice> {
    let given: BTreeSet<_> = superblocks.iter().map(|superblock| superblock.dev_item.devid).collect();
    let is_same = |found: &&FoundDevice| superblocks.iter().any(|given| given.fsid == found.superblock.fsid);
    let others = attached.iter().filter(is_same);
    let Ok(volume) = Volume::open_degraded(devices.to_vec(), OpenOptions { read_only: true }) else {
        // The given devices don't have the whole chunk tree.
        return others.filter(|found| !given.contains(&found.superblock.dev_item.devid)).cloned().collect();
    };
    let lacks = volume.devices().missing();
    let own = |found: &FoundDevice| (found.superblock.dev_item.devid, found.superblock.dev_item.uuid);
    let is_lacking = |found: &FoundDevice| lacks.iter().any(|item| (item.devid, item.uuid) == own(found));
    let found: Vec<FoundDevice> = attached.iter().filter(|found| is_lacking(found)).cloned().collect();
    if !found.is_empty() || lacks.is_empty() {
        return found;
    }
    // The volume may since have lost all the other devices that these know of.
    let newer = others.filter(|found| found.superblock.generation > volume.superblocks().current().generation);
    newer.max_by_key(|found| found.superblock.generation).cloned().into_iter().collect()
}
