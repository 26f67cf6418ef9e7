//! The devices that a volume has at a point in time. Who writes looks at one such set from
//! beginning to end, whatever devices come meanwhile.

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
    /// The device that gets what one of them gets, to replace it.
    pub(crate) replacing: Option<Arc<Replacing>>,
}

impl DeviceSet {
    /// The device of this number.
    pub(crate) fn member(&self, devid: DeviceId) -> Result<&Arc<Member>> {
        self.members.iter().find(|member| member.devid() == devid).ok_or(Error::MissingDevice(devid))
    }

    /// The device that gets what this one gets.
    pub(crate) fn target_of(&self, devid: DeviceId) -> Option<&Arc<Member>> {
        let replacing = self.replacing.as_ref().filter(|replacing| replacing.source == devid)?;
        replacing.is_alive().then_some(&replacing.target)
    }

    /// Whether this device is read only where no other has the same.
    pub(crate) fn avoids(&self, devid: DeviceId) -> bool {
        self.replacing.as_ref().is_some_and(|replacing| replacing.avoids_source && replacing.source == devid)
    }

    /// All that something may be written to.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.present().filter(|member| member.is_written())
    }

    /// All that are there.
    pub(crate) fn present(&self) -> impl Iterator<Item = &Arc<Member>> {
        let target = self.replacing.iter().filter(|replacing| replacing.is_alive()).map(|replacing| &replacing.target);
        self.members.iter().filter(|member| !member.is_missing()).chain(target)
    }

    /// Whether it is one of these, or is to replace one.
    pub(crate) fn has(&self, member: &Member) -> bool {
        let is_same = |other: &Arc<Member>| std::ptr::eq(Arc::as_ptr(other), member);
        self.members.iter().any(is_same) || self.is_target(member)
    }

    /// Whether it is to replace one of these.
    pub(crate) fn is_target(&self, member: &Member) -> bool {
        self.replacing.as_ref().is_some_and(|replacing| std::ptr::eq(Arc::as_ptr(&replacing.target), member))
    }

    /// Devices that have all that was written, the only ones that get superblocks; no seeds.
    pub(crate) fn current(&self) -> impl Iterator<Item = &Arc<Member>> {
        self.members.iter().filter(|member| !member.lags() && !member.is_seed())
    }
}
