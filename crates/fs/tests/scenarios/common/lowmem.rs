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
