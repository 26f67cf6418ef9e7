//! Opening devices for the commands that don't mount.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;
use ubtrfs_volume::{
    Device, Error, Exclusive, FileDevice, OpenMode, OpenOptions as VolumeOptions, Volume, WindowDevice, backing_file,
    whole_disk,
};

use crate::args::Window;
use crate::failure::{Failure, Result};
use crate::loop_devices::{self, User};

/// How long a busy device is waited for.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long a busy loop device is waited for; its holder may only look at it.
const MOMENT: Duration = Duration::from_millis(500);

/// Whether the path is a block device.
pub fn is_block(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_block_device())
}

/// Claims a block device: while the result lives, nobody mounts it, and nobody has it mounted.
pub fn claim(path: &Path) -> Result<File> {
    let flags = (OFlags::EXCL | OFlags::CLOEXEC).bits() as i32;
    let open = || {
        OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(|error| {
            if Errno::from_io_error(&error) == Some(Errno::BUSY) {
                Error::Held { path: path.into() }
            } else {
                Error::Open { path: path.into(), source: error }
            }
        })
    };
    patiently(open).map_err(|error| Failure::of(&error))
}

/// Tries again for a while what fails because the device is busy. umount(8) returns when the last
/// commit is durable; the server lets go of the device a moment later, and nobody should have to
/// wait for that between two commands.
pub fn patiently<T>(attempt: impl Fn() -> std::result::Result<T, Error>) -> std::result::Result<T, Error> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match attempt() {
            Err(Error::Held { .. }) if Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}

/// Opens a device so that nobody else has it. The kernel doesn't ask for our lock of an image file,
/// so whether it has mounted one is looked for.
pub fn open_exclusively(path: &Path, mode: OpenMode) -> Result<FileDevice> {
    let device = patiently(|| FileDevice::open(path, mode, Exclusive::Yes)).map_err(|error| Failure::of(&error))?;
    check_unmounted(path, mode).map(|()| device)
}

/// An error if the kernel has mounted an image file, or that behind a loop device, through any
/// other loop device. Who only looked at such a device holds it for a moment: that is waited for.
pub fn check_unmounted(path: &Path, mode: OpenMode) -> Result<()> {
    let number = std::fs::metadata(path).map_or(0, |metadata| metadata.rdev());
    let image = backing_file(number).unwrap_or_else(|| path.into());
    // Who has claimed a partition keeps others from the whole disk, too.
    let known: Vec<u64> = [number].into_iter().chain(whole_disk(number)).collect();
    let deadline = Instant::now() + MOMENT;
    let shown = path.display();
    loop {
        let used = loop_devices::user(&image, &known, mode);
        let why = match &used {
            None => return Ok(()),
            Some(User::Mounted(by)) => format!("{shown} is mounted by the kernel, through {}", by.display()),
            Some(User::Unseen(by)) => format!(
                "{shown} is in use by the kernel, through {}: it is mounted in another mount namespace, or held otherwise",
                by.display()
            ),
            Some(User::Unknown(by)) if rustix::process::geteuid().is_root() => format!(
                "{shown} is attached to {}, which can't be asked whether it is mounted: detach it (losetup -d)",
                by.display()
            ),
            Some(User::Unknown(by)) => format!(
                "{shown} is attached to {}, and only root can find out whether that is mounted: detach it (losetup -d)",
                by.display()
            ),
            Some(User::Hidden(by)) => format!(
                "{shown} may be attached to {}, which is as large and has a file that can't be looked at: detach it \
                 (losetup -d), or let root do this",
                by.display()
            ),
        };
        if matches!(used, Some(User::Mounted(_))) || Instant::now() >= deadline {
            return Err(Failure::new(why));
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Devices, opened.
pub struct Opened {
    /// The devices.
    pub devices: Vec<Arc<dyn Device>>,
    /// Claims on those that aren't claimed by being open, to be kept as long as they are used.
    pub claims: Vec<File>,
}

/// Opens devices for reading only, and refuses those that are mounted.
pub fn open_for_reading(paths: &[PathBuf], window: Window) -> Result<Opened> {
    open_all(paths, window, OpenMode::ReadOnly)
}

/// Opens devices for writing, and refuses those that are mounted.
pub fn open_for_writing(paths: &[PathBuf], window: Window) -> Result<Opened> {
    open_all(paths, window, OpenMode::ReadWrite)
}

fn open_all(paths: &[PathBuf], window: Window, mode: OpenMode) -> Result<Opened> {
    let mut opened = Opened { devices: Vec::new(), claims: Vec::new() };
    for path in paths {
        let device = open_exclusively(path, mode)?;
        // Those that are opened for writing are claimed by that.
        if mode == OpenMode::ReadOnly && is_block(path) {
            opened.claims.push(claim(path)?);
        }
        opened.devices.push(within(path, device, window)?);
    }
    Ok(opened)
}

/// Opens devices for reading only, mounted or not: what is read may be changing.
pub fn open_for_a_glance(paths: &[PathBuf], window: Window) -> Result<Vec<Arc<dyn Device>>> {
    paths
        .iter()
        .map(|path| {
            let device = FileDevice::open(path, OpenMode::ReadOnly, Exclusive::No);
            within(path, device.map_err(|error| Failure::of(&error))?, window)
        })
        .collect()
}

/// The part of a device that the volume is in.
pub fn within(path: &Path, device: FileDevice, window: Window) -> Result<Arc<dyn Device>> {
    if window.offset == 0 && window.sizelimit.is_none() {
        return Ok(Arc::new(device));
    }
    let part = WindowDevice::new(Arc::new(device), window.offset, window.sizelimit.filter(|limit| *limit > 0));
    part.map(|part| Arc::new(part) as _).map_err(|error| Failure::about(path.display(), &error))
}

/// The volume on these devices, for reading only.
pub fn volume(paths: &[PathBuf], window: Window, devices: Vec<Arc<dyn Device>>) -> Result<Arc<Volume>> {
    let volume = Volume::open(devices, VolumeOptions { read_only: true });
    volume.map(Arc::new).map_err(|error| about_volume_within(paths, window, &error))
}

/// What is wrong with the volume in this part of the devices.
pub fn about_volume_within(paths: &[PathBuf], window: Window, error: &Error) -> Failure {
    let options = window.as_options();
    match (about_volume(paths, error), error) {
        (Failure::Sentence(sentence, status), Error::PrimarySuperblock { .. }) if !options.is_empty() => {
            Failure::Sentence(format!("{sentence}; both with{options}"), status)
        }
        (failure, _) => failure,
    }
}

/// What is wrong with the volume on these devices.
pub fn about_volume(paths: &[PathBuf], error: &Error) -> Failure {
    match (paths, error) {
        // These name the device themselves.
        (_, Error::Open { .. } | Error::Held { .. } | Error::NotADevice { .. }) | ([], _) => Failure::of(error),
        ([path, ..], _) => Failure::about(path.display(), error),
    }
}
