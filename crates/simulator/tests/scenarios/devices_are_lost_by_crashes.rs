//! Volumes of several devices: a crash takes from each device what it had not flushed, whatever the
//! others keep. Where any device can be lost, one that is gone, stale, damaged or that refuses
//! requests takes nothing away that was promised, no program sees an error, and afterwards the
//! volume has all its copies again (invariant 34).

use ubtrfs_simulator::{DeviceSurvey, Failure, History, Profiles};
use ubtrfs_testkit::seeds::{many_seeds, soaks};

/// Crash states of a history.
fn budget() -> usize {
    if soaks() { 60 } else { 12 }
}

/// Runs the histories of these seeds; fails the test with those that fail.
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
    let sum = run_all("crashes", &many_seeds(21, 10), &|seed| {
        let profiles = profiles(seed);
        let history = History::on_devices(seed, profiles);
        let in_profiles = |failure: Failure| Failure { what: format!("{profiles:?}: {}", failure.what), ..failure };
        let recorded = history.run(history.length()).map_err(in_profiles)?;
        recorded.survey_devices(profiles, budget(), false).map_err(in_profiles)
    });
    let is_usual = std::env::var_os("UBTRFS_SEEDS").is_none();
    assert!(!is_usual || (sum.gone > 5 && sum.stale > 5 && sum.garbage > 5), "{sum:?}");
}
