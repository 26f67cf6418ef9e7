//! A writer of an export that is stopped with requests in its queues, and taken for dead,
//! overwrites nothing of the next writer (invariants 12 and 55).

use ubtrfs_simulator::takeover::{Ended, run};
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_volume::LeaseCheck;

/// Returns the looks of a writer at its clock at which it is stopped.
fn stops() -> impl Iterator<Item = u64> {
    (1..).step_by(if soaks() { 7 } else { 71 })
}

#[test]
fn what_the_next_writer_has_committed_stays_whole() {
    let mut stopped = 0;
    for looks in stops() {
        match run(looks, LeaseCheck::AsSent, false).unwrap_or_else(|what| panic!("stopped at look {looks}: {what}")) {
            Ended::Kept => stopped += 1,
            Ended::Unstopped => break,
        }
    }
    assert!(stopped > 5, "{stopped}");
}

#[test]
fn a_writer_that_nobody_took_over_goes_on() {
    for looks in [60, 200] {
        let ended = run(looks, LeaseCheck::AsSent, true);
        assert_eq!(ended, Ok(Ended::Kept), "stopped at look {looks}");
    }
}

/// A past fault: a stopped writer sent its queued requests, since it had checked its lease when the
/// write was submitted.
#[test]
fn a_lease_that_is_looked_at_too_early_is_noticed() {
    let found = stops().map(|looks| (looks, run(looks, LeaseCheck::AsSubmitted, false)));
    let found = found.take_while(|(_, ended)| *ended != Ok(Ended::Unstopped)).find(|(_, ended)| ended.is_err());
    eprintln!("{found:?}");
    assert!(found.is_some());
}
