//! Tests that a mount that is started with low limits (`ulimit`) either works or fails.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::{GAMES, lend, shell_of};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, run};

use crate::harness::{FUSE, Volume, cat};

/// Mounts under a limit, which prlimit(1) sets.
fn mount_under(volume: &Volume, limit: &str) -> Outcome {
    let mut limited = Command::new("prlimit");
    limited.arg(limit).arg(env!("CARGO_BIN_EXE_ubtrfs")).arg("mount");
    run(limited.args([&volume.image, &volume.point]))
}

/// Whether root may raise its limits: in some containers it has no `CAP_SYS_RESOURCE`.
fn raises_limits() -> bool {
    let mut lowered = Command::new("prlimit");
    lowered.args(["--fsize=1000:1000", "prlimit", "--fsize=unlimited:unlimited", "true"]);
    run(&mut lowered).success()
}

#[test]
fn of_a_files_size_is_raised_or_nothing_is_mounted() {
    require!(Need::Root, FUSE, Need::Tool("prlimit"));
    let volume = Volume::new();
    let lowered = mount_under(&volume, "--fsize=100000:100000");
    assert_eq!((lowered.success(), volume.is_mounted()), (raises_limits(), raises_limits()), "{}", lowered.report());
    if !volume.is_mounted() {
        assert!(lowered.stderr.contains("the limit of a file's size (ulimit -f)"), "{}", lowered.report());
        mount_under(&volume, "--fsize=100000:").ok();
    }
    fs::write(volume.point.join("large"), vec![7; 20 << 20]).unwrap();
    fs::File::open(volume.point.join("large")).unwrap().sync_all().unwrap();
    volume.umount();
    assert_eq!(cat(&volume.image, "/large").len(), 20 << 20);
    volume.check();
}

#[test]
fn of_open_files_is_raised_or_nothing_is_mounted() {
    require!(Need::Root, FUSE, Need::Tool("prlimit"));
    let volume = Volume::new();
    mount_under(&volume, "--nofile=16:1000").ok();
    assert!(volume.is_mounted());
    volume.umount();
    for most in 6..=20 {
        let refused = mount_under(&volume, &format!("--nofile={most}:{most}"));
        assert!(!refused.success() && !volume.is_mounted(), "{most}: {}", refused.report());
    }
    let said = mount_under(&volume, "--nofile=20:20").stderr;
    assert!(said.contains("the limit of open files (ulimit -n) is too low"), "{said}");
    volume.check();
}

/// `$1` is ubtrfs, `$2` the image, `$3` the mount point, `$4` the lowest and `$5` the highest value
/// of the limit, `$6` the limit. Prints with how many of the values the mount succeeded.
const MOUNTS: &str = r#"
    mounted=0
    for most in $(seq "$4" "$5"); do
        if timeout --signal=KILL 60 prlimit "$6=$most:$most" "$1" mount "$2" "$3"; then
            ls "$3" > /dev/null && "$1" umount "$3" || exit 1
            mounted=$((mounted + 1))
        fi
        if grep -q " $3 " /proc/self/mounts; then
            echo "$most: something is left mounted" >&2
            fusermount3 -u -z "$3"
            exit 1
        fi
    done
    echo "$mounted"
"#;

/// Returns the output of a user's mounts under limits.
fn users_mounts(volume: &Volume, limit: &str, least: u64, most: u64) -> Outcome {
    let program = lend(volume.dir.path(), Path::new(env!("CARGO_BIN_EXE_ubtrfs")), &[&volume.image, &volume.point]);
    for path in [&volume.image, &volume.point] {
        chown(path, Some(GAMES), Some(GAMES)).unwrap();
    }
    let mut line = shell_of(GAMES, volume.dir.path(), MOUNTS);
    line.arg(&program).args([&volume.image, &volume.point]);
    run(line.args([&least.to_string(), &most.to_string(), limit]))
}

#[test]
fn of_processes_lets_a_users_mount_work_or_fail_whole() {
    require!(Need::Root, FUSE, Need::Tool("prlimit"), Need::Tool("setpriv"), Need::Tool("unshare"));
    require!(Need::Tool("fusermount3"));
    let volume = Volume::new();
    // With these limits every mount has only a few threads.
    let outcome = users_mounts(&volume, "--nproc", 6, 60);
    assert_eq!(outcome.code(), Some(0), "{}", outcome.report());
    assert!(outcome.stdout.trim().parse::<u64>().unwrap() > 0, "{}", outcome.report());
    volume.check();
}

#[test]
fn of_a_files_size_refuses_a_users_mount_of_a_larger_image() {
    require!(Need::Root, FUSE, Need::Tool("prlimit"), Need::Tool("setpriv"), Need::Tool("unshare"));
    require!(Need::Tool("fusermount3"));
    let volume = Volume::new();
    let outcome = users_mounts(&volume, "--fsize", 100_000, 100_000);
    assert_eq!((outcome.code(), outcome.stdout.trim()), (Some(0), "0"), "{}", outcome.report());
    assert!(outcome.stderr.contains("the limit of a file's size (ulimit -f)"), "{}", outcome.report());
    volume.check();
}
