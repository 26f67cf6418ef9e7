//! Operations that add, remove and resize devices, without a change that programs see.

use ubtrfs::{Errno, Error};
use ubtrfs_format::DeviceId;

use super::Worker;
use crate::Operation;
use crate::mounting::has_superblock;
use crate::operation::DeviceChange;

/// Returns whether an error has a reason: there may be too few devices for the profiles of the
/// volume, or too little space on them; and without a free-space tree no chunk can be removed.
fn has_reason(error: &Error) -> bool {
    matches!(error.errno(), Errno::NOSPC | Errno::INVAL | Errno::OPNOTSUPP)
}

impl Worker {
    pub(super) fn change_devices(&mut self, operation: &Operation, change: DeviceChange) -> Result<(), String> {
        let result = match change {
            DeviceChange::Add => {
                let Some(blank) = self.devices.iter().find(|device| !has_superblock(&***device)) else { return Ok(()) };
                self.fs.add_device(blank.clone()).map(drop)
            }
            DeviceChange::Remove { number } => {
                let Some(devid) = self.member(number) else { return Ok(()) };
                self.fs.relocator().remove_device(devid, &|_| true)
            }
            DeviceChange::Resize { number, parts } => {
                let Some(devid) = self.member(number) else { return Ok(()) };
                let Ok(bytes) = self.fs.volume().devices().size(devid) else { return Ok(()) };
                self.fs.relocator().resize_device(devid, bytes / DeviceChange::PARTS * parts, &|_| true)
            }
        };
        let result = result.or_else(|error| if has_reason(&error) { Ok(()) } else { Err(error) });
        self.agree(operation, Ok(()), result).map(drop)
    }

    /// Returns a device of the volume; the number is taken modulo their count.
    fn member(&self, number: usize) -> Option<DeviceId> {
        let devices = self.fs.volume().devices().items();
        devices.get(number % devices.len().max(1)).map(|item| item.devid)
    }
}
