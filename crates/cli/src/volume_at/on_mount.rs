//! A volume that ubtrfs or the kernel has mounted.

use std::cell::{Cell, OnceCell};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use ubtrfs_image::HostTree;

use crate::failure::{Failure, Result};
use crate::ioctls::{Mounted, about_mount};

/// A mounted volume, named by a path on it.
pub struct OnMount {
    place: PathBuf,
    /// The file or directory of the volume that was opened first.
    opened: OnceCell<Mounted>,
    /// The open files of a walk.
    pub tree: HostTree,
    /// The id of the volume, if it can be known.
    volume: OnceCell<Option<[u8; 16]>>,
    /// The number of subvolumes that were found on walks.
    subvolumes: Cell<u64>,
}

impl OnMount {
    /// Returns the volume that a path is on. Opens nothing yet.
    pub fn new(place: PathBuf) -> Self {
        let (opened, volume) = (OnceCell::new(), OnceCell::new());
        Self { place, opened, tree: HostTree::default(), volume, subvolumes: Cell::new(0) }
    }

    /// Returns the path that names the volume.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Returns the open file or directory of the volume. Opens the path that names the volume if
    /// none is open.
    pub fn opened(&self) -> Result<&Mounted> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = Mounted::open(&self.place)?;
        Ok(self.opened.get_or_init(|| opened))
    }

    /// Keeps a file or directory of the volume open, if none is open yet.
    pub fn keep_open(&self, opened: Mounted) {
        let _ = self.opened.set(opened);
    }

    /// Returns the open file or directory, with the path that names the volume.
    pub fn into_opened(self) -> Option<(PathBuf, Mounted)> {
        let Self { place, opened, .. } = self;
        opened.into_inner().map(|opened| (place, opened))
    }

    /// Returns the id of the volume, if it can be known.
    pub fn volume(&self) -> Option<[u8; 16]> {
        *self.volume.get_or_init(|| self.opened().ok()?.volume_id().ok())
    }

    /// Returns a number for a subvolume that a walk has found.
    pub fn next_subvolume(&self) -> u64 {
        self.subvolumes.set(self.subvolumes.get() + 1);
        self.subvolumes.get()
    }

    /// Returns the failure for an error of the volume.
    pub fn failed(&self, errno: Errno) -> Failure {
        about_mount(self.place.display(), errno)
    }
}
