//! Adding a device to a volume.
//!
//! Nothing in the volume refers to the new device before the commit that has its item. That commit
//! writes the superblocks of the new device before those of the others. After a crash in between,
//! the volume opens without the new device, or with it if it is given.

use std::collections::BTreeSet;
use std::sync::Arc;

use ubtrfs_format::WIPED_AT_ENDS;
use ubtrfs_format::items::DevItem;
use ubtrfs_format::{DeviceId, Generation, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Uuid};

use crate::buffer::Buffer;
use crate::device::{Device, DeviceWrite};
use crate::error::{Error, Result};
use crate::member::Member;
use crate::replacing::TARGET;
use crate::volume::Volume;

/// The smallest size, in bytes, of a device that is added to a volume, or to which a device is
/// shrunk.
pub const MIN_DEVICE: u64 = 16 << 20;

impl Volume {
    /// Adds a device to the volume in memory, and returns its item. Wipes what is on the device.
    /// [`Self::announce_device`] announces the commit that has the item.
    pub fn add_device(&self, device: Arc<dyn Device>) -> Result<DevItem> {
        let _under_way = self.begin()?;
        let sector = u64::from(self.sector_size());
        let total_bytes = device.size() / sector * sector;
        if device.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if total_bytes < MIN_DEVICE {
            return Err(Error::SmallDevice { have: total_bytes, need: MIN_DEVICE });
        }
        let _turn = self.changing_devices.lock();
        let mut set = (*self.devices.load_full()).clone();
        let devid = number_of_new(&set.members.iter().map(|member| member.devid()).collect());
        let item = self.new_item(devid, total_bytes);
        wipe(&*device)?;
        set.members.push(Arc::new(Member::joining(device, item)));
        let _not_while_others_write = self.submissions.write();
        self.devices.store(Arc::new(set));
        Ok(item)
    }

    /// Notes that the commit of this generation has the item of a new device.
    pub fn announce_device(&self, devid: DeviceId, generation: Generation) -> Result<()> {
        self.member(devid).map(|member| member.set_joining(generation))
    }

    /// Returns the item of a new device.
    pub(crate) fn new_item(&self, devid: DeviceId, total_bytes: u64) -> DevItem {
        DevItem {
            devid,
            total_bytes,
            io_align: self.sector_size(),
            io_width: self.sector_size(),
            sector_size: self.sector_size(),
            uuid: Uuid(*uuid::Uuid::new_v4().as_bytes()),
            fsid: self.metadata_fsid(),
            ..DevItem::default()
        }
    }
}

/// Returns the number of a device that is added to these: one above the highest, or the lowest free
/// one if there is none above.
fn number_of_new(devices: &BTreeSet<DeviceId>) -> DeviceId {
    let above = devices.last().map_or(0, |last| last.0).checked_add(1).map(DeviceId);
    above.unwrap_or_else(|| (1..u64::MAX).map(DeviceId).find(|free| !devices.contains(free)).unwrap_or_default())
}

/// Wipes both ends of a device and the places of superblocks, and makes that durable. From then on
/// the device keeps out others that would write to it.
pub fn wipe(device: &dyn Device) -> Result<()> {
    let size = device.size() / SUPERBLOCK_SIZE as u64 * SUPERBLOCK_SIZE as u64;
    let ends = [(0, WIPED_AT_ENDS), (size.saturating_sub(WIPED_AT_ENDS), WIPED_AT_ENDS)];
    let copies = SUPERBLOCK_COPIES.iter().map(|at| (at.0, SUPERBLOCK_SIZE as u64));
    let is_within = |(at, len): &(u64, u64)| at + len <= size;
    for (at, len) in copies.chain(ends).filter(is_within) {
        zero(device, at, len)?;
    }
    let failed = |source| Error::Flush { devid: TARGET, source };
    device.flush().map_err(failed)?;
    device.protect().map_err(failed)
}

fn zero(device: &dyn Device, at: u64, len: u64) -> Result<()> {
    let data = Buffer::zeroed(len as usize).share();
    let written = device.submit(vec![DeviceWrite { at: Physical(at), data }]).wait();
    written.map_err(|error| Error::writing(TARGET, error, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_device_has_a_number_of_its_own() {
        let of = |numbers: &[u64]| number_of_new(&numbers.iter().copied().map(DeviceId).collect()).0;
        assert_eq!(of(&[1, 5]), 6);
        assert_eq!(of(&[1, 2, u64::MAX]), 3);
        assert_eq!(of(&[u64::MAX]), 1);
    }
}
