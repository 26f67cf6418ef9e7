//! Removing a device from a volume.
//!
//! Nothing of the volume is on the device any more: no chunk has a stripe there. The commit that
//! removes its item writes no superblock to it. Only once the superblocks of the others are durable
//! is the device forgotten, and its own superblocks are wiped. A crash in between leaves a device
//! whose superblock is older than the others' and that the chunk tree does not list. The next mount
//! ignores it.

use std::sync::Arc;

use ubtrfs_format::{DeviceId, Generation};

use crate::error::{Error, Result};
use crate::member::Member;
use crate::replacing::forget_volume;
use crate::volume::Volume;

impl Volume {
    /// Notes that the commit of this generation removes a device from the volume. Fails with
    /// `BadRequest` if a chunk has a stripe on it.
    pub fn remove_device(&self, devid: DeviceId, generation: Generation) -> Result<()> {
        let member = self.member(devid)?;
        let has_stripe = self.map.read().iter().any(|(_, chunk)| chunk.stripes.iter().any(|it| it.devid == devid));
        if has_stripe {
            return Err(Error::BadRequest("a device with chunks can't be removed"));
        }
        member.set_leaving(generation);
        Ok(())
    }

    /// Wipes and forgets the devices that the commit of this generation removes. Its superblocks
    /// are durable.
    pub(crate) fn forget_removed(&self, generation: Generation) {
        let leaves = |member: &Arc<Member>| member.leaves_by(generation);
        if !self.devices.load().members.iter().any(leaves) {
            return;
        }
        let _turn = self.changing_devices.lock();
        let mut set = (*self.devices.load_full()).clone();
        let (removed, kept): (Vec<_>, Vec<_>) = set.members.into_iter().partition(leaves);
        set.members = kept;
        self.devices.store(Arc::new(set));
        removed.iter().filter(|member| !member.is_seed()).for_each(|member| forget_volume(member));
    }
}
