//! `btrfs check` in the mode that keeps nothing of shared nodes in memory.

use std::path::Path;

use ubtrfs_testkit::run::{command, run};

/// Fails the test with the output of `btrfs check --mode=lowmem` unless it found the image clean.
///
/// The usual mode of btrfs-progs 6.2 finds "errors in fs roots", and names none, in some volumes of
/// several snapshots that share leaves, which this mode, `ubtrfs check` and the kernel find clean.
/// This mode starts in the root directory of a tree that is being dropped, whoever drops it, and
/// follows what that no longer has: what it says of such a tree is no error.
#[track_caller]
pub fn assert_lowmem_check_clean(image: &Path) {
    let outcome = run(command("btrfs", &["check", "--readonly", "--mode=lowmem", "--check-data-csum"]).arg(image));
    let dropped: Vec<String> = half_dropped(image).iter().map(|root| format!("ERROR: root {root} ")).collect();
    if dropped.is_empty() {
        outcome.ok();
        return;
    }
    let excused =
        |line: &&str| line.contains("errors found in fs roots") || dropped.iter().any(|of| line.starts_with(of));
    let reported = outcome.stderr.lines().filter(|line| line.contains("ERROR")).find(|line| !excused(line));
    assert!(reported.is_none() && outcome.stderr.contains("checking fs roots"), "{}", outcome.report());
}

/// The deleted subvolumes of which a part is dropped.
fn half_dropped(image: &Path) -> Vec<String> {
    let roots = run(command("btrfs", &["inspect-internal", "dump-tree", "-t", "root"]).arg(image)).ok().stdout;
    let (mut root, mut is_deleted, mut found) = ("", false, Vec::new());
    for line in roots.lines().map(str::trim) {
        if let Some((_, key)) = line.split_once(" key (") {
            root = key.split(' ').next().unwrap_or_default();
            is_deleted = false;
        } else if line.ends_with(" refs 0") {
            is_deleted = true;
        } else if is_deleted && line.starts_with("drop_progress key (") && !line.contains("key (0 ") {
            found.push(root.to_owned());
        }
    }
    found
}
