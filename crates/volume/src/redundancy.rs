//! What the volume can do without: devices that are missing or lag, as long as every chunk has all
//! of its data on the others (invariant 34).

use ubtrfs_format::{DeviceId, Generation};

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
        // One after the other, since each may be the last that can be done without.
        let _turn = self.giving_up.lock();
        if member.lags() {
            self.note_overcome(&error);
            return Ok(());
        }
        if self.devices.load().is_target(member) {
            tracing::error!("{error}: this device replaces no other one any more");
            self.note_overcome(&error);
            member.set_lagging(false);
            return Ok(());
        }
        let (set, devid) = (self.devices.load(), member.devid());
        let lost = |id: DeviceId| id == devid || set.member(id).is_ok_and(|member| member.lags());
        if !self.survives(lost) || set.current().all(|other| other.devid() == devid) {
            return Err(error);
        }
        tracing::error!("{error}: the other devices have it; device {devid} is behind them from now on");
        self.note_overcome(&error);
        member.set_lagging(false);
        Ok(())
    }

    /// Notes an error of a device that nobody gets to see.
    fn note_overcome(&self, error: &Error) {
        if let Some(fault) = error.device_fault() {
            self.faults.note(error.to_string(), fault);
        }
    }

    /// Whether a device lags and a crash would leave no trace of it: then a commit is due, and
    /// nothing that was written since counts as durable before it.
    pub fn has_secret_lag(&self) -> bool {
        let set = self.devices.load();
        let target = set.replacing.iter().map(|replacing| &replacing.target);
        set.members.iter().chain(target).any(|member| member.lags_in_secret())
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

    /// A device that lagged has been brought up to the others since it had failed so often: it gets
    /// superblocks again. Not if it has failed a write or a flush since: returns whether it is so.
    pub fn set_device_current(&self, devid: DeviceId, before: DeviceErrors) -> bool {
        let Ok(member) = self.member(devid) else { return false };
        // Not while superblocks are written, which leave out the devices that lag.
        let _published = self.publishing.lock();
        let _turn = self.giving_up.lock();
        let now = member.errors();
        let is_same = |kind| now.of(kind) == before.of(kind);
        let is_current = !member.is_missing() && is_same(DeviceErrorKind::Write) && is_same(DeviceErrorKind::Flush);
        if is_current {
            member.set_current();
        }
        is_current
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
