//! Which device of a volume is meant.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use ubtrfs::{Filesystem, Options};
use ubtrfs_format::DeviceId;
use ubtrfs_volume::{Error as VolumeError, OpenOptions, Volume};

use crate::args::Window;
use crate::device::{Opened, about_volume_within, open_for_writing};
use crate::failure::{Failure, Result};
use crate::ioctls::Mounted;
use crate::place::is_same;

/// The device of a mount that is meant by a number or by a path.
pub fn on_mount(mounted: &Mounted, source: &str) -> std::result::Result<Option<DeviceId>, Errno> {
    let numbers = mounted.device_numbers()?;
    if let Ok(number) = source.parse::<u64>() {
        return Ok(numbers.contains(&number).then_some(DeviceId(number)));
    }
    for number in numbers {
        let path = PathBuf::from(mounted.device_path(number)?);
        if is_same(&path, Path::new(source)) {
            return Ok(Some(DeviceId(number)));
        }
    }
    Ok(None)
}

/// The device of a volume that is not mounted that is meant by a number or by a path.
pub fn of_volume(fs: &Filesystem, device: &str) -> Option<DeviceId> {
    let number = match device.parse::<u64>() {
        Ok(number) => Some(DeviceId(number)),
        Err(_) => number_on(Path::new(device)),
    };
    number.filter(|number| fs.volume().devices().iter().any(|item| item.devid == *number))
}

/// The number that a device's superblock gives it.
pub fn number_on(path: &Path) -> Option<DeviceId> {
    let device = ubtrfs_volume::open_to_look(path).ok()?;
    Volume::superblock_of(&*device).map(|superblock| superblock.dev_item.devid)
}

/// A volume that is not mounted, whose devices may change.
pub struct Unmounted {
    pub fs: Arc<Filesystem>,
    /// What keeps others from writing to the devices.
    _claims: Vec<File>,
}

/// Opens a volume, if need be without a device that is missing.
pub fn open_perhaps_degraded(paths: &[PathBuf], window: Window) -> Result<Unmounted> {
    let Opened { devices, claims, .. } = open_for_writing(paths, window)?;
    let volume = match Volume::open(devices.clone(), OpenOptions::default()) {
        Err(VolumeError::MissingDevices { .. }) => Volume::open_degraded(devices, OpenOptions::default()),
        opened => opened,
    };
    let volume = volume.map_err(|error| about_volume_within(paths, window, &error))?;
    let options = Options { background_commits: false, ..Options::default() };
    let fs = Filesystem::open(Arc::new(volume), options).map_err(|error| Failure::of(&error))?;
    Ok(Unmounted { fs, _claims: claims })
}

/// That there is none.
pub fn no_such_device(source: &str) -> Failure {
    Failure::new(format!("the volume has no device {source}"))
}
