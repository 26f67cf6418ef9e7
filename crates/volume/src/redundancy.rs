//! Decides which devices the volume can do without: those that are missing or lag, as long as every
//! chunk has all of its data on the others (invariant 34). The record of how far a lagging device
//! has been brought up to the others holds as long as it misses nothing more (invariant 45).

use ubtrfs_errors::sentence;
use ubtrfs_format::{DeviceId, Generation, Resilvered, Superblock};

use crate::error::{Error, Result};
use crate::member::{DeviceErrorKind, DeviceErrors, Member};
use crate::volume::Volume;

impl Volume {
    /// Returns whether the devices that are not lost have the data of all chunks.
    pub(crate) fn survives(&self, lost: impl Fn(DeviceId) -> bool) -> bool {
        self.map.read().survives(lost)
    }

    /// Handles a device that has failed a write or a flush. If the others have all that it should
    /// have got, it lags from now on, and the operation counts as successful. Otherwise this
    /// returns the error.
    pub(crate) fn tolerate(&self, member: &Member, kind: DeviceErrorKind, error: Error) -> Result<()> {
        if !self.devices.load().has(member) {
            // The device was replaced or released meanwhile: other devices have what it lacks.
            return Ok(());
        }
        member.note_error(kind);
        member.note_missed();
        // One device at a time is judged, since each may be the last one that the volume can do
        // without.
        let _turn = self.giving_up.lock();
        if member.lags() {
            self.note_overcome(&error);
            return Ok(());
        }
        if self.devices.load().is_target(member) {
            tracing::error!("{}: this device replaces no other one any more", sentence(&error));
            self.note_overcome(&error);
            member.set_lagging(false);
            return Ok(());
        }
        let (set, devid) = (self.devices.load(), member.devid());
        let lost = |id: DeviceId| id == devid || set.member(id).is_ok_and(|member| member.lags());
        if !self.survives(lost) || set.current().all(|other| other.devid() == devid) {
            return Err(error);
        }
        tracing::error!("{}: the other devices have it; device {devid} is behind them from now on", sentence(&error));
        self.note_overcome(&error);
        member.set_lagging(false);
        Ok(())
    }

    /// Notes an error of a device that no caller gets.
    fn note_overcome(&self, error: &Error) {
        if let Some(fault) = error.device_fault() {
            self.faults.note(sentence(error), fault);
        }
    }

    /// Returns whether a device lags and a crash would leave no trace of that. Then a commit is
    /// due, and nothing that was written since counts as durable before that commit.
    pub fn has_secret_lag(&self) -> bool {
        let set = self.devices.load();
        let target = set.replacing.iter().map(|replacing| &replacing.target);
        set.members.iter().chain(target).any(|member| member.lags_in_secret())
    }

    /// Returns whether a commit has to write something about the devices though nothing else has
    /// changed: one [lags in secret](Self::has_secret_lag), or one of several has failed, which its
    /// `DEV_STATS` item has to record.
    pub fn wants_commit(&self) -> bool {
        self.has_secret_lag() || self.devices.load().members.len() > 1 && !self.unsaved_device_errors().is_empty()
    }

    /// Returns the devices that are there and lack something that the others have.
    pub fn lagging_devices(&self) -> Vec<DeviceId> {
        let set = self.devices.load();
        set.members.iter().filter(|member| member.lags() && !member.is_missing()).map(|member| member.devid()).collect()
    }

    /// Returns the commit of which a device that lags has everything, or `None` if that is not
    /// known, since its superblock may be of another history than the volume's.
    pub fn has_all_of(&self, devid: DeviceId) -> Option<Generation> {
        self.member(devid).ok().filter(|member| member.shares_history()).and_then(|member| member.has_all_of())
    }

    /// Returns how often a device has failed to keep what was written to it since it was opened.
    pub fn missed_writes(&self, devid: DeviceId) -> u64 {
        self.member(devid).map_or(0, |member| member.missed())
    }

    /// Has a lagging device take writes again though a flush has failed. It is about to be brought
    /// up to the others, by comparing everything that it is not known to have.
    pub fn take_writes_again(&self, devid: DeviceId) {
        if let Ok(member) = self.member(devid)
            && member.lags()
        {
            member.device.take_writes_again();
        }
    }

