//! A few seeds find faults of the past when the faults are put back, and find nothing without them.

use ubtrfs::testing::{CommitFault, Faults, LogFault};
use ubtrfs_interleavings::{Job, Mixture};

/// Seeds that are tried.
const SEEDS: u64 = 60;

/// Returns the first seed with which a mixture like this fails, and the message.
fn first_failure(mixture: impl Fn(u64) -> Mixture) -> Option<(u64, String)> {
    (0..SEEDS).find_map(|seed| mixture(seed).run().err().map(|what| (seed, what)))
}

/// Asserts that a run with the fault fails with a message that contains `sign`, and that the same
/// seed succeeds without the fault.
fn is_found(faults: &Faults, sign: &str, mixture: impl Fn(u64) -> Mixture) {
    let (seed, what) = first_failure(|seed| Mixture { faults: faults.clone(), ..mixture(seed) }).unwrap();
    assert!(what.contains(sign), "seed {seed}: {what}");
    println!("{faults:?}: seed {seed}");
    if let Err(what) = mixture(seed).run() {
        panic!("without the fault, seed {seed}: {what}");
    }
}

/// Jobs of a pool wait for an event that only another job of the same full pool can cause.
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

/// A slow thread overwrites in memory the flag that another thread has since put on the volume.
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

/// Subvolumes are dropped with space that a kept commit still pins.
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

/// A drop begins between the choice of the blocks to move and the commit that moves them, and
/// leaves pointers that have no references any more.
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
