//! The bench command at work, for seconds.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::require;
use ubtrfs_testkit::scratch::mount_points;

fn bench(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ubtrfs-bench"));
    if let Some(binary) = ubtrfs_binary() {
        command.env("UBTRFS_BIN", binary);
    }
    command.args(["run", "--tiny", "--dir"]).arg(dir).arg("--out").arg(dir.join("bench.json")).args(words);
    command
}

fn result(dir: &Path) -> serde_json::Value {
    serde_json::from_slice(&std::fs::read(dir.join("bench.json")).unwrap()).unwrap()
}

/// `dir` has only results, and nothing is mounted there.
fn assert_cleared(dir: &Path) {
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "bench.json"), "{left:?}");
    assert!(!mount_points().iter().any(|point| point.starts_with(dir)));
}

#[test]
fn the_library_is_measured_without_any_mount() {
    let dir = tempfile::tempdir().unwrap();
    let words = [
        "--rounds",
        "2",
        "--peers",
        "library",
        "storm",
        "unlinked",
        "growth",
        "latency",
        "large-file",
        "snapshots",
        "volume",
    ];
    let output = bench(dir.path(), &words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let result = result(dir.path());
    assert_eq!(result["skipped"], serde_json::json!([]));
    assert_eq!(result["samples"].as_array().unwrap().len(), 2 * result["cases"].as_array().unwrap().len());
    assert_cleared(dir.path());
}

#[test]
fn a_storm_is_measured_on_ubtrfs_and_on_the_bound() {
    require!(Need::Fuse, Need::Ubtrfs);
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["--rounds", "2", "--peers", "null,ubtrfs", "storm"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let result = result(dir.path());
    let order: Vec<_> = result["samples"].as_array().unwrap().iter().map(|s| s["peer"].as_str().unwrap()).collect();
    assert_eq!(order, ["null", "ubtrfs", "ubtrfs", "null"], "{result}");
    let printed = String::from_utf8(output.stdout).unwrap();
    assert!(printed.contains("100 renames by one process"), "{printed}");
    assert_cleared(dir.path());
}

#[test]
fn a_signal_leaves_nothing_behind() {
    require!(Need::Fuse, Need::Ubtrfs);
    let dir = tempfile::tempdir().unwrap();
    let words = ["--rounds", "1000", "--peers", "null,ubtrfs", "storm"];
    let mut running = bench(dir.path(), &words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let start = Instant::now();
    while !mount_points().iter().any(|point| point.starts_with(dir.path())) {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is ever mounted");
        std::thread::sleep(Duration::from_millis(5));
    }
    kill_process(Pid::from_child(&running), Signal::TERM).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130));
    assert_cleared(dir.path());
}
