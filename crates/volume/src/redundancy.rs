//! What the volume can do without: devices that are missing or lag, as long as every chunk has all
//! of its data on the others (invariant 34). How far one of them has been brought up to the others
//! is known as long as it misses nothing more (invariant 60).

use ubtrfs_errors::sentence;
use ubtrfs_format::{DeviceId, Generation, Resilvered, Superblock};

use crate::error::{Error, Result};
use crate::member::{DeviceErrorKind, DeviceErrors, Member};
use crate::volume::Volume;

impl Volume {
    /// Whether the data of all chunks is on devices other than these.
    pub(crate) fn survives(&self, lost: impl Fn(DeviceId) -> bool) -> bool {
        self.map.read().survives(lost)
    }

    /// A device has failed a write or a flush. If the others have all that it should have got, it
    /// lags from now on, and the operation has succeeded; else it has failed with this error.
    pub(crate) fn tolerate(&self, member: &Member, kind: DeviceErrorKind, error: Error) -> Result<()> {
        if !self.devices.load().has(member) {
            // It was replaced or let go meanwhile: what it lacks is elsewhere.
            return Ok(());
        }
        member.note_error(kind);
        member.note_missed();
        // One after the other, since each may be the last that can be done without.
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

    /// Notes an error of a device that nobody gets to see.
    fn note_overcome(&self, error: &Error) {
        if let Some(fault) = error.device_fault() {
            self.faults.note(sentence(error), fault);
        }
    }

    /// Whether a device lags and a crash would leave no trace of it: then a commit is due, and
    /// nothing that was written since counts as durable before it.
    pub fn has_secret_lag(&self) -> bool {
        let set = self.devices.load();
        let target = set.replacing.iter().map(|replacing| &replacing.target);
        set.members.iter().chain(target).any(|member| member.lags_in_secret())
    }

    /// Whether devices have something that a commit is to write though nothing else has changed:
    /// one [lags in secret](Self::has_secret_lag), or one of several has failed, of which its
    /// `DEV_STATS` item is to tell.
    pub fn wants_commit(&self) -> bool {
        self.has_secret_lag() || self.devices.load().members.len() > 1 && !self.unsaved_device_errors().is_empty()
    }

    /// The devices that lack something that the others have, and are there.
    pub fn lagging_devices(&self) -> Vec<DeviceId> {
        let set = self.devices.load();
        set.members.iter().filter(|member| member.lags() && !member.is_missing()).map(|member| member.devid()).collect()
    }

    /// The commit of which a device that lags has everything; `None` if that is not known, since
    /// its superblock may be of another history than the volume's.
    pub fn has_all_of(&self, devid: DeviceId) -> Option<Generation> {
        self.member(devid).ok().filter(|member| member.shares_history()).and_then(|member| member.has_all_of())
    }

    /// How often a device has not kept what was written to it since it was opened.
    pub fn missed_writes(&self, devid: DeviceId) -> u64 {
        self.member(devid).map_or(0, |member| member.missed())
    }

    /// A device that lags is about to be brought up to the others, by comparing all that it has not
    /// been known to have: it is to take writes again though a flush has failed.
    pub fn take_writes_again(&self, devid: DeviceId) {
        if let Ok(member) = self.member(devid)
            && member.lags()
        {
            member.device.take_writes_again();
        }
    }

    /// A device that lagged has been brought up to the others since it had missed so many writes:
    /// it gets superblocks again. Not if it has missed more since: returns whether it is so.
    pub fn set_device_current(&self, devid: DeviceId, missed: u64) -> bool {
        let Ok(member) = self.member(devid) else { return false };
        // Not while superblocks are written, which leave out the devices that lag.
        let _published = self.publishing.lock();
        let _turn = self.giving_up.lock();
        let is_current = !member.is_missing() && member.missed() == missed;
        if is_current {
            member.set_current();
            self.resilvered.lock().take_if(|(it, _)| it.devid == devid);
        }
        is_current
    }

    /// How far a device that lags has been brought up to the others, also in an earlier mount;
    /// `None` if nobody knows.
    pub fn resilvered(&self, devid: DeviceId) -> Option<Resilvered> {
        let (has, then) = (self.has_all_of(devid), *self.resilvered.lock());
        self.still_resilvered(then).filter(|it| it.devid == devid && Some(it.has) == has)
    }

    /// A device that lags has been brought up so far since it had missed so many writes. The next
    /// commit remembers it, if the device has not missed more until then.
    pub fn set_resilvered(&self, resilvered: Resilvered, missed: u64) {
        *self.resilvered.lock() = Some((resilvered, missed));
    }

    /// How far a device was brought up at some time, unless it has missed writes since, or lags no
    /// more.
    pub(crate) fn still_resilvered(&self, then: Option<(Resilvered, u64)>) -> Option<Resilvered> {
        let (resilvered, missed) = then?;
        let set = self.devices.load();
        let member = set.member(resilvered.devid).ok()?;
        (member.lags() && !member.is_missing() && member.missed() == missed).then_some(resilvered)
    }

    /// Invariant 60. A device lags: what this superblock says of how far it was brought up holds if
    /// ubtrfs wrote it last, which has noted all that the device has missed. Kernels note nothing,
    /// and what is in a log may have been written without the device.
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

    /// How often each device has failed.
    pub fn device_errors(&self) -> Vec<(DeviceId, DeviceErrors)> {
        self.devices.load().members.iter().map(|member| (member.devid(), member.errors())).collect()
    }

    /// How often those devices have failed of which the volume keeps other counters, but for those
    /// that are about to leave.
    pub fn unsaved_device_errors(&self) -> Vec<(DeviceId, DeviceErrors)> {
        let set = self.devices.load();
        let staying = set.members.iter().filter(|member| !member.is_leaving());
        staying.filter_map(|member| Some((member.devid(), member.unsaved_errors()?))).collect()
    }

    /// The volume keeps these counters of a device.
    pub fn note_saved_device_errors(&self, devid: DeviceId, errors: DeviceErrors) -> Result<()> {
        self.member(devid).map(|member| member.note_saved(errors))
    }

    /// Adds what a device's `DEV_STATS` item has to what [`Self::device_errors`] shows of it: what
    /// it has failed at since it was opened.
    pub fn add_device_errors(&self, devid: DeviceId, errors: DeviceErrors) -> Result<()> {
        self.member(devid).map(|member| member.add_errors(errors))
    }

    /// From here on [`Self::device_errors`] shows that a device has never failed.
    pub fn reset_device_errors(&self, devid: DeviceId) -> Result<()> {
        self.member(devid).map(|member| member.reset_errors())
    }
}
