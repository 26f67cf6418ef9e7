//! Tests of what kernels leave behind that is no fault: work in which they were interrupted, which
//! the next mount continues, and entries of subvolumes in snapshots.

use crate::common::{checked, shown, unpack};

fn assert_no_fault(fixture: &str) {
    let dir = tempfile::tempdir().unwrap();
    let report = checked(&unpack(fixture, dir.path()));
    assert!(report.is_clean(), "{fixture}:\n{}", shown(&report));
    assert!(report.not_compared.is_empty(), "{fixture}: {:?}", report.not_compared);
}

#[test]
fn a_balance_that_merges_its_trees_has_no_fault() {
    assert_no_fault("merging");
}

#[test]
fn a_file_that_is_freed_in_part_has_no_fault() {
    assert_no_fault("evicting");
}

#[test]
fn entries_of_subvolumes_in_snapshots_of_a_top_level_without_a_uuid_are_no_fault() {
    assert_no_fault("nested");
}
