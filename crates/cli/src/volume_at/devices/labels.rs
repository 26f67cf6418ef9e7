//! The label of a volume.

use std::sync::Arc;

use rustix::io::Errno;
use ubtrfs::{Filesystem, Options};
use ubtrfs_volume::{Error as VolumeError, OpenOptions, Volume};

use super::super::on_mount::OnMount;
use super::unmounted::Unmounted;
use crate::device::{about_volume_within, open_for_a_glance, open_for_writing};
use crate::failure::{Failure, Result};

/// Reads and changes the label of a volume.
pub trait Labels {
    /// Returns the label.
    fn label(&self) -> Result<Vec<u8>>;

    /// Sets the label.
    fn set_label(&self, label: &[u8]) -> Result<()>;
}

impl Labels for OnMount {
    fn label(&self) -> Result<Vec<u8>> {
        self.opened()?.label().map_err(|errno| self.failed(errno))
    }

    fn set_label(&self, label: &[u8]) -> Result<()> {
        self.opened()?.set_label(label).map_err(|errno| match errno {
            Errno::PERM => {
                let shown = self.place().display();
                Failure::new(format!("{shown}: only root, or who has mounted it without being root, may label it"))
            }
            errno => self.failed(errno),
        })
    }
}

impl Labels for Unmounted {
    /// Returns the label on the first device.
    fn label(&self) -> Result<Vec<u8>> {
        let paths = &self.paths[..self.paths.len().min(1)];
        let devices = open_for_a_glance(paths, self.window)?;
        let superblock = devices.first().and_then(|device| Volume::superblock_of(&**device));
        let superblock = superblock.ok_or_else(|| about_volume_within(paths, self.window, &VolumeError::NotBtrfs))?;
        Ok(superblock.label_bytes().to_vec())
    }

    /// Sets the label by an ordinary commit, so that the volume has either the old or the new label
    /// after a crash.
    fn set_label(&self, label: &[u8]) -> Result<()> {
        let writing = open_for_writing(&self.paths, self.window)?;
        let volume = Volume::open(writing.devices, OpenOptions { read_only: false });
        let volume = volume.map_err(|error| about_volume_within(&self.paths, self.window, &error))?;
        let failed = |error: ubtrfs::Error| Failure::about(self.place().display(), &error);
        let options = Options { background_commits: false, catches_up_first: true, ..Options::default() };
        let fs = Filesystem::open(Arc::new(volume), options).map_err(failed)?;
        fs.set_label(label).map_err(failed)?;
        fs.close().map_err(failed)
    }
}
