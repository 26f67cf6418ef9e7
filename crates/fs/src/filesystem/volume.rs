//! The volume as a whole.

use std::sync::Arc;

use ubtrfs_format::{DeviceId, Generation};
use ubtrfs_volume::Volume;

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::inode::InodeId;

impl Filesystem {
    /// The volume below.
    pub fn volume(&self) -> &Arc<Volume> {
        &self.info.volume
    }

    /// The last commit's number.
    pub fn generation(&self) -> Generation {
        self.info.generation()
    }

    /// Why the file system turned read-only, if it did.
    pub fn abort_reason(&self) -> Option<String> {
        self.info.writability.abort_reason()
    }

    /// [`Error::Aborted`] if the file system turned read-only after an error: what was changed and
    /// not made durable before may be lost.
    pub fn check_aborted(&self) -> Result<()> {
        self.info.aborted().map_or(Ok(()), |error| Err(Error::Aborted(error)))
    }

    /// Sets what is done, once, when the file system turns read-only after an error; at once if it
    /// has. The action must neither wait nor use the file system: it is called where the error came
    /// up. Only the first action that is set counts.
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

    /// Gives the volume a label, and commits. `EINVAL` for one that is too long, or that could not
    /// be shown in a line.
    pub fn set_label(&self, label: &[u8]) -> Result<()> {
        self.committer.set_label(label)
    }

    /// Commits, gives all empty chunks back and ends the devices where their last chunks end:
    /// [`Self::device_bytes`] says where, and what is behind it is of no use to the volume.
    pub fn shrink_devices(&self) -> Result<()> {
        self.committer.shrink_devices()
    }

    /// Bytes of all devices that the volume uses.
    pub fn device_bytes(&self) -> u64 {
        self.info.space.lock().devices().total_bytes()
    }

    /// Sets the counters of a device's failures to zero; the next commit that changes something
    /// makes that durable.
    pub fn reset_device_errors(&self, devid: DeviceId) -> Result<()> {
        if self.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        self.info.volume.reset_device_errors(devid).map_err(Into::into)
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.info.is_read_only()
    }
}
