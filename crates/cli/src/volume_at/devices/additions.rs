//! Additions of devices to a volume.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::StatVfsMountFlags;
use rustix::io::Errno;
use ubtrfs::{Filesystem, Options};
use ubtrfs_format::{DeviceId, Physical};
use ubtrfs_server::device_ioctls::{STATUS, asking};
use ubtrfs_volume::{MIN_DEVICE, OpenOptions as VolumeOptions, Volume, absolute_name, wipe};

use super::super::on_mount::OnMount;
use super::unmounted::Unmounted;
use crate::device::{about_volume_within, open_for_writing, open_new};
use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};

/// Adds devices to a volume.
pub trait Additions {
    /// Adds devices. All of them are checked before the first one is added. With `force` their
    /// contents are overwritten. Calls `added` for each, with its number if that is known.
    fn add(&self, new: &[PathBuf], force: bool, added: &mut dyn FnMut(&Path, Option<DeviceId>)) -> Result<()>;
}

impl Additions for OnMount {
    fn add(&self, new: &[PathBuf], force: bool, added: &mut dyn FnMut(&Path, Option<DeviceId>)) -> Result<()> {
        let (mounted, place) = (self.opened()?, self.place());
        mounted.device_numbers().map_err(|errno| self.failed(errno))?;
        // All of them are checked before one is wiped.
        for path in new {
            check(path, force, (mounted, place), MIN_DEVICE)?;
        }
        new.iter().try_for_each(|path| {
            let name = prepare(path, force, (mounted, place), MIN_DEVICE)?;
            mounted.add_device(&name).map_err(|errno| about_new(path, place, errno))?;
            added(path, None);
            Ok(())
        })
    }
}

impl Additions for Unmounted {
    fn add(&self, new: &[PathBuf], force: bool, added: &mut dyn FnMut(&Path, Option<DeviceId>)) -> Result<()> {
        let opened = open_for_writing(&self.paths, self.window)?;
        let volume = Volume::open(opened.devices, VolumeOptions::default());
        let volume = volume.map_err(|error| about_volume_within(&self.paths, self.window, &error))?;
        let options = Options { background_commits: false, catches_up_first: true, ..Options::default() };
        let fs = Filesystem::open(Arc::new(volume), options).map_err(|error| Failure::of(&error))?;
        let devices = new.iter().map(|path| open_new(path, force)).collect::<Result<Vec<_>>>()?;
        if let Some((small, _)) = new.iter().zip(&devices).find(|(_, device)| device.size() < MIN_DEVICE) {
            return Err(Failure::new(format!("{}: it is too small", small.display())));
        }
        let done = new.iter().zip(devices).try_for_each(|(path, device)| {
            let number = fs.add_device(device).map_err(|error| Failure::about(path.display(), &error))?;
            added(path, Some(number));
            Ok(())
        });
        // The devices before one that fails stay added.
        let closed = fs.close().map_err(|error| Failure::of(&error));
        done.and(closed)
    }
}

/// Opens a device that is to be added to a mount. Returns an error if the mount is read-only, if
/// this process may not change its devices, or if the device has fewer bytes than `least`.
fn check(
    path: &Path,
    force: bool,
    (mounted, directory): (&Mounted, &Path),
    least: u64,
) -> Result<Arc<dyn ubtrfs_volume::Device>> {
    // A process that may not change devices gets no status of a replacement, either.
    mounted.replace(asking(STATUS)).map_err(|errno| about_new(path, directory, errno))?;
    let mount = rustix::fs::statvfs(directory).map_err(|errno| about_mount(directory.display(), errno))?;
    if mount.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err(about_new(path, directory, Errno::ROFS));
    }
    let is_file = std::fs::metadata(path).is_ok_and(|found| found.is_file());
    if is_file && mounted.is_of_the_kernel().map_err(|errno| about_mount(directory.display(), errno))? {
        return Err(about_new(path, directory, Errno::NOTBLK));
    }
    let device = open_new(path, force)?;
    if device.size() < least { Err(about_new(path, directory, Errno::INVAL)) } else { Ok(device) }
}

/// Wipes a device that is to be added to a mount, if that is allowed, so that the server accepts
/// it. Returns the name by which the server finds it.
pub(super) fn prepare(path: &Path, force: bool, mounted: (&Mounted, &Path), least: u64) -> Result<String> {
    let device = check(path, force, mounted, least)?;
    let failed = |error: std::io::Error| Failure::about(path.display(), &error);
    if force && std::fs::metadata(path).is_ok_and(|found| found.is_file()) {
        // A server takes no file with data. The file that was checked is emptied, whatever file has
        // its path by now.
        device.discard(Physical(0), device.size()).map_err(failed)?;
    }
    wipe(&*device).map_err(|error| Failure::about(path.display(), &error))?;
    drop(device);
    let name = if ubtrfs_volume::is_remote(path) {
        absolute_name(path).map_err(|error| Failure::of(&error))?
    } else {
        std::fs::canonicalize(path).map_err(failed)?
    };
    name.into_os_string().into_string().map_err(|_| Failure::new("the name of the device is no UTF-8"))
}

/// Describes why a mount does not accept a new device.
pub(super) fn about_new(path: &Path, directory: &Path, errno: Errno) -> Failure {
    let (path, place) = (path.display(), directory.display());
    match errno {
        Errno::PERM => Failure::new(format!(
            "{place}: only root, or the user who has mounted it, may change the devices of a mounted volume"
        )),
        Errno::INVAL => Failure::new(format!("{path}: it is too small, or no device")),
        Errno::NOTBLK => Failure::new(format!("{path}: the kernel takes block devices only")),
        Errno::EXIST => Failure::new(format!("{path}: it holds a file system, or data")),
        Errno::BUSY => Failure::new(format!("{path}: it is in use")),
        Errno::ROFS => Failure::new(format!("{place}: it is mounted read-only")),
        errno => about_mount(place, errno),
    }
}
