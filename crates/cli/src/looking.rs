//! Examines a device, or a part of it, without keeping others from using it.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use ubtrfs_format::{Superblock, SuperblockFlags};
use ubtrfs_volume::{
    Device, DevicePart, Error, Exclusive, OpenMode, Opening, PartitionTable, Volume, WindowDevice, open_named,
    open_to_look,
};

use crate::args::Window;
use crate::failure::{Failure, Result};
use crate::remedy::about_device;

/// Whether the path is a block device.
pub fn is_block(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Why a device was not opened.
pub enum NotOpened {
    /// It is away: the name does not exist, no server answers for it, or it has no such part.
    Away(Failure),
    /// It is present, but somebody else uses it, we lack permission, or it can't be the device that
    /// was meant.
    Refused(Failure),
}

impl NotOpened {
    /// Returns the failure.
    pub fn failure(self) -> Failure {
        let (Self::Away(failure) | Self::Refused(failure)) = self;
        failure
    }
}

impl From<Error> for NotOpened {
    fn from(error: Error) -> Self {
        let failure = about_device(&error);
        match &error {
            Error::Open { source, .. } if !is_ours(source) => Self::Away(failure),
            _ => Self::Refused(failure),
        }
    }
}

/// Whether an error says that we lack permission or resources to open a device, which says nothing
/// about the device.
fn is_ours(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(|errno| Some(errno.raw_os_error()));
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
        || lacks.contains(&error.raw_os_error())
}

/// Returns the part of a device that the volume is in. A partition is looked up in the partition
/// table.
pub fn part_of(path: &Path, window: Window) -> Result<DevicePart> {
    find_part(path, window, None).map_err(NotOpened::failure)
}

/// Returns the part of a device that the volume is in. Waits no longer than `timeout` for the
/// server of an export.
pub fn find_part(path: &Path, window: Window, timeout: Option<Duration>) -> std::result::Result<DevicePart, NotOpened> {
    let Some(number) = window.partition else {
        return Ok(DevicePart { start: window.offset, size: window.sizelimit.filter(|limit| *limit > 0) });
    };
    let device = look(path, timeout)?;
    // Without the partition, nothing of the volume is on the device.
    let failed = |error: Error| NotOpened::Away(Failure::about(path.display(), &error));
    let none = || NotOpened::Away(Failure::new(format!("{}: there is no partition table", path.display())));
    PartitionTable::read(&*device).map_err(failed)?.ok_or_else(none)?.part(number).map_err(failed)
}

/// Opens a device for reading, to examine it.
pub fn look(path: &Path, timeout: Option<Duration>) -> std::result::Result<Arc<dyn Device>, Error> {
    let part = DevicePart::WHOLE;
    open_named(path, Opening { mode: OpenMode::ReadOnly, exclusive: Exclusive::No, part, timeout })
}

/// Returns a part of a device, as a device.
pub fn within(path: &Path, device: Arc<dyn Device>, part: DevicePart) -> Result<Arc<dyn Device>> {
    if part.is_whole() {
        return Ok(device);
    }
    let part = WindowDevice::new(device, part.start, part.size);
    part.map(|part| Arc::new(part) as _).map_err(|error| Failure::about(path.display(), &error))
}

/// Returns the superblock of the volume in this part of a device, if it can be read.
pub fn superblock_on(path: &Path, window: Window) -> Option<Superblock> {
    Volume::superblock_of(&*part_to_look_at(path, window)?)
}

/// Opens a part of a device, to examine it.
pub fn part_to_look_at(path: &Path, window: Window) -> Option<Arc<dyn Device>> {
    within(path, open_to_look(path).ok()?, part_of(path, window).ok()?).ok()
}

/// Whether the volume on these devices is a seed of other volumes, so that nothing may write to it.
/// Devices without a readable superblock are ignored.
pub fn is_seed(paths: &[PathBuf], window: Window) -> bool {
    let mut seen =
        paths.iter().filter_map(|path| superblock_on(path, window)).map(|found| is_of_seed(&found)).peekable();
    seen.peek().is_some() && seen.all(|is_seed| is_seed)
}

/// Whether the volume of this superblock is a seed of other volumes.
pub fn is_of_seed(superblock: &Superblock) -> bool {
    superblock.flags.contains(SuperblockFlags::SEEDING)
}
