//! Examines crash states of one recorded history, and mounts and works on some of them.

use std::sync::Arc;

use ubtrfs_volume::OverlayDevice;

use crate::perform::Tolerance;
use crate::redundancy::{MODEST, record};
use crate::{Crashes, Failure, Found, Generator, Judge, Operation, Recorded, Session, examine_devices};

/// One in so many states is mounted and worked on, and crashes again.
const RECOVER_EVERY: usize = 20;

/// What a survey found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Crash states, no two of one history equal.
    pub states: usize,
    /// Volumes that were mounted after a crash and worked on.
    pub recoveries: usize,
    /// Volumes with nameless inodes to be freed.
    pub with_orphans: usize,
    /// Volumes that had more than their last commit.
    pub with_log: usize,
}

impl Survey {
    /// Returns the sum of two surveys.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            states: self.states + other.states,
            recoveries: self.recoveries + other.recoveries,
            with_orphans: self.with_orphans + other.with_orphans,
            with_log: self.with_log + other.with_log,
        }
    }
}

impl Recorded {
    /// Examines about `budget` crash states.
    pub fn survey(&self, budget: usize) -> Result<Survey, Failure> {
        let mut survey = Survey::default();
        for (point, devices) in Crashes::new(&self.recording, self.seed, budget).of_all() {
            let fail = |what| self.failure(point, what);
            let found = examine_devices(&self.judge, &devices, point.event).map_err(fail)?;
            survey.states += 1;
            survey.with_orphans += usize::from(!found.model.orphans().is_empty());
            survey.with_log += usize::from(found.has_log);
            if survey.states.is_multiple_of(RECOVER_EVERY) {
                let seed = self.seed ^ (survey.states as u64) << 32;
                survey.states += recover(&self.judge, &devices, found, seed)
                    .map_err(|what| fail(format!("after the crash: {what}")))?;
                survey.recoveries += 1;
            }
        }
        Ok(survey)
    }
}

/// Mounts a state that a crash left, works on it, and crashes again. Returns the number of states
/// that were examined.
fn recover(judge: &Judge, devices: &[OverlayDevice], found: Found, seed: u64) -> Result<usize, String> {
    let (recording, recorded) = record(devices);
    let tolerance = Tolerance { no_space: true, faults: false };
    let unknown_orphans = judge.unknown_orphans || found.has_log || !found.model.orphans().is_empty();
    let mut session =
        Session::open_devices(Arc::clone(&recording), recorded, judge.options.clone(), Some(found.model), tolerance)?;
    let mut generator = Generator::new(seed, MODEST);
    session.perform(&Operation::Look)?;
    for _ in 0..6 {
        let operation = generator.next(&session.worker.model, session.worker.handles.len());
        session.perform(&operation)?;
    }
    session.perform(&Operation::Sync)?;
    let after = Judge { trace: session.trace, unknown_orphans, ..judge.clone() };
    let mut states = 0;
    for (point, devices) in Crashes::new(&recording, seed, 6).of_all() {
        examine_devices(&after, &devices, point.event)
            .map_err(|what| format!("second crash at {point:?} of {:?}: {what}", session.operations))?;
        states += 1;
    }
    Ok(states)
}
