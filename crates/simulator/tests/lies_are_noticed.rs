//! The simulator proves something only if it notices devices that break the rules.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

use std::sync::{Arc, Mutex};

use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_simulator::{History, Lie, LyingDevice};
use ubtrfs_volume::{Device, RecordingDevice};

/// Runs histories on lying devices. Returns how many of them lied, and how many of those were found out.
fn found_out(seeds: std::ops::Range<u64>, lie: impl Fn(u64) -> Lie) -> (usize, usize) {
    found_out_in(seeds.map(History::new), 40, lie)
}

fn found_out_in(histories: impl Iterator<Item = History>, length: usize, lie: impl Fn(u64) -> Lie) -> (usize, usize) {
    let (mut lied, mut noticed) = (0, 0);
    for history in histories {
        let seed = history.seed;
        let device = Mutex::new(None);
        let wrap = |recording: Arc<RecordingDevice>| -> Arc<dyn Device> {
            let lying = Arc::new(LyingDevice::new(recording, lie(seed)));
            *device.lock().unwrap() = Some(lying.clone());
            lying
        };
        let failure = history.run_on(length, &wrap).and_then(|recorded| recorded.survey(60)).err();
        if device.lock().unwrap().as_ref().is_some_and(|device| device.has_lied()) {
            lied += 1;
            noticed += usize::from(failure.is_some());
            match failure {
                Some(failure) => eprintln!("seed {seed}: {}", failure.what.lines().next().unwrap_or_default()),
                None => eprintln!("seed {seed}: not noticed"),
            }
        } else if let Some(failure) = failure {
            panic!("{failure}");
        }
    }
    eprintln!("{noticed} of {lied}");
    (lied, noticed)
}

#[test]
fn barriers_that_do_nothing() {
    let (lied, noticed) = found_out(1..6, |_| Lie::NoBarriers);
    assert!(lied == 5 && noticed == lied);
}

#[test]
fn a_superblock_before_what_it_refers_to() {
    let (lied, noticed) = found_out(1..6, |_| Lie::SuperblockFirst);
    assert!(lied == 5 && noticed == lied);
}

#[test]
fn a_torn_superblock() {
    let (lied, noticed) = found_out(1..6, |seed| Lie::TornSuperblock(seed as usize % 3));
    assert!(lied >= 4 && noticed == lied);
}

#[test]
fn a_lost_write() {
    // One that a later commit replaced before power was cut may go unnoticed.
    let (lied, noticed) = found_out(1..9, |seed| Lie::LostWrite(seed as usize * 3));
    assert!(lied >= 6 && noticed * 3 >= lied * 2);
}

#[test]
fn what_was_there_before_comes_back() {
    // Large nodes and many commits: space is used again soon.
    let histories = (1..9).map(|seed| {
        let mut history = History::new(seed);
        let mut options = MkfsOptions::new(46 << 20);
        options.metadata_profile = Some(Profile::Single);
        options.node_size = Some(65536);
        history.plan.options = options;
        history.habits.eager = true;
        history
    });
    let (lied, noticed) = found_out_in(histories, 250, |seed| Lie::StaleBlock(seed as usize * 3));
    assert!(lied >= 6 && noticed * 3 >= lied * 2);
}
