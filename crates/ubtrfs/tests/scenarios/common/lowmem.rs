//! `btrfs check` of volumes with snapshots.

use std::path::Path;

use ubtrfs_testkit::run::{command, run};

/// Fails the test with the output of `btrfs check` unless it found the image clean.
///
/// Its usual mode, in btrfs-progs 6.2, finds "errors in fs roots", and names none, in some volumes
/// of several snapshots that share leaves, which its lowmem mode, `ubtrfs check` and the kernel
/// find clean. The lowmem mode begins in the root directory of a tree that is being dropped, by the
/// kernel or by ubtrfs, and follows pointers to what that no longer has. So where there is such a
/// tree the usual mode checks, and an error that it doesn't name is none.
#[track_caller]
pub fn assert_lowmem_check_clean(image: &Path) {
    let check = |mode: &str| run(command("btrfs", &["check", "--readonly", "--check-data-csum", mode]).arg(image));
    if !is_being_dropped(image) {
        check("--mode=lowmem").ok();
        return;
    }
    let outcome = check("--mode=original");
    let lines = outcome.stderr.lines();
    let is_named = |line: &&str| !line.starts_with('[') && !line.contains("errors found in fs roots");
    assert!(lines.clone().any(|line| line.contains("checking fs roots")), "{}", outcome.report());
    assert_eq!(lines.clone().find(is_named), None, "{}", outcome.report());
}

/// Whether a deleted subvolume is gone in part.
fn is_being_dropped(image: &Path) -> bool {
    let roots = run(command("btrfs", &["inspect-internal", "dump-tree", "-t", "root"]).arg(image)).ok().stdout;
    let mut is_deleted = false;
    roots.lines().map(str::trim).any(|line| {
        let is_begun = is_deleted && line.starts_with("drop_progress key (") && !line.contains("key (0 ");
        is_deleted = line.ends_with(" refs 0") || is_deleted && !line.starts_with("item ");
        is_begun
    })
}
