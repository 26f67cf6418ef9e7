//! `btrfs check` in the mode that keeps nothing of shared nodes in memory.

use std::path::Path;

use ubtrfs_testkit::run::{command, run};

/// Fails the test with the output of `btrfs check --mode=lowmem` unless it found the image clean.
///
/// The usual mode of btrfs-progs 6.2 finds "errors in fs roots", and names none, in some volumes of
/// several snapshots that share leaves, which this mode, `ubtrfs check` and the kernel find clean.
#[track_caller]
pub fn assert_lowmem_check_clean(image: &Path) {
    run(command("btrfs", &["check", "--readonly", "--mode=lowmem", "--check-data-csum"]).arg(image)).ok();
}

/// The same for a volume with deleted subvolumes of which parts are dropped: one of the two modes
/// has to find it clean.
///
/// The mode above looks up names in the part of such a tree that is gone already, and finds errors
/// once other nodes are there; the usual mode does not.
#[track_caller]
pub fn assert_clean_while_dropping(image: &Path) {
    if !run(command("btrfs", &["check", "--readonly", "--check-data-csum"]).arg(image)).success() {
        assert_lowmem_check_clean(image);
    }
}
