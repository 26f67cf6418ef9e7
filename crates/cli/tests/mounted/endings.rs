//! How a mount ends when it isn't simply unmounted.

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{command, run};

use crate::harness::{FUSE, OVER_RINGS, Volume, cat, fails, ubtrfs};

/// A file's content, which is no text.
fn cat_bytes(device: &Path, path: &str) -> Vec<u8> {
    let output = Command::new(env!("CARGO_BIN_EXE_ubtrfs")).arg("cat").arg(device).arg(path).output().unwrap();
    assert!(output.status.success());
    output.stdout
}

#[test]
fn signals_end_it_with_a_commit() {
    require!(Need::Root, FUSE);
    for signal in ["TERM", "INT"] {
        let volume = Volume::new();
        volume.mount("commit=1000");
        fs::write(volume.point.join("file"), signal).unwrap();
        let server = volume.server();
        server.signal(signal);
        server.ended();
        assert!(!volume.is_mounted());
        assert_eq!(cat(&volume.image, "/file"), signal);
        volume.check();
    }
}

#[test]
fn a_signal_ends_it_though_it_is_in_use() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    let open = File::create(volume.point.join("open")).unwrap();
    fs::write(volume.point.join("file"), "content").unwrap();
    let server = volume.server();
    server.signal("TERM");
    server.ended();
    assert!(!volume.is_mounted());
    assert!(open.metadata().is_err(), "the connection is cut");
    drop(open);
    assert_eq!(cat(&volume.image, "/file"), "content");
    volume.check();
}

#[test]
fn umount_says_that_it_is_busy() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let open = File::create(volume.point.join("open")).unwrap();
    let own = format!("(process {})", std::process::id());
    let refused = ubtrfs(&["umount".as_ref(), volume.point.as_os_str()]);
    fails(&refused, "is busy: it is used by ");
    assert!(refused.stderr.contains(&own), "{}", refused.report());
    assert!(volume.is_mounted());
    drop(open);
    volume.umount();
}

#[test]
fn umount_waits_for_who_only_looks_in() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let open = File::create(volume.point.join("open")).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(500));
            drop(open);
        });
        ubtrfs(&["umount".as_ref(), volume.point.as_os_str()]).ok();
    });
    assert!(!volume.is_mounted());
}

/// A program that stores through a mapping, says so and keeps it. `$1` is the file, `$2` what it
/// stores.
const STORER: &str = r#"
import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
pages = mmap.mmap(fd, 256 * 4096)
os.close(fd)
for page in range(256):
    pages[page * 4096] = int(sys.argv[2])
print("stored", flush=True)
sys.stdin.read()
"#;

/// Signals a server while a program has stored through a mapping; `detached`: after `umount -l`.
fn signal_beside_a_mapping(detached: bool) {
    let volume = Volume::new();
    volume.mount("commit=1000");
    let file = volume.point.join("file");
    fs::write(&file, vec![1; 256 * 4096]).unwrap();
    let server = volume.server();
    let mut storer = Command::new("python3");
    storer.args(["-c", STORER]).arg(&file).arg("7").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut storer = storer.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(storer.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "stored\n");
    if detached {
        run(&mut command("umount", &["-l".as_ref(), volume.point.as_os_str()])).ok();
        assert!(!volume.is_mounted());
    }
    server.signal("TERM");
    server.ended();
    drop(storer.stdin.take());
    storer.wait().unwrap();
    let kept = cat_bytes(&volume.image, "/file");
    let saved = kept.iter().step_by(4096).filter(|byte| **byte == 7).count();
    assert_eq!((saved, kept.len()), (256, 256 * 4096));
    volume.check();
}

#[test]
fn a_signal_loses_no_store_of_a_live_mapping() {
    require!(Need::Root, FUSE, Need::Tool("python3"));
    signal_beside_a_mapping(false);
}

#[test]
fn a_signal_ends_a_mount_that_was_detached_while_in_use_and_loses_nothing() {
    require!(Need::Root, FUSE, Need::Tool("python3"));
    signal_beside_a_mapping(true);
}

