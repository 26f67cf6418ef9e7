//! Operations on the volume as a whole.

use std::sync::Arc;

use ubtrfs_format::{DeviceId, Generation};
use ubtrfs_volume::Volume;

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::inode::InodeId;

impl Filesystem {
    /// The underlying volume.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.info.volume
    }

    /// Returns the generation of the last commit.
    pub fn generation(&self) -> Generation {
        self.info.generation()
    }

    /// Why the file system turned read-only, if it did.
    pub fn abort_reason(&self) -> Option<String> {
        self.info.writability.abort_reason()
    }

    /// Returns [`Error::Aborted`] if the file system turned read-only after an error. Changes that
    /// were not durable before may be lost.
    pub fn check_aborted(&self) -> Result<()> {
        self.info.aborted().map_or(Ok(()), |error| Err(Error::Aborted(error)))
    }

    /// Sets the action that is called, once, when the file system turns read-only after an error;
    /// calls it at once if that has happened. The action must neither wait nor use the file system,
    /// since it is called in the place where the error occurs. Only the first action that is set
    /// counts.
    pub fn on_abort(&self, action: impl Fn() + Send + Sync + 'static) {
        self.info.writability.on_abort(Box::new(action));
    }

    /// Whether the volume has a subvolume that is read-only.
    pub fn has_read_only_subvolumes(&self) -> bool {
        self.info.has_read_only_subvolumes()
    }

    /// Whether the inode is in a subvolume that is read-only.
    pub fn is_in_read_only_subvolume(&self, id: InodeId) -> bool {
        self.info.is_in_read_only_subvolume(id)
    }

    /// The volume's label as of the last commit.
    pub fn label(&self) -> Vec<u8> {
        self.info.committed().superblock.label_bytes().to_vec()
    }

    /// Sets the label of the volume, and commits. `EINVAL` if the label is too long, or can't be
    /// shown in one line.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.committer.set_label(label)
    }

    /// Commits, removes all empty chunks, and shrinks the devices to the end of their last chunks.
    /// [`Self::device_bytes`] returns the new size; the volume does not use what is behind it.
    pub fn shrink_devices(&self) -> Result<()> {
        self.committer.shrink_devices()
    }

    /// Returns the bytes of all devices that the volume uses.
    pub fn device_bytes(&self) -> u64 {
        self.info.space.lock().devices().total_bytes()
    }

    /// Resets the error counters of a device to zero. The next commit that changes something makes
    /// this durable.
    pub fn reset_device_errors(&self, devid: DeviceId) -> Result<()> {
        if self.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        self.info.volume.devices().reset_errors(devid).map_err(Into::into)
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.info.is_read_only()
    }
}
