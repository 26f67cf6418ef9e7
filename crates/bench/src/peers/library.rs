//! The engine in this process, without FUSE.

use std::path::Path;
use std::sync::Arc;

use ubtrfs::{Filesystem, Options, SetAttributes};
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode, OpenOptions, ThrottledDevice, Volume};

use crate::failure::{Failure, Result};
use crate::memory;

/// Makes a volume as `mkfs.btrfs -m single -d single` does; says how.
pub fn make(image: &Path, size: u64) -> Result<String> {
    memory::layout(size)?.write(&mut [&mut std::fs::OpenOptions::new().write(true).open(image)?])?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if !user.is_root() {
        // The new volume is root's, and others could do nothing in it.
        let library = Library::open(image_device(image)?, Options::default())?;
        let (uid, gid) = (Some(user.as_raw()), Some(group.as_raw()));
        let root = library.filesystem().root();
        library.filesystem().set_attributes(root, &SetAttributes { uid, gid, ..SetAttributes::default() })?;
        library.close()?;
    }
    Ok("ubtrfs mkfs -m single -d single".into())
}

/// The device of an image file.
pub fn image_device(image: &Path) -> Result<Arc<dyn Device>> {
    let device = FileDevice::open(image, OpenMode::ReadWrite, Exclusive::Yes);
    Ok(Arc::new(device.map_err(|error| Failure::about(image.display(), &error))?))
}

/// The same device with so many bytes in a second, if any number is given.
pub fn limited(device: Arc<dyn Device>, throttle: Option<u64>) -> Arc<dyn Device> {
    match throttle {
        Some(bytes) => Arc::new(ThrottledDevice::new(device, bytes)),
        None => device,
    }
}

/// An open engine.
pub struct Library(Arc<Filesystem>);

impl Library {
    /// Opens the volume on `device`.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self> {
        let volume = Volume::open(vec![device], OpenOptions { read_only: false });
        let volume = volume.map_err(|error| Failure::about("the volume", &error))?;
        Ok(Self(Filesystem::open(Arc::new(volume), options)?))
    }

    /// The engine.
    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.0
    }

    /// Commits and closes.
    pub fn close(self) -> Result<()> {
        Ok(self.0.close()?)
    }
}
