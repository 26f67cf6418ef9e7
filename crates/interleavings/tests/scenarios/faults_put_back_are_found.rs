//! Faults that were mended are found by a few seeds where they are put back, and only there.

use ubtrfs::testing::{Faults, LogFault};
use ubtrfs_interleavings::{Job, Mixture};

/// Seeds that are tried.
const SEEDS: u64 = 60;

/// The first seed by which a mixture like this fails, and why.
fn first_failure(mixture: impl Fn(u64) -> Mixture) -> Option<(u64, String)> {
    (0..SEEDS).find_map(|seed| mixture(seed).run().err().map(|what| (seed, what)))
}

/// Asserts that the fault is found as `sign`, and nothing without it.
fn is_found(faults: &Faults, sign: &str, mixture: impl Fn(u64) -> Mixture) {
    let (seed, what) = first_failure(|seed| Mixture { faults: faults.clone(), ..mixture(seed) }).unwrap();
    assert!(what.contains(sign), "seed {seed}: {what}");
    println!("{faults:?}: seed {seed}");
    if let Err(what) = mixture(seed).run() {
        panic!("without the fault, seed {seed}: {what}");
    }
}

/// Jobs of a pool wait for what another job of the same pool has to do.
#[test]
fn a_log_that_only_a_job_of_a_full_pool_publishes() {
    let faults = Faults { log: Some(LogFault::LeaveToLeader), ..Faults::default() };
    is_found(&faults, "deadlock", |seed| Mixture {
        jobs: vec![Job::Sync],
        writers: 2,
        leaders: 1,
        fails: false,
        crashes: 0,
        ..Mixture::new(seed)
    });
}
