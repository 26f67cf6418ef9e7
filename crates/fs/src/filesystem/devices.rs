//! Devices come to the volume and are replaced.

use std::sync::Arc;

use ubtrfs_format::DeviceId;
use ubtrfs_volume::Device;

use super::Filesystem;
use crate::error::{Errno, Error, Result};
use crate::relocation::VacateProgress;
use crate::replace::{ReplaceOptions, ReplaceProgress};

impl Filesystem {
    /// Makes a device one of the volume's, whatever is on it; this is durable when it returns. New
    /// chunks are made there; what is on the other devices stays where it is. Returns its number.
    pub fn add_device(&self, device: Arc<dyn Device>) -> Result<DeviceId> {
        self.committer.add_device(device)
    }

    /// Moves all that is on a device elsewhere, and takes the device out of the volume; this is
    /// durable when it returns. Its superblocks are wiped. The device may be missing, or be one of
    /// a seed. `goes_on` is asked again and again. `ENODEV` if there is no such device, `EINVAL` if
    /// the others are too few for the volume's profiles, `ENOSPC` if they have no room,
    /// `EINPROGRESS` beside a balance or another change of devices, `ECANCELED` if `goes_on` says
    /// no: then, as after an error, what has been moved stays where it is.
    pub fn remove_device(&self, devid: DeviceId, goes_on: &dyn Fn(&VacateProgress) -> bool) -> Result<()> {
        self.balancer.relocator().remove_device(devid, goes_on)
    }

    /// Gives a device another size in bytes, rounded down to sectors, after what is behind that has
    /// been moved elsewhere; this is durable when it returns. `EPERM` if it is a device of a seed,
    /// `EINVAL` if that is too small, `EFBIG` if the device is not that large, `EBUSY` if it lags;
    /// otherwise as for removals.
    pub fn resize_device(&self, devid: DeviceId, bytes: u64, goes_on: &dyn Fn(&VacateProgress) -> bool) -> Result<()> {
        self.balancer.relocator().resize_device(devid, bytes, goes_on)
    }

    /// From now on balances, removals and resizings move so many bytes in a second at the most,
    /// those that are under way, too.
    pub fn limit_relocation(&self, bytes_per_second: Option<u64>) {
        self.balancer.relocator().limit(bytes_per_second);
    }

    /// Begins to replace a device, missing ones too, by a new one that is as large, whatever is on
    /// that; this is durable when it returns. [`Self::continue_replacement`] does it.
    /// `EINPROGRESS` if a device is being replaced already.
    pub fn begin_replacement(&self, source: DeviceId, target: Arc<dyn Device>, options: ReplaceOptions) -> Result<()> {
        self.replacer.begin(source, target, options)
    }

    /// Copies what the old device has to the new one, and puts that into its place; the old one is
    /// no device of the volume then. `goes_on` is asked again and again; when it says no, or the
    /// mount ends, this ends with `ECANCELED`, and the next mount goes on. So it does when the
    /// replacement is cancelled. `EIO` if the new device failed: the volume is as it was before.
    pub fn continue_replacement(&self, goes_on: &mut dyn FnMut(&ReplaceProgress) -> bool) -> Result<()> {
        self.replacer.run(goes_on)
    }

    /// Starts a thread that does what [`Self::continue_replacement`] does; [`Self::close`] waits
    /// for it.
    pub fn replace_in_background(&self) -> Result<()> {
        let started = self.replacer.start();
        let failed = |error| Error::Posix(Errno::from_io_error(&error).unwrap_or(Errno::AGAIN));
        self.threads.lock().extend(started.map_err(failed)?);
        Ok(())
    }

    /// How far the replacement of a device is, or how the last one ended.
    pub fn replacement(&self) -> ReplaceProgress {
        self.replacer.progress()
    }

    /// Gives the replacement of a device up: the volume has the devices that it had before.
    /// `ENOTCONN` if there is none.
    pub fn cancel_replacement(&self) -> Result<()> {
        self.replacer.cancel()
    }
}
