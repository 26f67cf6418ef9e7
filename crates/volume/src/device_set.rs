//! The devices that a volume has at a point in time. A writer uses one such set from beginning to
//! end, whatever devices are added meanwhile.

use std::sync::Arc;

use ubtrfs_format::DeviceId;

use crate::error::{Error, Result};
use crate::member::Member;
use crate::replacing::Replacing;

/// The devices of a volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeviceSet {
    /// By their numbers.
    pub(crate) members: Vec<Arc<Member>>,
    /// The device that is to replace one of them, and gets all writes that this one gets.
    pub(crate) replacing: Option<Arc<Replacing>>,
}

impl DeviceSet {
    /// Returns the device of this number.
    pub(crate) fn member(&self, devid: DeviceId) -> Result<&Arc<Member>> {
        self.members.iter().find(|member| member.devid() == devid).ok_or(Error::MissingDevice(devid))
    }

    /// Returns the size of a device by its item, in bytes.
    pub(crate) fn bytes_of(&self, devid: DeviceId) -> Option<u64> {
        self.member(devid).ok().map(|member| member.item.lock().total_bytes)
    }

    /// Returns the device that is to replace this one, if it still gets this one's writes.
    pub(crate) fn target_of(&self, devid: DeviceId) -> Option<&Arc<Member>> {
        let replacing = self.replacing.as_ref().filter(|replacing| replacing.source == devid)?;
        replacing.is_alive().then_some(&replacing.target)
    }

    /// Returns whether this device is only read where no other device has the same data.
    pub(crate) fn avoids(&self, devid: DeviceId) -> bool {
        self.replacing.as_ref().is_some_and(|replacing| replacing.avoids_source && replacing.source == devid)
    }

    /// Returns all devices that may be written to.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.present().filter(|member| member.is_written())
    }

    /// Returns all devices that are there, including the one that replaces another.
    pub(crate) fn present(&self) -> impl Iterator<Item = &Arc<Member>> {
        let target = self.replacing.iter().filter(|replacing| replacing.is_alive()).map(|replacing| &replacing.target);
        self.members.iter().filter(|member| !member.is_missing()).chain(target)
    }

    /// Returns whether the device is in this set, or is to replace one that is.
    pub(crate) fn has(&self, member: &Member) -> bool {
        let is_same = |other: &Arc<Member>| std::ptr::eq(Arc::as_ptr(other), member);
        self.members.iter().any(is_same) || self.is_target(member)
    }

    /// Returns whether the device is to replace one of this set.
    pub(crate) fn is_target(&self, member: &Member) -> bool {
        self.replacing.as_ref().is_some_and(|replacing| std::ptr::eq(Arc::as_ptr(&replacing.target), member))
    }

    /// Returns the devices that have everything that was written and are no seeds. Only they get
    /// superblocks.
    pub(crate) fn current(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.iter().filter(|member| !member.lags() && !member.is_seed())
    }
}
