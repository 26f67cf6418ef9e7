//! Devices come to the volume and are replaced.

use std::sync::Arc;

use ubtrfs_format::DeviceId;
use ubtrfs_volume::Device;

use super::Filesystem;
use crate::error::{Errno, Error, Result};

impl Filesystem {
    /// Makes a device one of the volume's, whatever is on it; this is durable when it returns. New
    /// chunks are made there; what is on the other devices stays where it is. Returns its number.
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