    /// Notes that a lagging device, which had missed that many writes, has been brought up to the
    /// others: it gets superblocks again. Does nothing if it has missed more writes since. Returns
    /// whether the device is current.
    pub fn set_device_current(&self, devid: DeviceId, missed: u64) -> bool {
        let Ok(member) = self.member(devid) else { return false };
        // Excludes writers of superblocks, which leave out the devices that lag.
        let _published = self.publishing.lock();
        let _turn = self.giving_up.lock();
        let is_current = !member.is_missing() && member.missed() == missed;
        if is_current {
            member.set_current();
            self.resilvered.lock().take_if(|(it, _)| it.devid == devid);
        }
        is_current
    }

    /// Returns how far a device that lags has been brought up to the others, also in an earlier
    /// mount, or `None` if that is not known.
    pub fn resilvered(&self, devid: DeviceId) -> Option<Resilvered> {
        let (has, then) = (self.has_all_of(devid), *self.resilvered.lock());
        self.still_resilvered(then).filter(|it| it.devid == devid && Some(it.has) == has)
    }

    /// Notes how far a lagging device, which had missed that many writes, has been brought up. The
    /// next commit records this if the device has not missed more until then.
    pub fn set_resilvered(&self, resilvered: Resilvered, missed: u64) {
        *self.resilvered.lock() = Some((resilvered, missed));
    }

    /// Returns `then`'s record of how far a device was brought up, unless the device has missed
    /// writes since or no longer lags.
    pub(crate) fn still_resilvered(&self, then: Option<(Resilvered, u64)>) -> Option<Resilvered> {
        let (resilvered, missed) = then?;
        let set = self.devices.load();
        let member = set.member(resilvered.devid).ok()?;
        (member.lags() && !member.is_missing() && member.missed() == missed).then_some(resilvered)
    }

    /// Takes over from a superblock how far a lagging device was brought up (invariant 45). The
    /// record holds only if ubtrfs wrote the superblock last, since it has noted everything that
    /// the device has missed. Kernels note nothing, and a log may have been written without the
    /// device.
    pub(crate) fn remember_resilvered(&self, by: &Superblock, member: &Member) {
        let has = member.has_all_of().filter(|has| *has <= by.generation);
        let is_of_it = |it: &Resilvered| it.devid == member.devid() && Some(it.has) == has;
        if by.is_of_ubtrfs()
            && by.log_root.0 == 0
            && member.shares_history()
            && let Some(resilvered) = by.resilvered.filter(is_of_it)
        {
            self.set_resilvered(resilvered, member.missed());
        }
    }

    /// Returns how often each device has failed.
    pub fn device_errors(&self) -> Vec<(DeviceId, DeviceErrors)> {
        self.devices.load().members.iter().map(|member| (member.devid(), member.errors())).collect()
    }

    /// Returns the error counters of the devices whose `DEV_STATS` items have other values, without
    /// the devices that are being removed.
    pub fn unsaved_device_errors(&self) -> Vec<(DeviceId, DeviceErrors)> {
        let set = self.devices.load();
        let staying = set.members.iter().filter(|member| !member.is_leaving());
        staying.filter_map(|member| Some((member.devid(), member.unsaved_errors()?))).collect()
    }

    /// Notes that a device's `DEV_STATS` item has these counters now.
    pub fn note_saved_device_errors(&self, devid: DeviceId, errors: DeviceErrors) -> Result<()> {
        self.member(devid).map(|member| member.note_saved(errors))
    }

    /// Adds the counters of a device's `DEV_STATS` item to those of [`Self::device_errors`], which
    /// count only its failures since it was opened.
    pub fn add_device_errors(&self, devid: DeviceId, errors: DeviceErrors) -> Result<()> {
        self.member(devid).map(|member| member.add_errors(errors))
    }

    /// Sets the counters that [`Self::device_errors`] shows of a device to zero.
    pub fn reset_device_errors(&self, devid: DeviceId) -> Result<()> {
        self.member(devid).map(|member| member.reset_errors())
    }
}
