//! Finds the device of a volume that the user means.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::io::Errno;
use ubtrfs::{Filesystem, Options};
use ubtrfs_format::DeviceId;
use ubtrfs_server::vacate_ioctls::MISSING;
use ubtrfs_volume::{Error as VolumeError, OpenOptions, Volume};

use crate::args::Window;
use crate::away::{LeftOut, about_left_out};
use crate::device::{Opened, about_volume_within, open_what_is_there, superblock_on};
use crate::failure::{Failure, Result};
use crate::ioctls::Mounted;
use crate::place::is_same;

/// Returns the device of a mount that is meant by a number, by a path, or by `missing`, which means
/// the first one that is missing.
pub fn on_mount(mounted: &Mounted, source: &str) -> std::result::Result<Option<DeviceId>, Errno> {
    let numbers = mounted.device_numbers()?;
    if source == MISSING {
        for number in numbers {
            if is_missing(&mounted.device_path(number)?) {
                return Ok(Some(DeviceId(number)));
            }
        }
        return Ok(None);
    }
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

/// Whether the path of a device, as servers and kernels report it, means that the device is
/// missing.
fn is_missing(path: &str) -> bool {
    matches!(path, "" | MISSING | "<missing disk>")
}

/// Returns the device that is meant, by the same kinds of names, of a volume that is not mounted.
pub fn of_volume(volume: &Volume, device: &str, window: Window) -> Option<DeviceId> {
    let devices = volume.devices().items();
    let found = if device == MISSING {
        let missing = volume.devices().missing();
        devices.iter().find(|item| missing.iter().any(|lost| lost.devid == item.devid))
    } else if let Ok(number) = device.parse::<u64>() {
        devices.iter().find(|item| item.devid.0 == number)
    } else {
        // Another volume may have devices with the same numbers.
        let own = superblock_on(Path::new(device), window)?.dev_item;
        devices.iter().find(|item| (item.devid, item.uuid) == (own.devid, own.uuid))
    };
    found.map(|item| item.devid)
}

/// A volume that is not mounted, opened to change its devices.
pub struct Unmounted {
    pub fs: Arc<Filesystem>,
    /// Claims that keep others from writing to the devices.
    _claims: Vec<File>,
}

/// Opens a volume without devices that are missing, if `may_miss` is true for each of them. It also
/// does without devices that are named but are away or hold nothing of the volume.
pub fn open_without(
    paths: &[PathBuf],
    window: Window,
    may_miss: impl Fn(&Volume, DeviceId) -> bool,
) -> Result<Unmounted> {
    let (Opened { devices, claims, .. }, left_out) = open_what_is_there(paths, window)?;
    let volume = match Volume::open(devices.clone(), OpenOptions::default()) {
        Err(error @ VolumeError::MissingDevices { .. }) => {
            let volume = Volume::open_degraded(devices, OpenOptions::default());
            let is_wanted =
                |volume: &Volume| volume.devices().missing().iter().all(|item| may_miss(volume, item.devid));
            volume.and_then(|volume| if is_wanted(&volume) { Ok(volume) } else { Err(error) })
        }
        // The volume lacks none of them, so the user must have meant something else.
        Ok(_) if !left_out.is_empty() => return Err(about_left_out(&left_out)),
        opened => opened,
    };
    let volume = volume.map_err(|error| {
        let failure = about_volume_within(paths, window, &error);
        let why = about_left_out(&left_out);
        failure.map_sentence(|sentence| if left_out.is_empty() { sentence } else { sentence + "\n" + why.sentence() })
    })?;
    left_out.iter().for_each(LeftOut::say);
    let options = Options { background_commits: false, ..Options::default() };
    let fs = Filesystem::open(Arc::new(volume), options).map_err(|error| Failure::of(&error))?;
    Ok(Unmounted { fs, _claims: claims })
}

/// Returns the error about a device that does not exist.
pub fn no_such_device(source: &str) -> Failure {
    Failure::new(match source {
        MISSING => "all devices of the volume are there: name the one that is meant, by its number or path \
                    ('ubtrfs device usage' lists them)"
            .into(),
        source => format!("the volume has no device {source}: 'ubtrfs device usage' lists those that it has"),
    })
}
