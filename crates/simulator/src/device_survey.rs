//! Examines crash states of volumes on several devices, also with a fault of one of the devices.

use ubtrfs_mkfs::Profile;
use ubtrfs_volume::OverlayDevice;

use crate::device_fault::devid;
use crate::examine::examine_as_it_is;
use crate::mounting::{forks, members, open_volume};
use crate::redundancy::Trial;
use crate::{CrashPoint, Crashes, DeviceFault, Failure, Found, Node, Profiles, Random, Recorded, examine_devices};

/// One in so many states is also examined with a fault of a device.
const FAULT_EVERY: u64 = 4;

/// What a survey of several devices found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSurvey {
    /// States of all devices, including those with a fault of a device.
    pub states: usize,
    /// Volumes that had more than their last commit.
    pub with_log: usize,
    /// States with a device gone.
    pub gone: usize,
    /// States with a device of an earlier time.
    pub stale: usize,
    /// States with a device that returned noise.
    pub garbage: usize,
    /// States with a device that had lost writes.
    pub lost: usize,
    /// States in which a device had refused requests before the crash.
    pub failed: usize,
    /// States whose devices were used without each other.
    pub apart: usize,
    /// Volumes that were mended, and had all copies afterwards.
    pub mended: usize,
}

/// How the devices of a volume are surveyed.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceHabits {
    /// A device that refused requests, and may lack data that the others have.
    pub failed: Option<usize>,
    /// Epochs are removed from superblocks, so that nothing shows that devices were used apart.
    pub forgets_epochs: bool,
}

impl DeviceSurvey {
    /// Returns the sum of two surveys.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            states: self.states + other.states,
            with_log: self.with_log + other.with_log,
            gone: self.gone + other.gone,
            stale: self.stale + other.stale,
            garbage: self.garbage + other.garbage,
            lost: self.lost + other.lost,
            failed: self.failed + other.failed,
            apart: self.apart + other.apart,
            mended: self.mended + other.mended,
        }
    }
}

impl Recorded {
    /// Examines about `budget` crash states of a volume with these profiles, and some of them with
    /// one device at fault, or with devices that are used without each other.
    pub fn survey_devices(
        &self,
        profiles: Profiles,
        budget: usize,
        habits: DeviceHabits,
    ) -> Result<DeviceSurvey, Failure> {
        let failed = habits.failed;
        let mut random = Random::new(self.seed ^ 0xde71);
        let mut sum = DeviceSurvey::default();
        for (point, devices) in Crashes::new(&self.recording, self.seed, budget).of_all() {
            let fail = |what| self.failure(point, what);
            let mut one = DeviceSurvey { states: 1, ..DeviceSurvey::default() };
            let found = if failed.is_some() {
                one.failed = 1;
                examine_as_it_is(&self.judge, &devices, point.event, None)
            } else {
                examine_devices(&self.judge, &devices, point.event)
            };
            let found = found.map_err(fail)?;
            one.with_log = usize::from(found.has_log);
            if random.one_in(FAULT_EVERY) {
                let is_redundant = profiles.are_redundant();
                let trial = Trial { judge: &self.judge, event: point.event, seed: random.number(), is_redundant };
                if failed.is_none() && profiles.are_on_each_device() && random.one_in(3) {
                    let (place, keeps_one) = (random.below(profiles.devices) as usize, random.one_in(2));
                    trial.take_apart(&devices, place, keeps_one, habits.forgets_epochs).map_err(fail)?;
                    (one.apart, one.mended) = (1, 1);
                } else if failed.is_some() && random.one_in(2) {
                    trial.endure(&devices, None).map_err(fail)?;
                    one.mended = 1;
                } else if let Some(fault) = self.fault(&mut random, profiles, point, &devices, &found, failed) {
                    let of_fault = |what| fail(format!("{fault:?}: {what}"));
                    let after = self.with_fault(&trial, fault, profiles, &devices, &found).map_err(of_fault)?;
                    one = one.plus(after);
                }
            }
            sum = sum.plus(one);
        }
        Ok(sum)
    }

    /// Examines about `budget` crash states of a volume whose devices are added, removed and
    /// resized. Returns the number of states.
    pub fn survey_members(&self, budget: usize) -> Result<usize, Failure> {
        let mut states = 0;
        for (point, devices) in Crashes::new(&self.recording, self.seed, budget).of_all() {
            let fail = |what| self.failure(point, what);
            let devices = members(&devices).map_err(fail)?;
            examine_devices(&self.judge, &devices, point.event).map_err(fail)?;
            states += 1;
        }
        Ok(states)
    }

    /// Chooses a fault of a device, if these profiles determine what must be true in spite of it.
    fn fault(
        &self,
        random: &mut Random,
        profiles: Profiles,
        point: CrashPoint,
        devices: &[OverlayDevice],
        found: &Found,
        failed: Option<usize>,
    ) -> Option<DeviceFault> {
        if let Some(place) = failed {
            // The others have everything if all is mirrored, and otherwise if the device lags.
            let lags =
                || open_volume(forks(devices), true).is_ok_and(|it| it.devices().lagging().contains(&devid(place)));
            return (profiles.are_redundant() || lags()).then_some(DeviceFault::Gone(place));
        }
        // For data without checksums, nothing shows which copy is right.
        let is_proven = !found.model.nodes.values().any(|node| Node::is_nodatacow(node));
        let is_garbage = is_proven && profiles.metadata.copies() > 1 && random.one_in(3);
        // A block of an older log at the same address is valid in itself.
        let is_lost = is_proven && !found.has_log && profiles.are_redundant() && random.one_in(4);
        match profiles.data {
            _ if is_lost => Some(DeviceFault::lost_writes(random, point, devices.len())),
            _ if is_garbage => Some(DeviceFault::garbage(random, devices)),
            Profile::Raid0 => Some(DeviceFault::Gone(random.below(devices.len() as u64) as usize)),
            _ if profiles.are_redundant() => Some(DeviceFault::lost(random, &self.recording, point, devices)),
            _ => None,
        }
    }

    fn with_fault(
        &self,
        trial: &Trial<'_>,
        fault: DeviceFault,
        profiles: Profiles,
        devices: &[OverlayDevice],
        found: &Found,
    ) -> Result<DeviceSurvey, String> {
        let mut survey = DeviceSurvey { states: 1, ..DeviceSurvey::default() };
        match fault {
            DeviceFault::Gone(_) => survey.gone = 1,
            DeviceFault::Stale { .. } => survey.stale = 1,
            DeviceFault::Garbage { .. } => survey.garbage = 1,
            DeviceFault::Lost { .. } => survey.lost = 1,
        }
        let broken = fault.of(&self.recording, devices)?;
        if profiles.data == Profile::Raid0 {
            return match open_volume(forks(&broken), false) {
                Ok(_) => Err("a volume is written that has lost data".into()),
                Err(_) => Ok(survey),
            };
        }
        let seen = trial.endure(&broken, Some((fault, &devices[fault.device()])))?;
        survey.with_log = usize::from(seen.has_log);
        survey.mended = 1;
        if let DeviceFault::Garbage { .. } = fault
            && let Some(difference) = seen.model.difference(&found.model)
        {
            return Err(format!("it is noticed by readers: {difference}"));
        }
        Ok(survey)
    }
}
