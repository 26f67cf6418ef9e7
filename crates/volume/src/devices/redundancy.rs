//! Decides which devices the volume can do without: those that are missing or lag, as long as every
//! chunk has all of its data on the others (invariant 34).

use ubtrfs_errors::sentence;
use ubtrfs_format::{DeviceId, Generation};

use crate::devices::VolumeDevices;
use crate::error::{Error, Result};
use crate::member::{DeviceErrorKind, DeviceErrors, Member};

impl VolumeDevices {
    /// Handles a device that has failed a write or a flush. If the others have all that it should
    /// have got, it lags from now on, and the operation counts as successful. Otherwise this
    /// returns the error.
    pub(crate) fn tolerate(&self, member: &Member, kind: DeviceErrorKind, error: Error) -> Result<()> {
        if !self.set().has(member) {
            // The device was replaced or released meanwhile: other devices have what it lacks.
            return Ok(());
        }
        member.note_error(kind);
        member.note_missed();
        // One device at a time is judged, since each may be the last one that the volume can do
        // without.
        let _turn = self.judging();
        if member.lags() {
            self.note_overcome(&error);
            return Ok(());
        }
        if self.set().is_target(member) {
            tracing::error!("{}: this device replaces no other one any more", sentence(&error));
            self.note_overcome(&error);
            member.set_lagging(false);
            return Ok(());
        }
        let (set, devid) = (self.set(), member.devid());
        let lost = |id: DeviceId| id == devid || set.member(id).is_ok_and(|member| member.lags());
        if !self.survive(lost) || set.current().all(|other| other.devid() == devid) {
            return Err(error);
        }
        tracing::error!("{}: the other devices have it; device {devid} is behind them from now on", sentence(&error));
        self.note_overcome(&error);
        member.set_lagging(false);
        Ok(())
    }

    /// Returns whether a device lags and a crash would leave no trace of that. Then a commit is
    /// due, and nothing that was written since counts as durable before that commit.
    pub fn have_secret_lag(&self) -> bool {
        let set = self.set();
        let target = set.replacing.iter().map(|replacing| &replacing.target);
        set.members.iter().chain(target).any(|member| member.lags_in_secret())
    }

    /// Returns whether a commit has to write something about the devices though nothing else has
    /// changed: one [lags in secret](Self::have_secret_lag), or one of several has failed, which
    /// its `DEV_STATS` item has to record.
    pub fn want_commit(&self) -> bool {
        self.have_secret_lag() || self.set().members.len() > 1 && !self.unsaved_errors().is_empty()
    }

    /// Returns the devices that are there and lack something that the others have.
    pub fn lagging(&self) -> Vec<DeviceId> {
        let set = self.set();
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

    /// Returns how often each device has failed.
    pub fn errors(&self) -> Vec<(DeviceId, DeviceErrors)> {
        self.set().members.iter().map(|member| (member.devid(), member.errors())).collect()
    }

    /// Returns the error counters of the devices whose `DEV_STATS` items have other values, without
    /// the devices that are being removed.
    pub fn unsaved_errors(&self) -> Vec<(DeviceId, DeviceErrors)> {
        let set = self.set();
        let staying = set.members.iter().filter(|member| !member.is_leaving());
        staying.filter_map(|member| Some((member.devid(), member.unsaved_errors()?))).collect()
    }

    /// Notes that a device's `DEV_STATS` item has these counters now.
    pub fn note_saved_errors(&self, devid: DeviceId, errors: DeviceErrors) -> Result<()> {
        self.member(devid).map(|member| member.note_saved(errors))
    }

    /// Adds the counters of a device's `DEV_STATS` item to those of [`Self::errors`], which
    /// count only its failures since it was opened.
    pub fn add_errors(&self, devid: DeviceId, errors: DeviceErrors) -> Result<()> {
        self.member(devid).map(|member| member.add_errors(errors))
    }

    /// Sets the counters that [`Self::errors`] shows of a device to zero.
    pub fn reset_errors(&self, devid: DeviceId) -> Result<()> {
        self.member(devid).map(|member| member.reset_errors())
    }
}
