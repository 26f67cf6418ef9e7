//! The engine in this process, without FUSE.

use std::path::Path;
use std::sync::Arc;

use ubtrfs::{Filesystem, Options, SetAttributes};
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_volume::{Device, Exclusive, FileDevice, OpenMode, OpenOptions, Volume};

use crate::failure::{Failure, Result};

/// Makes a volume as `mkfs.btrfs -m single -d single` does; says how.
pub fn make(image: &Path, size: u64) -> Result<String> {
    let profile = Some(Profile::Single);
    let options = MkfsOptions { data_profile: profile, metadata_profile: profile, ..MkfsOptions::new(size) };
    let layout = ubtrfs_mkfs::layout(&options).map_err(|error| Failure::about("mkfs", &error))?;
    layout.write(&mut std::fs::OpenOptions::new().write(true).open(image)?)?;
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if !user.is_root() {
        // The new volume is root's, and others could do nothing in it.
        let library = Library::open(image)?;
        let (uid, gid) = (Some(user.as_raw()), Some(group.as_raw()));
        let root = library.filesystem().root();
        library.filesystem().set_attributes(root, &SetAttributes { uid, gid, ..SetAttributes::default() })?;
        library.close()?;
    }
    Ok("ubtrfs mkfs -m single -d single".into())
}

/// An open engine.
pub struct Library(Arc<Filesystem>);

impl Library {
    /// Opens the volume in `image` with the options that a mount has.
    pub fn open(image: &Path) -> Result<Self> {
        let failed = |error: ubtrfs_volume::Error| Failure::about(image.display(), &error);
        let device = FileDevice::open(image, OpenMode::ReadWrite, Exclusive::Yes).map_err(failed)?;
        let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
        let volume = Volume::open(devices, OpenOptions { read_only: false }).map_err(failed)?;
        Ok(Self(Filesystem::open(Arc::new(volume), Options::default())?))
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
