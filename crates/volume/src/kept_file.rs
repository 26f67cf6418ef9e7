//! Protecting a file that is about to be replaced, and a block device that is about to be written
//! to, from programs that use images.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use crate::device::Device;
use crate::device_part::DevicePart;
use crate::device_user::User;
use crate::error::{Error, Result};
use crate::exclusive::check_unmounted;
use crate::file_device::{Exclusive, FileDevice, OpenMode, backing_file, whole_disk};
use crate::image_lock::{is_written, lock, locked_place};
use crate::loop_devices;
use crate::partitions::{Partition, PartitionTable};
use crate::volume::Volume;
use crate::window_device::WindowDevice;

/// Excludes everybody who opens images [exclusively](crate::open_exclusively) from a file that is
/// about to be replaced, as long as it is open. Fails, with an error about `shown`, if the file is
/// used as an image, by another program of ubtrfs or through a loop device. A use that an ordinary
/// user can't examine does not count. Nor does a lock of a file that is no image, since every user
/// who may read the file can lock it.
pub fn keep_from_use(file: &File, shown: &Path) -> Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = Path::new(&path);
    match lock(file, false, DevicePart::WHOLE, shown) {
        Err(Error::Held { .. }) if !may_be_image(file, path) => {}
        locked => locked?,
    }
    match loop_devices::user(path, &[], OpenMode::ReadWrite, DevicePart::WHOLE) {
        None | Some(User::Hidden(_)) => Ok(()),
        Some(by) => Err(Error::Attached { path: shown.into(), by }),
    }
}

/// Excludes everybody who opens images [exclusively](crate::open_exclusively) from the image behind
/// a loop device that is about to be written to, or behind a partition of one, as long as the
/// returned file is open. Fails if that image is used, by another program of ubtrfs or by the
/// kernel. Another block device has no image; opening it exclusively (`O_EXCL`) is enough.
pub fn keep_image_from_use(device: &File, path: &Path) -> Result<Option<File>> {
    let number = device.metadata().map_err(|source| Error::Open { path: path.into(), source })?.rdev();
    let image = backing_file(number).and_then(|image| File::open(image).ok());
    if let Some(image) = &image {
        // As for a volume: the partitions of one loop device share its image.
        lock(image, whole_disk(number).is_some(), DevicePart::WHOLE, path)?;
    }
    check_unmounted(path, OpenMode::ReadWrite, DevicePart::WHOLE)?;
    Ok(image)
}

/// Returns whether a locked file may be an image. It is one if it has a writer, or if there are
/// remains of a superblock at the beginning of the file, of a partition, or of a range that another
/// process has locked, since that may have opened a part of the file by its offset. A file that
/// can't be read may be one.
fn may_be_image(file: &File, path: &Path) -> bool {
    if is_written(file) {
        return true;
    }
    let Ok(device) = FileDevice::open(path, OpenMode::ReadOnly, Exclusive::No) else { return true };
    let device: Arc<dyn Device> = Arc::new(device);
    let partitions = PartitionTable::read(&*device).ok().flatten().map(|table| table.partitions).unwrap_or_default();
    let partitions = partitions.iter().filter_map(Partition::part).map(|part| part.start);
    let mut starts = std::iter::once(0).chain(partitions).chain(locked_place(file));
    // A part can't be opened at any other offset.
    starts.any(|start| {
        WindowDevice::new(Arc::clone(&device), start, None).is_ok_and(|part| !Volume::is_without_superblock(&part))
    })
}
