//! Volumes in image files.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_mkfs::MkfsOptions;
use ubtrfs_volume::{Exclusive, FileDevice, OpenMode, OpenOptions, Volume};

/// Makes an image of `size` bytes with a new volume.
pub fn make(path: &Path, size: u64, change: impl FnOnce(&mut MkfsOptions)) {
    let file = File::create_new(path).unwrap();
    file.set_len(size).unwrap();
    let mut options = MkfsOptions::new(size);
    change(&mut options);
    ubtrfs_mkfs::layout(&options).unwrap().write(&mut [&mut { file }]).unwrap();
}

/// Opens the volume of an image. It commits only on request.
pub fn open(path: &Path, options: Options) -> Arc<Filesystem> {
    try_open(path, options).unwrap()
}

/// Tries to open the volume of an image. It commits only on request.
pub fn try_open(path: &Path, options: Options) -> ubtrfs::Result<Arc<Filesystem>> {
    let read_only = options.read_only;
    let mode = if read_only { OpenMode::ReadOnly } else { OpenMode::ReadWrite };
    let device = Arc::new(FileDevice::open(path, mode, Exclusive::Yes).unwrap());
    let volume = Volume::open(vec![device], OpenOptions { read_only }).unwrap();
    Filesystem::open(Arc::new(volume), Options { background_commits: false, ..options })
}
