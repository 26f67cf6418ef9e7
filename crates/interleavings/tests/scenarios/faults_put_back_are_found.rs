//! Faults that were mended are found by a few seeds where they are put back, and only there.

use ubtrfs::testing::{CommitFault, Faults, LogFault};
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

/// The flag that one thread has put on the volume is overwritten in memory by another that was
/// slower.
#[test]
fn a_flag_in_memory_that_does_not_follow_the_published_roots() {
    let faults = Faults { commit: Some(CommitFault::ReadOnlyAfterPublish), ..Faults::default() };
    is_found(&faults, "made in a read-only subvolume", |seed| Mixture {
        jobs: vec![Job::ReadOnly],
        writers: 1,
        fails: false,
        crashes: 0,
        ..Mixture::new(seed)
    });
}

/// Subvolumes are dropped with space that a reader holds back.
#[test]
fn space_that_a_commit_does_not_have_yet() {
    let faults = Faults { commit: Some(CommitFault::FreeUnreserved), ..Faults::default() };
    is_found(&faults, "no space for metadata", |seed| Mixture {
        jobs: vec![Job::Fill],
        writers: 1,
        operations: 4,
        fails: false,
        bytes: Some(Mixture::SMALL_VOLUME),
        crashes: 0,
        ..Mixture::new(seed)
    });
}

/// A drop that begins between the choice of what moves and its commit leaves pointers that count
/// no more.
#[test]
fn a_drop_that_a_step_overlooks() {
    let faults = Faults { overlook_drops: true, ..Faults::default() };
    is_found(&faults, "a balance failed", |seed| Mixture {
        jobs: vec![Job::Drop, Job::Balance],
        writers: 1,
        operations: 4,
        fails: false,
        crashes: 0,
        ..Mixture::new(seed)
    });
}
