//! Subvolumes are made, copied by snapshots and deleted, in histories with all other operations:
//! after a crash each is whole or absent, and none has changed with another (invariant 29).

use ubtrfs::testing::CommitFault;
use ubtrfs_simulator::{Failure, History, Survey};
use ubtrfs_testkit::seeds::{many_seeds, soaks};

/// Operations of a history.
const LENGTH: usize = 120;

fn history(seed: u64) -> History {
    let mut history = History::new(seed);
    history.habits.subvolumes = true;
    if seed % 4 != 1 {
        // The trees have several leaves, which snapshots share.
        history.plan.options.node_size = Some(4096);
    }
    history
}

fn survey(history: &History, states: usize) -> Result<Survey, Failure> {
    history.run(LENGTH).and_then(|recorded| recorded.survey(states))
}

#[test]
fn subvolumes_are_whole_or_absent_after_any_crash() {
    let states = if soaks() { 300 } else { 60 };
    let mut all = Survey::default();
    let mut failed = Vec::new();
    for seed in many_seeds(8, 40) {
        match survey(&history(seed), states) {
            Ok(survey) => all = all.plus(survey),
            Err(failure) => failed.push(failure.to_string()),
        }
    }
    eprintln!("{all:?}");
    assert!(failed.is_empty(), "{} failed:\n{}", failed.len(), failed.join("\n\n"));
}

/// Returns whether a fault is noticed in so many of some histories (invariant 29).
fn is_noticed(fault: CommitFault, wanted: usize) -> bool {
    let fails = |seed: &u64| {
        let mut history = history(*seed);
        history.options.faults.commit = Some(fault);
        let failure = survey(&history, 40).err();
        if let Some(failure) = &failure {
            eprintln!("{fault:?}, seed {seed}: {}", failure.what.lines().next().unwrap_or_default());
        }
        failure.is_some()
    };
    [2, 3, 4, 6, 7, 8, 10, 11].iter().filter(|seed| fails(seed)).take(wanted).count() == wanted
}

#[test]
fn references_to_what_a_snapshot_shares_that_are_forgotten_are_noticed() {
    assert!(is_noticed(CommitFault::ForgetSharedReferences, 3));
}

#[test]
fn a_snapshot_that_its_source_forgets_is_noticed() {
    assert!(is_noticed(CommitFault::ForgetLastSnapshot, 1));
}

#[test]
fn a_snapshot_that_holds_its_own_entry_is_noticed() {
    assert!(is_noticed(CommitFault::EntryFirst, 1));
}

#[test]
fn a_reset_that_leaves_nothing_in_between_is_noticed() {
    assert!(is_noticed(CommitFault::ResetInTwoSteps, 3));
}

/// This is invariant 50.
#[test]
fn subvolumes_that_are_dropped_while_they_are_open_are_noticed() {
    assert!(is_noticed(CommitFault::ReleaseOpen, 3));
}
