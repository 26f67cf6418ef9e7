//! Adding devices to a volume, and removing them.
//!
//! Nothing in the volume refers to a new device before the commit that has its item. That commit
//! writes the superblocks of the new device before those of the others. After a crash in between,
//! the volume opens without the new device, or with it if it is given.
//!
//! Nothing of the volume is on a device that is removed: no chunk has a stripe there. The commit
//! that removes its item writes no superblock to it. Only once the superblocks of the others are
//! durable is the device forgotten, and its own superblocks are wiped. A crash in between leaves a
//! device whose superblock is older than the others' and that the chunk tree does not list. The
//! next mount ignores it.

use std::collections::BTreeSet;
use std::sync::Arc;

use ubtrfs_format::WIPED_AT_ENDS;
use ubtrfs_format::items::DevItem;
use ubtrfs_format::{DeviceId, Generation, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Uuid};

use crate::buffer::Buffer;
use crate::device::{Device, DeviceWrite};
use crate::devices::VolumeDevices;
use crate::error::{Error, Result};
use crate::identity::VolumeIdentity;
use crate::member::Member;
use crate::replacing::TARGET;
use crate::shared_chunk_map::SharedChunkMap;
use crate::shared_state::SharedState;
use crate::superblocks::Superblocks;

/// The smallest size, in bytes, of a device that is added to a volume, or to which a device is
/// shrunk.
pub const MIN_DEVICE: u64 = 16 << 20;

/// Adds and removes devices of a volume.
#[derive(Debug)]
pub struct Membership {
    identity: Arc<VolumeIdentity>,
    chunk_map: Arc<SharedChunkMap>,
    devices: Arc<VolumeDevices>,
    superblocks: Arc<Superblocks>,
}

impl Membership {
    pub(crate) fn new(shared: SharedState, superblocks: Arc<Superblocks>) -> Self {
        let SharedState { identity, chunk_map, devices, .. } = shared;
        Self { identity, chunk_map, devices, superblocks }
    }

    /// Adds a device to the volume in memory, and returns its item. Wipes what is on the device.
    /// [`Self::announce`] announces the commit that has the item.
    pub fn add(&self, device: Arc<dyn Device>) -> Result<DevItem> {
        let _under_way = self.superblocks.begin()?;
        let sector = u64::from(self.identity.sector_size());
        let total_bytes = device.size() / sector * sector;
        if device.is_read_only() {
            return Err(Error::ReadOnly);
        }
        if total_bytes < MIN_DEVICE {
            return Err(Error::SmallDevice { have: total_bytes, need: MIN_DEVICE });
        }
        self.devices.change(|set| {
            let devid = number_of_new(&set.members.iter().map(|member| member.devid()).collect());
            let item = new_item(&self.identity, devid, total_bytes);
            wipe(&*device)?;
            set.members.push(Arc::new(Member::joining(device, item)));
            Ok(item)
        })
    }

    /// Notes that the commit of this generation has the item of a new device.
    pub fn announce(&self, devid: DeviceId, generation: Generation) -> Result<()> {
        self.devices.member(devid).map(|member| member.set_joining(generation))
    }

    /// Notes that the commit of this generation removes a device from the volume. Fails with
    /// `BadRequest` if a chunk has a stripe on it.
    pub fn remove(&self, devid: DeviceId, generation: Generation) -> Result<()> {
        let member = self.devices.member(devid)?;
        if self.chunk_map.uses(devid) {
            return Err(Error::BadRequest("a device with chunks can't be removed"));
        }
        member.set_leaving(generation);
        Ok(())
    }
}

/// Returns the item of a device that is new to the volume.
pub(crate) fn new_item(volume: &VolumeIdentity, devid: DeviceId, total_bytes: u64) -> DevItem {
    DevItem {
        devid,
        total_bytes,
        io_align: volume.sector_size(),
        io_width: volume.sector_size(),
        sector_size: volume.sector_size(),
        uuid: Uuid(*uuid::Uuid::new_v4().as_bytes()),
        fsid: volume.metadata_fsid(),
        ..DevItem::default()
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
