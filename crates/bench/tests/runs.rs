//! Runs the bench command, for seconds.

#![allow(clippy::unwrap_used, reason = "a test ends where something is not as it should be")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
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

/// Asserts that `dir` has only results, and that nothing is mounted there.
fn assert_cleared(dir: &Path) {
    let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name == "bench.json"), "{left:?}");
    assert!(!mount_points().iter().any(|point| point.starts_with(dir)));
}

#[test]
fn images_are_measured_beside_other_programs() {
    require!(Need::Ubtrfs, Need::Tool("mkfs.btrfs"));
    let dir = tempfile::tempdir().unwrap();
    let output = bench(dir.path(), &["--rounds", "1", "--peers", "library", "images"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let result = result(dir.path());
    assert_eq!(result["skipped"], serde_json::json!([]));
    let metrics = &result["samples"][0]["measured"]["metrics"];
    for step in ["mkfs --rootdir", "mkfs.btrfs --rootdir", "tar -c", "export", "import", "cp -a in", "cp -a out"] {
        assert!(metrics[step]["value"].as_f64() > Some(0.0), "{step}: {result}");
    }
    assert_cleared(dir.path());
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
        "scaling",
        "throttled",
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
fn a_volume_in_memory_is_measured_like_an_image() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["--rounds", "1", "--peers", "library-memory", "scaling", "throttled"];
    let output = bench(dir.path(), &words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let result = result(dir.path());
    let samples = result["samples"].as_array().unwrap();
    let is_scaling = |sample: &serde_json::Value| sample["case"].as_str().unwrap().starts_with("scaling-");
    assert!(!samples.is_empty() && samples.iter().all(is_scaling), "{samples:?}");
    for sample in samples {
        let metrics = &sample["measured"]["metrics"];
        assert!(metrics["rate"]["value"].as_f64().unwrap() > 0.0, "{sample}");
        let spent = ["runnable", "asleep"].map(|name| metrics[name]["value"].as_f64().unwrap());
        assert!(spent.iter().sum::<f64>() <= 100.0, "{sample}");
    }
    assert_cleared(dir.path());
}

/// Returns the rules of bandwidth on this machine, if it has the controller.
fn rules(dir: &Path) -> Option<String> {
    let controller = dir.join("blkio");
    std::fs::create_dir(&controller).unwrap();
    let mounted = mount("none", &controller, "cgroup", MountFlags::empty(), c"blkio").is_ok();
    let rules = std::fs::read_to_string(controller.join("blkio.throttle.write_bps_device")).ok();
    if mounted {
        unmount(&controller, UnmountFlags::DETACH).unwrap();
    }
    std::fs::remove_dir(&controller).unwrap();
    rules
}

#[test]
fn devices_are_limited_and_written_before_and_nothing_of_it_stays() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("fio"));
    let dir = tempfile::tempdir().unwrap();
    let before = rules(dir.path());
    let words =
        ["--rounds", "1", "--written", "--throttle", "4", "fio-seq", "--peers", "ubtrfs-loop,btrfs-direct,null"];
    let output = bench(dir.path(), &words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let result = result(dir.path());
    let skipped = result["skipped"].to_string();
    assert!(skipped.contains("null: has no device of its own"), "{skipped}");
    let peers = result["peers"].as_array().unwrap();
    if before.is_none() {
        assert!(skipped.contains("ubtrfs-loop: no bandwidth can be limited") && peers.is_empty(), "{result}");
    } else {
        assert_eq!(peers.len(), 2, "{result}");
        for peer in peers {
            assert_eq!(peer["facts"]["bandwidth"], "4 MB/s", "{peer}");
            assert_eq!(peer["facts"]["blocks of the image"], "written before", "{peer}");
        }
        for sample in result["samples"].as_array().unwrap() {
            let bandwidth = &sample["measured"]["metrics"]["bandwidth"]["value"];
            assert!(bandwidth.as_f64().unwrap() < 8.0, "more than the device has: {sample}");
        }
    }
    assert_eq!(rules(dir.path()), before);
    assert_cleared(dir.path());
}

#[test]
fn what_is_done_to_whole_volumes_is_measured_beside_the_kernel() {
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, Need::Tool("btrfs"));
    let dir = tempfile::tempdir().unwrap();
    let words = ["--rounds", "1", "--profile", "raid1", "--devices", "2", "maintenance"];
    let output = bench(dir.path(), &words).args(["--peers", "ubtrfs,btrfs-direct"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let result = result(dir.path());
    assert_eq!(result["skipped"], serde_json::json!([]));
    let samples = result["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 8, "{result}");
    for sample in samples {
        let bandwidth = &sample["measured"]["metrics"]["bandwidth"]["value"];
        assert!(bandwidth.as_f64() > Some(0.0), "{sample}");
    }
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
fn volumes_on_a_server_are_measured_step_by_step() {
    let tools = ["nbdkit", "nbdfuse", "dbench", "git", "sqlite3"].map(Need::Tool);
    require!(Need::Kernel, Need::Fuse, Need::Ubtrfs, tools[0], tools[1], tools[2], tools[3], tools[4]);
    let dir = tempfile::tempdir().unwrap();
    let words = ["--rounds", "1", "--peers", "ubtrfs,btrfs-direct,null", "network"];
    let output = bench(dir.path(), &words).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let result = result(dir.path());
    assert_eq!(result["skipped"], serde_json::json!([]));
    let samples = result["samples"].as_array().unwrap();
    let peers: Vec<_> = samples.iter().map(|sample| sample["peer"].as_str().unwrap()).collect();
    assert_eq!(peers, ["ubtrfs", "btrfs-direct"], "the others have no server");
    let printed = String::from_utf8(output.stdout).unwrap();
    for step in result["cases"][0]["steps"].as_array().unwrap().iter().map(|step| step.as_str().unwrap()) {
        assert!(printed.contains(&format!("delay of 1 ms: {step}")), "{printed}");
        for sample in samples {
            assert!(sample["measured"]["metrics"][step]["value"].is_f64(), "{step}: {sample}");
        }
    }
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
