//! Opening a device exclusively: no other program of ubtrfs and no mount of the kernel may use it.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;
use ubtrfs_threads::thread;
use ubtrfs_threads::time::Instant;

use crate::device::Device;
use crate::device_part::DevicePart;
use crate::device_user::User;
use crate::error::{Error, Result};
use crate::file_device::{Exclusive, OpenMode, backing_file, whole_disk};
use crate::loop_devices;
use crate::named_device::{Opening, is_remote, open_named};

/// How long to wait for a busy device.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long to wait for a busy loop device, since its holder may only be looking at it.
const MOMENT: Duration = Duration::from_millis(500);

/// Claims a block device: while the result lives, it is not mounted and can't be mounted. Fails if
/// it is mounted.
pub fn claim(path: &Path) -> Result<File> {
    let flags = (OFlags::EXCL | OFlags::CLOEXEC).bits() as i32;
    patiently(|| {
        OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
            if Errno::from_io_error(&error) == Some(Errno::BUSY) {
                Error::Held { path: path.into(), by: None }
            } else {
                Error::Open { path: path.into(), source: error }
            }
        })
    })
}

/// Repeats an attempt for a while that fails because the device is busy. umount(8) returns when the
/// last commit is durable, but the server releases the device a moment later, and nobody should
/// have to wait for that between two commands.
pub fn patiently<T>(attempt: impl Fn() -> Result<T>) -> Result<T> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match attempt() {
            Err(Error::Held { .. }) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}

/// Opens a device so that nobody else uses it. The kernel ignores our lock of an image file, so
/// this also looks whether the kernel has mounted the image. A block device that is opened for
/// reading has to be [claimed](claim) besides.
pub fn open_exclusively(path: &Path, mode: OpenMode) -> Result<Arc<dyn Device>> {
    open_part_exclusively(path, mode, DevicePart::WHOLE, None)
}

/// Opens a device so that nobody else uses this part of it. A block device is claimed as a whole.
/// The timeout is that of [`Opening`].
pub fn open_part_exclusively(
    path: &Path,
    mode: OpenMode,
    part: DevicePart,
    timeout: Option<Duration>,
) -> Result<Arc<dyn Device>> {
    let device = patiently(|| open_named(path, Opening { mode, exclusive: Exclusive::Yes, part, timeout }))?;
    check_unmounted(path, mode, part).map(|()| device)
}

/// Fails if the kernel has mounted this part of an image file through a loop device. For a loop
/// device, checks the image behind it and all its other loop devices. A program that only looks at
/// such a device holds it for a moment, so this waits a little before it fails.
pub fn check_unmounted(path: &Path, mode: OpenMode, part: DevicePart) -> Result<()> {
    if is_remote(path) {
        return Ok(());
    }
    let number = std::fs::metadata(path).map_or(0, |metadata| metadata.rdev());
    let (image, part) = match backing_file(number) {
        // The offset of the device in its image is not looked up, so all of the image counts.
        Some(image) => (image, DevicePart::WHOLE),
        None => (path.into(), part),
    };
    // A claim of a partition keeps others from the whole disk, too.
    let known: Vec<u64> = [number].into_iter().chain(whole_disk(number)).collect();
    let deadline = Instant::now() + MOMENT;
    loop {
        let Some(by) = loop_devices::user(&image, &known, mode, part) else { return Ok(()) };
        if matches!(by, User::Mounted(_)) || Instant::now() >= deadline {
            return Err(Error::Attached { path: path.into(), by });
        }
        thread::sleep(Duration::from_millis(20));
    }
}
