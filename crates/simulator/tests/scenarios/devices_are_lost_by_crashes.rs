//! Volumes on several devices: a crash takes from each device what it had not flushed, whatever the
//! others keep. If any one device can be lost, a device that is gone, stale, damaged or refuses
//! requests makes no promise fail and no program see an error, and afterwards the volume has all
//! its copies again (invariant 34). Devices that were each used without the others are not joined
//! until the user says which one counts (invariant 44).

use std::sync::{Arc, OnceLock};

use ubtrfs_simulator::{DeviceHabits, DeviceSurvey, Failure, History, Lie, LyingDevice, Profiles, Random};
use ubtrfs_testkit::seeds::{many_seeds, soaks};
use ubtrfs_volume::{Device, FaultyDevice, Lasting, Operation, RecordingDevice, SuperblockFault, with_fault};

const EIO: i32 = 5;

/// The number of crash states of a history.
fn budget() -> usize {
    if soaks() { 60 } else { 12 }
}

/// Runs the histories of these seeds, and fails the test with those that fail.
fn run_all(what: &str, seeds: &[u64], run: &dyn Fn(u64) -> Result<DeviceSurvey, Failure>) -> DeviceSurvey {
    let started = std::time::Instant::now();
    let (mut sum, mut failed) = (DeviceSurvey::default(), Vec::new());
    for seed in seeds {
        match run(*seed) {
            Ok(survey) => sum = sum.plus(survey),
            Err(failure) => failed.push(failure.to_string()),
        }
    }
    eprintln!("{what}: {sum:?} in {:.1?}", started.elapsed());
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n\n"));
    sum
}

fn profiles(seed: u64) -> Profiles {
    Profiles::ALL[(seed % Profiles::ALL.len() as u64) as usize]
}

#[test]
fn each_device_loses_what_it_had_not_flushed() {
    let sum = run_all("crashes", &many_seeds(63, 10), &|seed| {
        let profiles = profiles(seed);
        let history = History::on_devices(seed, profiles);
        let in_profiles = |failure: Failure| Failure { what: format!("{profiles:?}: {}", failure.what), ..failure };
        let recorded = history.run(history.length()).map_err(in_profiles)?;
        recorded.survey_devices(profiles, budget(), DeviceHabits::default()).map_err(in_profiles)
    });
    let is_usual = std::env::var_os("UBTRFS_SEEDS").is_none();
    assert!(
        !is_usual || (sum.gone > 5 && sum.stale > 5 && sum.garbage > 5 && sum.lost > 5 && sum.apart > 5),
        "{sum:?}"
    );
}

/// A volume whose devices are added, removed and resized is whole after a crash at any time, while
/// subvolumes are dropped in steps (invariants 18, 35 and 54).
#[test]
fn devices_are_added_and_removed() {
    let (mut states, mut changes) = (0, 0);
    for seed in many_seeds(28, 10) {
        let profiles = profiles(seed);
        let history = History::of_changing_devices(seed, profiles);
        let recorded = history.run(history.length()).unwrap_or_else(|failure| panic!("{profiles:?}: {failure}"));
        let is_change = |(_, it): &&(usize, ubtrfs_simulator::Operation)| {
            matches!(it, ubtrfs_simulator::Operation::ChangeDevices { .. })
        };
        changes += recorded.operations.iter().filter(is_change).count();
        states += recorded.survey_members(budget()).unwrap_or_else(|failure| panic!("{profiles:?}: {failure}"));
    }
    eprintln!("{changes} changes of devices, {states} states");
    assert!(std::env::var_os("UBTRFS_SEEDS").is_some() || changes > 60, "{changes}");
}

