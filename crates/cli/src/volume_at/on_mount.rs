//! A volume that is mounted, by ubtrfs or the kernel.

use std::cell::{Cell, OnceCell};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use ubtrfs_image::HostTree;

use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};

/// A mounted volume, by a path on it.
pub struct OnMount {
    place: PathBuf,
    /// A file or directory of the volume: what was opened first.
    opened: OnceCell<Mounted>,
    /// What is open of the files that are walked through.
    pub tree: HostTree,
    /// The id of the volume, if it can be known.
    volume: OnceCell<Option<[u8; 16]>>,
    /// Subvolumes that were seen on walks.
    subvolumes: Cell<u64>,
}

impl OnMount {
    /// The volume on which a path is. Nothing is opened yet.
    pub fn new(place: PathBuf) -> Self {
        let (opened, volume) = (OnceCell::new(), OnceCell::new());
        Self { place, opened, tree: HostTree::default(), volume, subvolumes: Cell::new(0) }
    }

    /// The path by which the volume is named.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// That path, open.
    pub fn opened(&self) -> Result<&Mounted> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = Mounted::open(&self.place)?;
        Ok(self.opened.get_or_init(|| opened))
    }

    /// Keeps a file or directory of the volume open, where nothing is yet.
    pub fn keep_open(&self, opened: Mounted) {
        let _ = self.opened.set(opened);
    }

    /// What of the volume is open, with the path by which it is named.
    pub fn into_opened(self) -> Option<(PathBuf, Mounted)> {
        let Self { place, opened, .. } = self;
        opened.into_inner().map(|opened| (place, opened))
    }

    /// The id of the volume, if it can be known.
    pub fn volume(&self) -> Option<[u8; 16]> {
        *self.volume.get_or_init(|| self.opened().ok()?.volume_id().ok())
    }

    /// A number for a subvolume that is seen on a walk.
    pub fn next_subvolume(&self) -> u64 {
        self.subvolumes.set(self.subvolumes.get() + 1);
        self.subvolumes.get()
    }

    /// An error about the volume.
    pub fn failed(&self, errno: Errno) -> Failure {
        about_mount(self.place.display(), errno)
    }
}
