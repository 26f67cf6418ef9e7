//! Adding devices to the volume and replacing them.

use std::sync::Arc;

use ubtrfs_format::DeviceId;
use ubtrfs_volume::Device;

use super::Filesystem;
use crate::error::{Errno, Error, Result};

impl Filesystem {
    /// Adds a device to the volume, and wipes what is on it. The addition is durable when this
    /// returns. New chunks may use the device, and existing chunks stay where they are. Returns its
    /// device id.
    pub fn add_device(&self, device: Arc<dyn Device>) -> Result<DeviceId> {
        self.committer.add_device(device)
    }

    /// Starts a thread that does what [`Replacer::run`](crate::Replacer::run) does;
    /// [`Self::close`] waits for it.
    pub fn replace_in_background(&self) -> Result<()> {
        let started = self.replacer.start();
        let failed = |error| Error::Posix(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
        self.threads.lock().extend(started.map_err(failed)?);
        Ok(())
    }
}
