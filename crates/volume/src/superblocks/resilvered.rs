//! How far a device that lags has been brought up to the others. The record holds as long as the
//! device misses nothing more (invariant 45).

use std::sync::Arc;

use ubtrfs_format::{DeviceId, Resilvered, Superblock};
use ubtrfs_threads::{Mutex, Rank};

use crate::devices::VolumeDevices;
use crate::member::Member;

/// A record of how far a device had been brought up, and how many writes it had missed then.
type Resilver = (Resilvered, u64);

/// The record of the last resilver.
#[derive(Debug)]
pub(crate) struct ResilverRecord {
    last: Mutex<Option<Resilver>>,
    devices: Arc<VolumeDevices>,
}

impl ResilverRecord {
    pub(crate) fn new(devices: Arc<VolumeDevices>) -> Self {
        Self { last: Mutex::with_default(Rank::Resilvered), devices }
    }

    /// Returns the record as it is, for [`Self::if_it_holds`] later.
    pub(crate) fn last(&self) -> Option<Resilver> {
        *self.last.lock()
    }

    /// Notes how far a lagging device, which had missed that many writes, has been brought up.
    pub(crate) fn set(&self, resilvered: Resilvered, missed: u64) {
        *self.last.lock() = Some((resilvered, missed));
    }

    /// Forgets the record of a device that is current.
    pub(crate) fn forget(&self, devid: DeviceId) {
        self.last.lock().take_if(|(it, _)| it.devid == devid);
    }

    /// Returns how far a device that lags has been brought up to the others, also in an earlier
    /// mount, or `None` if that is not known.
    pub(crate) fn of(&self, devid: DeviceId) -> Option<Resilvered> {
        let (has, then) = (self.devices.has_all_of(devid), self.last());
        self.if_it_holds(then).filter(|it| it.devid == devid && Some(it.has) == has)
    }

    /// Returns `then`'s record of how far a device was brought up, unless the device has missed
    /// writes since or no longer lags.
    pub(crate) fn if_it_holds(&self, then: Option<Resilver>) -> Option<Resilvered> {
        let (resilvered, missed) = then?;
        let set = self.devices.set();
        let member = set.member(resilvered.devid).ok()?;
        (member.lags() && !member.is_missing() && member.missed() == missed).then_some(resilvered)
    }

    /// Takes over from a superblock how far a lagging device was brought up (invariant 45). The
    /// record holds only if ubtrfs wrote the superblock last, since it has noted everything that
    /// the device has missed. Kernels note nothing, and a log may have been written without the
    /// device.
    pub(crate) fn remember(&self, by: &Superblock, member: &Member) {
        let has = member.has_all_of().filter(|has| *has <= by.generation);
        let is_of_it = |it: &Resilvered| it.devid == member.devid() && Some(it.has) == has;
        if by.is_of_ubtrfs()
            && by.log_root.0 == 0
            && member.shares_history()
            && let Some(resilvered) = by.resilvered.filter(is_of_it)
        {
            self.set(resilvered, member.missed());
        }
    }
}
