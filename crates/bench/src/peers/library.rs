//! The engine in this process, without FUSE.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ubtrfs::{Filesystem, Options, SetAttributes};
use ubtrfs_mkfs::Medium;
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode, OpenOptions, ThrottledDevice, Volume};

use super::conditions::Layout;
use crate::failure::{Failure, Result};
use crate::memory;

/// Makes a volume as `mkfs.btrfs -m PROFILE -d PROFILE` does. Returns how.
pub fn make(images: &[&Path], size: u64, layout: Layout) -> Result<String> {
    let open = |image: &&Path| std::fs::OpenOptions::new().write(true).open(image);
    let mut files = images.iter().map(open).collect::<std::io::Result<Vec<File>>>()?;
    let mut media: Vec<&mut dyn Medium> = files.iter_mut().map(|file| file as _).collect();
    memory::layout(size, layout.devices, layout.profile)?.write(&mut media)?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if !user.is_root() {
        // The new volume belongs to root, so others could do nothing in it.
        let library = Library::open(image_devices(images)?, Options::default())?;
        let (uid, gid) = (Some(user.as_raw()), Some(group.as_raw()));
        let root = library.filesystem().root();
        library.filesystem().inodes().set_attributes(root, &SetAttributes { uid, gid, ..SetAttributes::default() })?;
        library.close()?;
    }
    let profile = layout.profile.name();
    Ok(format!("ubtrfs mkfs -m {profile} -d {profile}"))
}

/// Opens the devices of image files.
pub fn image_devices(images: &[&Path]) -> Result<Vec<Arc<dyn Device>>> {
    let open = |image: &&Path| -> Result<Arc<dyn Device>> {
        let device = FileDevice::open(image, OpenMode::ReadWrite, Exclusive::Yes);
        Ok(Arc::new(device.map_err(|error| Failure::about(image.display(), &error))?))
    };
    images.iter().map(open).collect()
}

/// Returns the device with a limit of so many bytes per second, if there is one.
pub fn limited(device: Arc<dyn Device>, throttle: Option<u64>) -> Arc<dyn Device> {
    match throttle {
        Some(bytes) => Arc::new(ThrottledDevice::new(device, bytes)),
        None => device,
    }
}

/// An open engine.
pub struct Library(Arc<Filesystem>);

impl Library {
    /// Opens the volume on `devices`.
    pub fn open(devices: Vec<Arc<dyn Device>>, options: Options) -> Result<Self> {
        let volume = Volume::open(devices, OpenOptions { read_only: false });
        let volume = volume.map_err(|error| Failure::about("the volume", &error))?;
        Ok(Self(Filesystem::open(Arc::new(volume), options)?))
    }

    /// Returns the engine.
    pub fn filesystem(&self) -> &Arc<Filesystem> {
        &self.0
    }

    /// Commits and closes the volume.
    pub fn close(self) -> Result<()> {
        Ok(self.0.close()?)
    }
}
