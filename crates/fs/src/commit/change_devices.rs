//! Adds devices to the volume, removes and resizes them, each by a commit.

use std::sync::Arc;

use ubtrfs_format::DeviceId;
use ubtrfs_volume::Device;

use super::owner::Committer;
use crate::error::{Errno, Result};
use crate::faults::CommitFault;

impl Committer {
    /// Adds a device to the volume by a commit, and wipes what is on it. Returns its device id.
    pub(crate) fn add_device(&self, device: Arc<dyn Device>) -> Result<DeviceId> {
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        let item = self.info.volume.membership().add(device)?;
        self.info.space.lock().devices_mut().add(item);
        self.commit()?;
        tracing::info!(device = item.devid.0, bytes = item.total_bytes, "the volume has one more device");
        Ok(item.devid)
    }

    /// Removes a device from the volume by a commit, and wipes its superblocks. No chunk may have a
    /// stripe on it.
    pub(crate) fn remove_device(&self, devid: DeviceId) -> Result<()> {
        self.info.space.lock().devices_mut().remove(devid).ok_or(Errno::NODEV)?;
        self.commit()?;
        tracing::info!(device = devid.0, "it is no device of the volume any more");
        Ok(())
    }

    /// Resizes a device by a commit. No chunk may have a stripe behind the new end.
    pub(crate) fn resize_device(&self, devid: DeviceId, bytes: u64) -> Result<()> {
        {
            let mut space = self.info.space.lock();
            let before = space.devices_mut().resize(devid, bytes).ok_or(Errno::NODEV)?;
            if before == bytes {
                return Ok(());
            }
            if self.info.options.faults().in_commit(CommitFault::GrowAtOnce) {
                space.devices_mut().lift_limit(devid);
            }
        }
        self.commit()?;
        tracing::info!(device = devid.0, bytes, "the device has another size");
        Ok(())
    }
}
