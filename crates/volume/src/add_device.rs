//! A device that a volume gets.
//!
//! Nothing of the volume refers to it before the commit that has its item. That commit writes its
//! superblocks before those of the others: a crash in between leaves the volume without it, or with
//! it if it is given.

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

/// The least bytes of a device that the volume gets, or that one is made smaller to.
pub const MIN_DEVICE: u64 = 16 << 20;

impl Volume {
    /// Makes a device one of the volume's, in memory: the commit that has its item is announced by
    /// [`Self::announce_device`]. What is on the device is wiped. Returns its item.
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

    /// The commit of this generation has the item of a new device.
    pub fn announce_device(&self, devid: DeviceId, generation: Generation) -> Result<()> {
        self.member(devid).map(|member| member.set_joining(generation))
    }

    /// The item of a device that is new.
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

/// The number of a new device beside these: above all of them, or the lowest that is free.
fn number_of_new(devices: &BTreeSet<DeviceId>) -> DeviceId {
    let above = devices.last().map_or(0, |last| last.0).checked_add(1).map(DeviceId);
    above.unwrap_or_else(|| (1..u64::MAX).map(DeviceId).find(|free| !devices.contains(free)).unwrap_or_default())
}

/// Wipes both ends of a device and the places of superblocks, and makes that durable: the device
/// takes writes. From then on others that would write to it are kept out.
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
