//! Histories that once failed.

use ubtrfs_simulator::words::{file, rename, unlink, write};
use ubtrfs_simulator::{History, Operation};

fn survive(operations: &[Operation]) {
    for no_holes in [false, true] {
        let mut history = History::new(3);
        history.plan.options.no_holes = no_holes;
        let survived = history.replay(operations, &|device| device).and_then(|recorded| recorded.survey(30));
        survived.unwrap_or_else(|failure| panic!("{failure}"));
    }
}

/// Programs make and remove journals and lock files in this way.
#[test]
fn one_name_is_made_and_removed_often_in_one_transaction() {
    let (one, other) = ("x".repeat(255), "y".repeat(255));
    let round = [file(&one), rename(&one, &other), unlink(&other)];
    let mut operations: Vec<Operation> = (0..300).flat_map(|_| round.clone()).collect();
    operations.extend([file(&one), Operation::Sync]);
    survive(&operations);
}

#[test]
fn one_extent_is_overwritten_in_several_places_at_once() {
    let mut operations = vec![file("a"), write("a", 31_676, 139_264), Operation::Sync];
    operations.extend([0, 40_960, 49_152, 90_000, 131_072, 160_000].map(|at| write("a", at, 4096)));
    operations.extend([Operation::Look, Operation::Sync, write("a", 60_000, 90_000), write("a", 0, 100)]);
    operations.extend([Operation::Sync, Operation::Remount, Operation::Look]);
    survive(&operations);
}
