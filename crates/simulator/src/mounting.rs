//! Opens volumes and mounts them.

use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_errors::sentence;
use ubtrfs_format::{SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock};
use ubtrfs_volume::{Device, OpenOptions, OverlayDevice, Volume};

/// Copies devices; writes to a copy do not change the original.
pub(crate) fn forks(devices: &[OverlayDevice]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| Arc::new(device.fork()) as _).collect()
}

/// Returns the superblock of a device, if it has one.
pub fn superblock(device: &dyn Device) -> Option<Superblock> {
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).ok()?;
    Superblock::parse(&bytes, SUPERBLOCK_COPIES[0]).ok()
}

/// Returns whether a device has a superblock.
pub fn has_superblock(device: &dyn Device) -> bool {
    superblock(device).is_some()
}

/// Returns the devices that have a superblock.
pub(crate) fn with_superblocks(devices: &[Arc<dyn Device>]) -> Vec<Arc<dyn Device>> {
    devices.iter().filter(|device| has_superblock(&***device)).cloned().collect()
}

/// Returns the devices that the volume has, or was about to get. The others once belonged to it, or
/// never did.
pub fn members(devices: &[OverlayDevice]) -> Result<Vec<OverlayDevice>, String> {
    let found: Vec<&OverlayDevice> = devices.iter().filter(|device| has_superblock(*device)).collect();
    let volume = open_volume(found.iter().map(|device| Arc::new(device.fork()) as _).collect(), true)?;
    let members: Vec<_> = volume.devices().items().iter().map(|item| (item.devid, item.uuid)).collect();
    let counts = volume.superblocks().current().generation;
    // A device that was about to be added may have the superblock of a commit that does not count,
    // since a crash came before its end.
    let is_member = |device: &&&OverlayDevice| {
        superblock(**device)
            .is_some_and(|own| members.contains(&(own.dev_item.devid, own.dev_item.uuid)) || own.generation > counts)
    };
    Ok(found.iter().filter(is_member).map(|device| device.fork()).collect())
}

/// Opens the volume on these devices, though some of its devices may be missing.
pub fn open_volume(devices: Vec<Arc<dyn Device>>, read_only: bool) -> Result<Arc<Volume>, String> {
    let volume = Volume::open_degraded(devices, OpenOptions { read_only });
    volume.map(Arc::new).map_err(|error| format!("the volume does not open: {}", sentence(&error)))
}

/// Opens the engine on a volume.
pub fn mount(volume: Arc<Volume>, options: Options) -> Result<Arc<Filesystem>, String> {
    Filesystem::open(volume, options).map_err(|error| format!("the volume does not mount: {}", error.chain()))
}

/// Opens the engine on devices.
pub fn open(devices: Vec<Arc<dyn Device>>, options: Options) -> Result<Arc<Filesystem>, String> {
    mount(open_volume(devices, options.read_only)?, options)
}

/// Returns whether inodes are freed in steps so small that histories need several for one inode.
pub(crate) fn frees_in_steps(options: &Options) -> bool {
    options.freeing.per_transaction < 1000
}
