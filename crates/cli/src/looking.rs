//! What is on a device, or in a part of it, by a look that keeps nobody out.

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
    /// It is away: nothing of that name is there, nobody answers for it, or it has no such part.
    Away(Failure),
    /// It is there. Somebody else uses it, or we may not, or it can't be what was meant.
    Refused(Failure),
}

impl NotOpened {
    /// What to say of it.
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

/// Whether an error says that we may not open a device, or lack what it takes, and nothing of the
/// device.
fn is_ours(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(|errno| Some(errno.raw_os_error()));
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
        || lacks.contains(&error.raw_os_error())
}

/// The part of a device that the volume is in; a partition is looked up in the partition table.
pub fn part_of(path: &Path, window: Window) -> Result<DevicePart> {
    find_part(path, window, None).map_err(NotOpened::failure)
}

/// The same; an export of a server that is away is waited for no longer than that.
pub fn find_part(path: &Path, window: Window, timeout: Option<Duration>) -> std::result::Result<DevicePart, NotOpened> {
    let Some(number) = window.partition else {
        return Ok(DevicePart { start: window.offset, size: window.sizelimit.filter(|limit| *limit > 0) });
    };
    let device = look(path, timeout)?;
    // Nothing of the volume is on it, whatever else.
    let failed = |error: Error| NotOpened::Away(Failure::about(path.display(), &error));
    let none = || NotOpened::Away(Failure::new(format!("{}: there is no partition table", path.display())));
    PartitionTable::read(&*device).map_err(failed)?.ok_or_else(none)?.part(number).map_err(failed)
}

/// Opens a device for a look at it.
pub fn look(path: &Path, timeout: Option<Duration>) -> std::result::Result<Arc<dyn Device>, Error> {
    let part = DevicePart::WHOLE;
    open_named(path, Opening { mode: OpenMode::ReadOnly, exclusive: Exclusive::No, part, timeout })
}

/// A part of a device.
pub fn within(path: &Path, device: Arc<dyn Device>, part: DevicePart) -> Result<Arc<dyn Device>> {
    if part.is_whole() {
        return Ok(device);
    }
    let part = WindowDevice::new(device, part.start, part.size);
    part.map(|part| Arc::new(part) as _).map_err(|error| Failure::about(path.display(), &error))
}

/// The superblock of the volume in this part of a device, if it can be read.
pub fn superblock_on(path: &Path, window: Window) -> Option<Superblock> {
    Volume::superblock_of(&*part_to_look_at(path, window)?)
}

/// A part of a device, for a look at it.
pub fn part_to_look_at(path: &Path, window: Window) -> Option<Arc<dyn Device>> {
    within(path, open_to_look(path).ok()?, part_of(path, window).ok()?).ok()
}

/// Whether other volumes are made from the one on these devices, so that nothing may write to it.
/// Those of which nothing can be seen don't count.
pub fn is_seed(paths: &[PathBuf], window: Window) -> bool {
    let mut seen =
        paths.iter().filter_map(|path| superblock_on(path, window)).map(|found| is_of_seed(&found)).peekable();
    seen.peek().is_some() && seen.all(|is_seed| is_seed)
}

/// Whether other volumes are made from that of this superblock.
pub fn is_of_seed(superblock: &Superblock) -> bool {
    superblock.flags.contains(SuperblockFlags::SEEDING)
}