#[test]
fn the_mount_of_a_dead_server_is_cleared_and_what_was_synced_is_there() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    fs::write(volume.point.join("synced"), "content").unwrap();
    ubtrfs(&["sync".as_ref(), volume.point.as_os_str()]).ok();
    fs::write(volume.point.join("lost"), "content").unwrap();
    let server = volume.server();
    server.signal("KILL");
    server.ended();
    assert!(volume.is_mounted());
    fails(&volume.try_mount(""), "the mount of a server that is no more");
    fails(&ubtrfs(&["stats".as_ref(), volume.point.as_os_str()]), "the server of this mount is no more");
    let cleared = volume.try_umount().ok();
    assert!(cleared.stderr.contains("what was neither synced nor committed is lost"), "{}", cleared.report());
    assert!(!volume.is_mounted());
    volume.check();
    volume.mount("");
    assert_eq!(fs::read_to_string(volume.point.join("synced")).unwrap(), "content");
    assert!(!volume.point.join("lost").exists());
    volume.umount();
}

#[test]
fn only_the_mount_of_a_dead_server_is_cleared_where_that_is_asked_for() {
    if OVER_RINGS {
        return;
    }
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    let clear = || ubtrfs(&["umount".as_ref(), "--dead".as_ref(), volume.point.as_os_str()]).ok();
    clear();
    volume.mount("");
    clear();
    assert!(volume.is_mounted());
    let server = volume.server();
    server.signal("KILL");
    server.ended();
    clear();
    assert!(!volume.is_mounted());
    volume.mount("");
    volume.umount();
}

/// What the kernel does with requests that nobody answers any more is cut off on every way out: a
/// mount that hangs would hang sync(2) of the whole machine.
struct Abort(PathBuf);

impl Abort {
    fn of(volume: &Volume) -> Self {
        let device = fs::metadata(&volume.point).unwrap().dev();
        Self(format!("/sys/fs/fuse/connections/{}/abort", rustix::fs::minor(device)).into())
    }
}

impl Drop for Abort {
    fn drop(&mut self) {
        // Where the connection is gone already there is nothing to cut.
        let _ = fs::write(&self.0, "1");
    }
}

/// By docs/durability.md, with the interval that mounts have by default.
#[test]
fn a_killed_server_loses_a_few_seconds_and_nothing_that_was_fsynced() {
    if OVER_RINGS {
        return;
    }
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let _abort = Abort::of(&volume);
    assert_eq!(volume.stats()["commit_interval_seconds"], 5);
    let write = |name: &str| {
        fs::write(volume.point.join(name), name.repeat(2000)).unwrap();
        File::open(volume.point.join(name)).unwrap()
    };
    write("old");
    let start = Instant::now();
    let mut synced = Vec::new();
    while start.elapsed() < Duration::from_secs(7) {
        let name = format!("synced-{}", synced.len());
        write(&name).sync_all().unwrap();
        synced.push(name);
        write(&format!("new-{}", synced.len()));
        std::thread::sleep(Duration::from_millis(20));
    }
    let server = volume.server();
    server.signal("KILL");
    server.ended();
    volume.umount();
    volume.check();
    volume.mount("");
    for name in synced.into_iter().chain(["old".to_owned()]) {
        assert_eq!(fs::read_to_string(volume.point.join(&name)).unwrap(), name.repeat(2000), "{name}");
    }
    volume.umount();
}

/// `CAP_SYS_RESOURCE`: who has it may lower what the kernel weighs processes by when memory runs
/// out.
const MAY_BE_SPARED: u32 = 24;

#[test]
fn a_servers_turn_comes_last_when_memory_runs_out() {
    require!(Need::Root, FUSE);
    let weight = |process: &str| fs::read_to_string(format!("/proc/{process}/oom_score_adj")).unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    let may = u64::from_str_radix(capabilities, 16).unwrap() >> MAY_BE_SPARED & 1 == 1;
    let volume = Volume::new();
    volume.mount("");
    let expected = if may { "-999\n".to_owned() } else { weight("self") };
    assert_eq!(weight(&volume.stats()["pid"].to_string()), expected);
    volume.umount();
}

#[test]
fn plain_umount_commits_and_frees_the_image() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("commit=1000");
    fs::write(volume.point.join("file"), "content").unwrap();
    let server = volume.server();
    run(&mut command("umount", &[&volume.point])).ok();
    // Of a fuseblk mount umount(8) returns after the last commit; the server then has but to let
    // go.
    let copy = volume.dir.path().join("copy");
    fs::copy(&volume.image, &copy).unwrap();
    assert_eq!(cat(&copy, "/file"), "content");
    server.ended();
    assert_eq!(cat(&volume.image, "/file"), "content");
}
