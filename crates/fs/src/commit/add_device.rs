//! A device that the volume gets.

use std::sync::Arc;

use ubtrfs_format::DeviceId;
use ubtrfs_volume::Device;

use super::owner::Committer;
use crate::error::{Errno, Result};

impl Committer {
    /// Makes a device one of the volume's by a commit; what is on it is wiped. Returns its number.
    pub(crate) fn add_device(&self, device: Arc<dyn Device>) -> Result<DeviceId> {
        if self.info.is_read_only() {
            return Err(Errno::ROFS.into());
        }
        let item = self.info.volume.add_device(device)?;
        {
            let mut space = self.info.space.lock();
            space.devices.add(item);
            space.new_devices.add(item);
        }
        self.commit()?;
        tracing::info!(device = item.devid.0, bytes = item.total_bytes, "the volume has one more device");
        Ok(item.devid)
    }
}