/// Runs a history in which one of several devices begins to refuse requests of one kind. If the
/// volume can do without the device, nobody notices; otherwise it turns read-only.
fn one_refuses(seed: u64) -> Result<DeviceSurvey, Failure> {
    let mut random = Random::new(seed ^ 0xde5c);
    let profiles = profiles(seed);
    let mut history = History::on_devices(seed, profiles);
    let kind = random.one_of([Operation::Write, Operation::Flush, Operation::Read]);
    let most = match kind {
        Operation::Read => 20,
        Operation::Write => 80,
        Operation::Flush | Operation::Discard => 12,
    };
    let device = random.below(profiles.devices) as usize;
    let (successes, lasting) = (random.below(most), random.one_of([Lasting::Once, Lasting::Forever]));
    let first = 1 + random.below(20) as usize;
    // A device that can't be read at all can't be mounted without `degraded`.
    history.habits.remount &= kind != Operation::Read;
    history.faults = !profiles.are_redundant();
    if history.faults {
        // An operation that fails may have been done in part.
        (history.habits.remount, history.habits.privileges) = (false, false);
    }
    let faulty: OnceLock<Arc<FaultyDevice>> = OnceLock::new();
    let wrap = |recording: Arc<RecordingDevice>| -> Arc<dyn Device> {
        let is_it = recording.number() == device;
        if is_it { faulty.get_or_init(|| Arc::new(FaultyDevice::new(recording))).clone() } else { recording }
    };
    let mut begun = 0;
    let mut before = |number| {
        if let (true, Some(faulty)) = (number == first, faulty.get()) {
            begun = faulty.asked(kind);
            faulty.fail(kind, successes, EIO, lasting);
        }
    };
    let story = format!("{profiles:?}, device {}: {kind:?} fails after {successes}, {lasting:?}", device + 1);
    let in_story = |failure: Failure| Failure { what: format!("{story}: {}", failure.what), ..failure };
    let recorded = history.run_with(history.length(), &wrap, &mut before).map_err(in_story)?;
    let has_failed = faulty.get().is_some_and(|faulty| faulty.asked(kind) > begun + successes);
    // Without redundancy, the volume can do without a device that has no data of its own, too.
    let is_given_up = recorded.aborted.is_none() && recorded.tolerated == 0 && kind != Operation::Read;
    let failed = (has_failed && (profiles.are_redundant() || is_given_up)).then_some(device);
    recorded.survey_devices(profiles, budget(), DeviceHabits { failed, ..DeviceHabits::default() }).map_err(in_story)
}

#[test]
fn a_device_that_refuses_requests_takes_nothing_away() {
    let sum = run_all("refused requests", &many_seeds(63, 10), &one_refuses);
    let is_usual = std::env::var_os("UBTRFS_SEEDS").is_none();
    assert!(!is_usual || (sum.failed > 50 && sum.mended > 5), "{sum:?}");
}

/// Runs a history in which a device loses some primary superblocks in a row, though it has reported
/// them as durable. Nobody notices.
fn one_loses_superblocks(seed: u64) -> Result<DeviceSurvey, Failure> {
    let mut random = Random::new(seed ^ 0x105e);
    let redundant: Vec<Profiles> = Profiles::ALL.into_iter().filter(Profiles::are_redundant).collect();
    let profiles = redundant[(seed % redundant.len() as u64) as usize];
    let history = History::on_devices(seed, profiles);
    let place = random.below(profiles.devices) as usize;
    let lie = Lie::LostSuperblocks { first: random.below(12) as usize, count: 1 + random.below(12) as usize };
    let lying: OnceLock<Arc<LyingDevice>> = OnceLock::new();
    let wrap = |recording: Arc<RecordingDevice>| -> Arc<dyn Device> {
        let is_it = recording.number() == place;
        if is_it { lying.get_or_init(|| Arc::new(LyingDevice::new(recording, lie))).clone() } else { recording }
    };
    let story = format!("{profiles:?}, device {}: {lie:?}", place + 1);
    let in_story = |failure: Failure| Failure { what: format!("{story}: {}", failure.what), ..failure };
    let recorded = history.run_on(history.length(), &wrap).map_err(in_story)?;
    let has_lied = lying.get().is_some_and(|lying| lying.has_lied());
    let habits = DeviceHabits { failed: has_lied.then_some(place), ..DeviceHabits::default() };
    recorded.survey_devices(profiles, budget(), habits).map_err(in_story)
}

#[test]
fn a_device_that_loses_superblocks_takes_nothing_away() {
    let sum = run_all("lost superblocks", &many_seeds(16, 10), &one_loses_superblocks);
    let is_usual = std::env::var_os("UBTRFS_SEEDS").is_none();
    assert!(!is_usual || (sum.failed > 50 && sum.mended > 5), "{sum:?}");
}

#[test]
fn a_lost_superblock_that_is_taken_for_another_writers_ends_the_history() {
    let is_noticed = |seed: &u64| {
        let run = || one_loses_superblocks(*seed);
        with_fault(SuperblockFault::MistakeLostForForeign, run).is_err()
    };
    assert!((1..=24).any(|seed| is_noticed(&seed)));
}

/// Without epochs, nothing shows that devices were used apart (invariant 44).
#[test]
fn devices_that_were_used_apart_are_joined_without_epochs() {
    let joined = |seed: &u64| {
        let (history, profiles) = (History::on_devices(*seed, Profiles::ALL[0]), Profiles::ALL[0]);
        let recorded = history.run(history.length()).unwrap_or_else(|failure| panic!("{failure}"));
        let habits = DeviceHabits { forgets_epochs: true, ..DeviceHabits::default() };
        recorded.survey_devices(profiles, 24, habits).is_err_and(|failure| failure.what.contains("are joined"))
    };
    let found = (1..=12).filter(joined).count();
    assert!(found > 2, "{found} of 12");
}
