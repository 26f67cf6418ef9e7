//! Tests of `ubtrfs merge` on a mount and in an image: its output, its exit status, and the changes
//! that programs see at once.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use ubtrfs_testkit::kernel::KernelMount;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::progs::assert_btrfs_check_clean;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};

use crate::harness::{FUSE, Volume, ubtrfs};

/// Notifies the server of a mount that the reader of a stream is still there.
pub fn keep_stream(at: &Path, number: u64) -> Result<(), rustix::io::Errno> {
    let opened = File::open(at).unwrap();
    // SAFETY: this command reads a number.
    unsafe { rustix::ioctl::ioctl(&opened, rustix::ioctl::Setter::<{ ubtrfs_format::ioctl::KEEP }, u64>::new(number)) }
}

fn merge(arguments: &[&str]) -> Outcome {
    ubtrfs(&[&["merge"], arguments].concat())
}

/// Returns the lines of a merge that ended with this status, sorted.
#[track_caller]
fn says(arguments: &[&str], status: i32) -> Vec<String> {
    let outcome = merge(arguments);
    assert_eq!((outcome.code(), &*outcome.stderr), (Some(status), ""), "{}", outcome.report());
    let mut lines: Vec<_> = outcome.stdout.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[track_caller]
fn has_trouble(arguments: &[&str], words: &str) {
    let outcome = merge(arguments);
    assert_eq!(outcome.code(), Some(2), "{}", outcome.report());
    assert!(outcome.stderr.lines().count() == 1 && outcome.stderr.contains(words), "{}", outcome.report());
}

/// Makes a mount with the subvolumes `base`, `changed` and `target`.
fn with_sides() -> (Volume, [String; 3]) {
    with_sides_on(Volume::new())
}

fn with_sides_on(volume: Volume) -> (Volume, [String; 3]) {
    volume.mount("commit=300");
    let sides = ["base", "changed", "target"].map(|name| volume.point.join(name).display().to_string());
    ubtrfs(&["subvolume", "create", &sides[0]]).ok();
    let base = Path::new(&sides[0]);
    fs::create_dir_all(base.join("dir/below")).unwrap();
    fs::create_dir(base.join("empty")).unwrap();
    fs::write(base.join("dir/file"), vec![1; 50_000]).unwrap();
    fs::write(base.join("moved"), vec![2; 9000]).unwrap();
    fs::write(base.join("gone"), "gone").unwrap();
    for side in &sides[1..] {
        ubtrfs(&["subvolume", "snapshot", &sides[0], side]).ok();
    }
    (volume, sides)
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn change(changed: &Path, target: &Path) {
    File::options().write(true).open(changed.join("dir/file")).unwrap().write_all_at(&[9; 100], 20_000).unwrap();
    fs::rename(changed.join("moved"), changed.join("dir/below/new")).unwrap();
    fs::rename(changed.join("dir"), changed.join("other")).unwrap();
    fs::remove_file(changed.join("gone")).unwrap();
    fs::create_dir(changed.join("made")).unwrap();
    fs::write(changed.join("made/file"), vec![3; 70_000]).unwrap();
    fs::hard_link(changed.join("made/file"), changed.join("link")).unwrap();
    fs::set_permissions(target.join("moved"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(target.join("dir/target's"), "mine").unwrap();
}

const EXPECTED: [&str; 7] = [
    "A link",
    "A made",
    "A made/file",
    "D gone",
    "M other/file: content, mtime",
    "R dir -> other",
    "R moved -> other/below/new",
];

/// Asserts that the target has the changes of both sides.
fn assert_merged(target: &Path) {
    assert_eq!(names(target), ["empty", "link", "made", "other"]);
    assert_eq!(names(&target.join("other")), ["below", "file", "target's"]);
    let mut expected = vec![1; 50_000];
    expected[20_000..20_100].fill(9);
    assert!(fs::read(target.join("other/file")).unwrap() == expected);
    let moved = target.join("other/below/new");
    assert!(fs::read(&moved).unwrap() == vec![2; 9000]);
    assert_eq!(moved.metadata().unwrap().mode() & 0o777, 0o600);
    let (one, other) = (target.join("link").metadata().unwrap(), target.join("made/file").metadata().unwrap());
    assert_eq!((one.ino(), one.nlink(), one.size()), (other.ino(), 2, 70_000));
}

/// A bind mount, which is unmounted at the end.
struct Bound(PathBuf);

impl Bound {
    fn read_only(source: &Path, point: PathBuf) -> Self {
        fs::create_dir(&point).unwrap();
        run(command("mount", &["--bind"]).args([source, &point])).ok();
        let bound = Self(point);
        run(command("mount", &["-o", "remount,bind,ro"]).arg(&bound.0)).ok();
        bound
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        run(command("umount", &["-l"]).arg(&self.0));
    }
}

/// Invariant 40: the target is changed through its own mount, whichever mounts name the other
/// subvolumes.
#[test]
fn nothing_is_merged_through_a_read_only_mount() {
    require!(FUSE, Need::Root);
    let (volume, [base, changed, target]) = with_sides();
    change(Path::new(&changed), Path::new(&target));
    let bound = Bound::read_only(&volume.point, volume.dir.path().join("bound"));
    let seen = ["base", "changed", "target"].map(|name| bound.0.join(name).display().to_string());
    has_trouble(&[&base, &changed, &seen[2]], "is read-only");
    assert!(!Path::new(&target).join("other").exists(), "it was merged");
    assert_eq!(says(&["-n", &seen[0], &seen[1], &seen[2]], 0), EXPECTED);
    assert!(!Path::new(&target).join("other").exists(), "it was merged");
    assert_eq!(says(&[&seen[0], &seen[1], &target], 0), EXPECTED);
    assert_merged(Path::new(&target));
    drop(bound);
    volume.umount();
    volume.check();
}

#[test]
fn programs_see_at_once_what_was_merged() {
    require!(FUSE, Need::Kernel);
    let (volume, sides) = with_sides();
    let [base, changed, target] = &sides;
    let all = [&**base, changed, target];
    let at = Path::new(target);
    change(Path::new(changed), at);
    // The kernel has names, attributes, absent names, listings and pages of the target in its
    // caches.
    let mut open = File::open(at.join("dir/file")).unwrap();
    assert_eq!(fs::read(at.join("dir/file")).unwrap(), vec![1; 50_000]);
    assert_eq!(at.join("moved").metadata().unwrap().nlink(), 1);
    assert!(!at.join("link").exists() && !at.join("other").exists() && !at.join("made").exists());
    assert_eq!(names(at), ["dir", "empty", "gone", "moved"]);
    assert_eq!(names(&at.join("dir")), ["below", "file", "target's"]);

    assert_eq!(says(&[&["--dry-run"], &all[..]].concat(), 0), EXPECTED);
    assert_eq!(names(at), ["dir", "empty", "gone", "moved"]);
    assert_eq!(says(&all, 0), EXPECTED);
    assert_merged(at);
    let mut content = Vec::new();
    open.read_to_end(&mut content).unwrap();
    assert_eq!(content[20_000], 9, "an open file shows old pages");
    drop(open);
    assert_eq!(says(&all, 0), Vec::<String>::new(), "merged again");

    // A change on both sides is a conflict, in which one side may be preferred.
    fs::write(Path::new(changed).join("other/file"), "theirs").unwrap();
    fs::write(at.join("other/file"), "ours").unwrap();
    fs::remove_dir(Path::new(changed).join("empty")).unwrap();
    fs::write(at.join("empty/new"), "new").unwrap();
    let conflicts = ["C empty/new: in a directory that the other side has removed", "C other/file: content"];
    assert_eq!(says(&all, 1), conflicts);
    assert_eq!(fs::read(at.join("other/file")).unwrap(), b"ours");
    assert_eq!(says(&[&["--ours"], &all[..]].concat(), 0), conflicts);
    assert_eq!(fs::read(at.join("other/file")).unwrap(), b"ours");
    let json = merge(&[&["--theirs", "--json"], &all[..]].concat()).ok().stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    let kinds: Vec<_> = json.as_array().unwrap().iter().map(|record| record["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["conflict", "conflict", "removed", "removed", "changed"], "{json}");
    assert_eq!(fs::read(at.join("other/file")).unwrap(), b"theirs");
    assert_eq!(names(at), ["link", "made", "other"]);

    volume.umount();
    volume.check();
    assert_btrfs_check_clean(&volume.image);
    let kernel = KernelMount::new(&[&volume.image], "");
    assert_eq!(fs::read(kernel.path().join("target/other/file")).unwrap(), b"theirs");
    assert!(fs::read(kernel.path().join("target/made/file")).unwrap() == vec![3; 70_000]);
}

#[test]
fn what_was_looked_at_while_it_was_merged_is_shown_as_it_is() {
    const FILES: usize = 1500;
    require!(FUSE);
    let (volume, [first, ..]) = with_sides();
    fs::hard_link(Path::new(&first).join("dir/file"), Path::new(&first).join("link")).unwrap();
    let [base, changed, target] =
        ["base2", "changed2", "target2"].map(|name| volume.point.join(name).display().to_string());
    for side in [&base, &changed, &target] {
        ubtrfs(&["subvolume", "snapshot", &first, side]).ok();
    }
    let at = Path::new(&target);
    fs::create_dir(Path::new(&changed).join("new")).unwrap();
    for number in 0..FILES {
        fs::write(Path::new(&changed).join(format!("new/{number}")), "new").unwrap();
    }
    fs::remove_file(Path::new(&changed).join("dir/file")).unwrap();
    fs::hard_link(Path::new(&changed).join("moved"), Path::new(&changed).join("second")).unwrap();
    let links = |name: &str| at.join(name).metadata().unwrap().nlink();
    assert_eq!((links("link"), links("dir/file"), links("moved")), (2, 2, 1));
    let open = File::open(at.join("gone")).unwrap();
    fs::remove_file(Path::new(&changed).join("gone")).unwrap();

    // A thread lists everything repeatedly, so that it is cached.
    let is_done = AtomicBool::new(false);
    let looks = std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut looks = 0;
            while !is_done.load(Ordering::Relaxed) {
                looks += look(at);
            }
            looks
        });
        let lines = says(&[&base, &changed, &target], 0);
        is_done.store(true, Ordering::Relaxed);
        assert!(lines.iter().any(|line| line == "D dir/file"), "{lines:?}");
        looking.join().unwrap()
    });
    assert!(looks > 0);
    assert_eq!((links("link"), links("moved"), links("second")), (1, 2, 2));
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    assert_eq!(names(at), ["dir", "empty", "link", "moved", "new", "second"]);
    assert_eq!(names(&at.join("new")).len(), FILES);
    let staging = at.join(".ubtrfs-merge-0").symlink_metadata();
    assert!(staging.is_err(), "the staging directory is still shown: {staging:?}");
}

/// Lists everything below a directory, and returns the number of entries.
fn look(dir: &Path) -> usize {
    let Ok(entries) = fs::read_dir(dir) else { return 0 };
    let mut found = 0;
    for entry in entries.flatten() {
        let path = entry.path();
        found += 1 + usize::from(path.symlink_metadata().is_ok_and(|is| is.is_dir())) * look(&path);
    }
    let staging = dir.join(".ubtrfs-merge-0");
    found + if staging.is_dir() { look(&staging) } else { 0 }
}

#[test]
fn a_reset_to_a_merged_snapshot_merges_at_once() {
    require!(FUSE);
    let (volume, [base, changed, target]) = with_sides();
    change(Path::new(&changed), Path::new(&target));
    let merged = volume.point.join("merged").display().to_string();
    ubtrfs(&["subvolume", "snapshot", &target, &merged]).ok();
    assert_eq!(says(&[&base, &changed, &merged], 0), EXPECTED);
    assert_eq!(names(Path::new(&target)), ["dir", "empty", "gone", "moved"]);
    ubtrfs(&["subvolume", "reset", &target, &merged]).ok();
    assert_merged(Path::new(&target));
    ubtrfs(&["subvolume", "delete", &merged]).ok();
    // The target still has the common origin with the others.
    assert_eq!(says(&[&base, &changed, &target], 0), Vec::<String>::new());
    volume.umount();
    volume.check();
}

#[test]
fn a_merge_whose_command_was_ended_before_it_changed_anything_changes_nothing() {
    require!(FUSE);
    let (volume, [base, changed, target]) = with_sides();
    // Both sides have changed a file with many extents in the same way. To find that out takes
    // longer than this test may wait for a processor before it ends the command.
    let files = [&changed, &target].map(|side| Path::new(side).join("dir/file"));
    for file in &files {
        let file = File::create(file).unwrap();
        for number in 0..20_000 {
            file.write_all_at(b"x", number << 20).unwrap();
        }
    }
    fs::write(Path::new(&changed).join("new"), "new").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    let mut command = command.args(["merge", &base, &changed, &target]).spawn().unwrap();
    // The mount's first stream exists while the server compares.
    let deadline = Instant::now() + Duration::from_secs(60);
    let is_merging = || keep_stream(&volume.point, 1) == Ok(());
    while !is_merging() {
        assert!(Instant::now() < deadline && command.try_wait().unwrap().is_none(), "it was too quick for this test");
    }
    command.kill().unwrap();
    command.wait().unwrap();
    for file in &files {
        fs::remove_file(file).unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while says(&["-n", &base, &changed, &target], 0) != ["A new"] {
        assert!(Instant::now() < deadline);
    }
    assert!(!Path::new(&target).join("new").exists());
    assert!(!Path::new(&target).join(".ubtrfs-merge-0").exists());
    volume.umount();
    volume.check();
}

#[test]
fn an_image_is_merged_like_a_mount() {
    require!(FUSE, Need::Kernel);
    let (volume, [_, changed, target]) = with_sides();
    change(Path::new(&changed), Path::new(&target));
    volume.umount();
    let sides = ["base", "changed", "target"].map(|name| format!("{}:{name}", volume.image.display()));
    let all = [&*sides[0], &sides[1], &sides[2]];
    let before = fs::metadata(&volume.image).unwrap().modified().unwrap();
    assert_eq!(says(&[&["-n"], &all[..]].concat(), 0), EXPECTED);
    assert_eq!(fs::metadata(&volume.image).unwrap().modified().unwrap(), before, "a dry run wrote to the image");
    assert_eq!(says(&all, 0), EXPECTED);
    assert_btrfs_check_clean(&volume.image);
    let kernel = KernelMount::new(&[&volume.image], "");
    assert_merged(&kernel.path().join("target"));
}

#[test]
fn what_can_not_be_merged_is_said_with_status_two() {
    require!(FUSE);
    let (volume, [base, changed, target]) = with_sides();
    let point = volume.point.display().to_string();
    has_trouble(&[&point, &changed, &target], "not snapshots of one subvolume");
    let other = volume.point.join("other").display().to_string();
    ubtrfs(&["subvolume", "create", &other]).ok();
    has_trouble(&[&base, &other, &target], "not snapshots of one subvolume");
    has_trouble(&[&base, &changed, &format!("{target}/dir")], "not a subvolume");
    has_trouble(&[&base, &changed, "/proc"], "not on a btrfs volume");
    has_trouble(&[&base, &changed, &format!("{}:target", volume.image.display())], "all on its mount");
    ubtrfs(&["property", "set", &target, "ro", "true"]).ok();
    has_trouble(&[&base, &changed, &target], "read-only");
    assert_eq!(says(&["-n", &base, &changed, &target], 0), Vec::<String>::new());
}

/// More merges than can run at once wait for their turn, and so do comparisons.
#[test]
fn fifty_merges_and_fifty_comparisons_at_once_all_succeed() {
    let (volume, [base, changed, _]) = with_sides_on(Volume::of_size("1G"));
    for number in 0..40 {
        fs::write(Path::new(&changed).join(format!("new{number}")), vec![number; 5000]).unwrap();
    }
    let target = |number: usize| volume.point.join(format!("target{number}")).display().to_string();
    for number in 0..50 {
        ubtrfs(&["subvolume", "snapshot", &base, &target(number)]).ok();
    }
    let program = env!("CARGO_BIN_EXE_ubtrfs");
    let start = |words: &[&str]| {
        let mut command = Command::new(program);
        command.args(words).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
        command.spawn().unwrap()
    };
    let merges: Vec<_> = (0..50).map(|number| start(&["merge", &base, &changed, &target(number)])).collect();
    let diffs: Vec<_> = (0..50).map(|_| start(&["diff", &base, &changed])).collect();
    for (kind, children) in [("merge", merges), ("diff", diffs)] {
        for child in children {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                said.is_empty() && matches!(output.status.code(), Some(0 | 1)),
                "{kind}: {:?} {said}",
                output.status
            );
            assert_eq!(String::from_utf8_lossy(&output.stdout).lines().filter(|line| line.contains("new")).count(), 40);
        }
    }
    for number in 0..50 {
        assert_eq!(fs::read(Path::new(&target(number)).join("new7")).unwrap(), [7; 5000]);
    }
    volume.umount();
}
