//! Several threads work while commits run in the background, on a device that fails at some
//! request; then crashes are examined. Until the engine turns read-only, operations fail only with
//! suitable errors. Each fsync and sync that succeeded, before the failure or during it, is a
//! promise that every crash state keeps.

use std::sync::Arc;

use ubtrfs::testing::CommitFault;
use ubtrfs_volume::{FaultyDevice, Lasting, Operation as Kind, RecordingDevice};

use crate::overlap::{Setting, Sharing, survey_parts, work};
use crate::{Failure, History, Judge, Random, Survey, make_volume};

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const THREADS: u64 = 3;
/// Operations of each thread.
const LENGTH: usize = 60;

/// The result of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Interrupted {
    /// The states that were examined.
    pub survey: Survey,
    /// Whether the device failed.
    pub failed: bool,
}

/// Lets threads work on the volume of this seed until its device fails, which may be after the last
/// of them. Then examines about `budget` crash states. `lie` is a fault of commits.
pub fn run(seed: u64, sharing: Sharing, budget: usize, lie: Option<CommitFault>) -> Result<Interrupted, Failure> {
    let mut random = Random::new(seed ^ 0x1e57);
    let mut history = History::new(seed);
    history.options.faults.commit = lie;
    history.habits.fsyncs = true;
    let kind = random.one_of([Kind::Write, Kind::Flush, Kind::Flush, Kind::Read]);
    let most = match kind {
        Kind::Read => 60,
        Kind::Write => 120,
        Kind::Flush | Kind::Discard => 25,
    };
    let (successes, errno) = (random.below(most), random.one_of([EIO, ENOSPC]));
    let lasting = random.one_of([Lasting::Once, Lasting::Forever]);
    let recording = Arc::new(RecordingDevice::new(make_volume(&history.plan.options)));
    let faulty = Arc::new(FaultyDevice::new(recording.clone()));
    let story = format!("{kind:?} fails after {successes} with {errno}, {lasting:?}");
    let fail = |what| Failure { seed, operations: Vec::new(), crash: None, what };
    let in_story = |failure: Failure| Failure { what: format!("{story}: {}", failure.what), ..failure };
    let judge = Judge::new(history.options.clone(), &recording).map_err(fail)?;
    let begun = std::sync::OnceLock::new();
    let fault = || {
        let _ = begun.set(faulty.asked(kind));
        faulty.fail(kind, successes, errno, lasting);
    };
    let setting = Setting { threads: THREADS, sharing, length: LENGTH, fault: Some(&fault) };
    let parts = work(&history, &recording, faulty.clone(), &setting).map_err(in_story)?;
    let survey = survey_parts(&judge, &parts, &recording, seed, budget).map_err(in_story)?;
    let failed = begun.get().is_some_and(|begun| faulty.asked(kind) > begun + successes);
    Ok(Interrupted { survey, failed })
}
