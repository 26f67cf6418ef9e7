//! When several processes would write to an export, only one of them does (invariant 12).

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use ubtrfs_testkit::lossy_server::LossyServer;
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, ubtrfs_check};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::{Mount, Subject};

const SIZE: usize = 256 << 20;
/// The range from the end of the first superblock on that has the mark of the writer.
const MARK: std::ops::Range<usize> = 68 << 10..72 << 10;

fn ubtrfs(arguments: &[&str]) -> Outcome {
    run(Command::new(ubtrfs_binary().expect("the ubtrfs binary")).args(arguments))
}

/// Runs the command in a PID namespace of its own, which has none of this one's processes.
fn in_a_container(arguments: &[&str]) -> Outcome {
    let line = ["--pid", "--fork", "--mount-proc"];
    run(command("unshare", &line).arg(ubtrfs_binary().expect("the ubtrfs binary")).args(arguments))
}

fn made(dir: &Path) -> LossyServer {
    let server = LossyServer::start(&dir.join("socket"), vec![0; SIZE]);
    ubtrfs(&["mkfs", &server.uri()]).ok();
    server
}

fn assert_refused(outcome: &Outcome) {
    assert!(outcome.code() == Some(1) && outcome.stderr.contains("in use by process"), "{}", outcome.report());
}

#[test]
fn a_second_writer_is_refused_by_whatever_name_it_calls_the_export() {
    require!(Need::Fuse, Need::Ubtrfs);
    let dir = scratch_dir();
    let server = made(dir.path());
    std::os::unix::fs::symlink(dir.path().join("socket"), dir.path().join("other")).unwrap();
    let other = format!("nbd+unix:///?socket={}", dir.path().join("other").display());
    let mounted = Subject::ubtrfs().mount(&[Path::new(&server.uri())], "");
    std::fs::write(mounted.path().join("a"), "a").unwrap();
    for uri in [server.uri(), other] {
        assert_refused(&ubtrfs(&["cp", "/etc/hostname", &format!("{uri}:/b")]));
        assert_refused(&ubtrfs(&["mkfs", "--force", &uri]));
    }
    mounted.unmount();
    ubtrfs(&["cp", "/etc/hostname", &format!("{}:/b", server.uri())]).ok();
    assert_eq!(ubtrfs(&["cat", &server.uri(), "/a"]).ok().stdout, "a");
    assert!(server.durable()[MARK].iter().all(|byte| *byte == 0), "the mark is taken away");
}

/// The export was empty when it was opened.
#[test]
fn an_export_that_a_mounted_volume_gets_has_one_writer_too() {
    require!(Need::Fuse, Need::Ubtrfs);
    for by_replacing in [false, true] {
        let dir = scratch_dir();
        let server = made(dir.path());
        let next = LossyServer::start(&dir.path().join("next"), vec![0; SIZE]);
        let mounted = Subject::ubtrfs().mount(&[Path::new(&server.uri())], "");
        let point = mounted.path().to_str().unwrap();
        if by_replacing {
            ubtrfs(&["replace", "start", "1", &next.uri(), point]).ok();
        } else {
            ubtrfs(&["device", "add", &next.uri(), point]).ok();
            ubtrfs(&["device", "remove", "1", point]).ok();
        }
        assert_refused(&ubtrfs(&["cp", "/etc/hostname", &format!("{}:/b", next.uri())]));
        mounted.unmount();
        ubtrfs(&["cp", "/etc/hostname", &format!("{}:/b", next.uri())]).ok();
        assert!(next.durable()[MARK].iter().all(|byte| *byte == 0), "the mark is taken away");
    }
}

#[test]
fn a_writer_in_another_container_is_refused_and_one_that_was_killed_is_not_waited_for() {
    require!(Need::Root, Need::Fuse, Need::Ubtrfs, Need::Tool("unshare"));
    let dir = scratch_dir();
    let server = made(dir.path());
    let mounted = Subject::ubtrfs().mount(&[Path::new(&server.uri())], "");
    let file = File::create(mounted.path().join("a")).unwrap();
    (&file).write_all(b"a").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_refused(&in_a_container(&["cp", "/etc/hostname", &format!("{}:/b", server.uri())]));
    let Mount::Ubtrfs(serving) = &mounted else { unreachable!("a mount of ubtrfs") };
    serving.kill_server();
    assert!(server.durable()[MARK].iter().any(|byte| *byte != 0));
    ubtrfs(&["cp", "/etc/hostname", &format!("{}:/b", server.uri())]).ok();
    assert_eq!(ubtrfs(&["cat", &server.uri(), "/a"]).ok().stdout, "a");
}

/// The machine slept or was cut off for longer than others wait.
#[test]
#[ignore = "soak: takes a minute"]
fn a_writer_that_was_stopped_and_taken_for_dead_writes_nothing_more() {
    require!(Need::Kernel, Need::Root, Need::Fuse, Need::Ubtrfs, Need::Tool("unshare"));
    let dir = scratch_dir();
    let server = made(dir.path());
    let mounted = Subject::ubtrfs().mount(&[Path::new(&server.uri())], "commit=3600");
    let write = |name: &str| -> std::io::Result<()> {
        let mut file = File::create(mounted.path().join(name))?;
        file.write_all(&vec![7; 1 << 20])?;
        file.sync_all()
    };
    write("before").unwrap();
    let report = ubtrfs(&["stats", "--json", &mounted.path().display().to_string()]).ok().stdout;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let process = Pid::from_raw(report["pid"].as_i64().unwrap() as i32).unwrap();
    kill_process(process, Signal::STOP).unwrap();
    let begun = Instant::now();
    let taken = in_a_container(&["cp", "/etc/hostname", &format!("{}:/taken", server.uri())]);
    kill_process(process, Signal::CONT).unwrap();
    taken.ok();
    assert!(begun.elapsed() >= Duration::from_secs(30), "it was watched");
    let after = server.durable();
    assert!(write("after").is_err());
    drop(mounted);
    assert!(server.durable() == after, "invariant 12: nothing was written any more");
    let image = dir.path().join("image");
    std::fs::write(&image, after).unwrap();
    ubtrfs_check(&image).ok();
    assert_btrfs_check_clean(&image);
    for name in ["/before", "/taken"] {
        ubtrfs(&["cat", &image.display().to_string(), name]).ok();
    }
}

/// The same with requests in all queues, on a slow server.
#[test]
#[ignore = "soak: takes minutes"]
fn a_writer_that_was_stopped_with_full_queues_writes_nothing_over_the_next_ones_files() {
    require!(Need::Kernel, Need::Root, Need::Fuse, Need::Ubtrfs, Need::Tool("unshare"));
    let dir = scratch_dir();
    let server = made(dir.path());
    let mounted = Subject::ubtrfs().mount(&[Path::new(&server.uri())], "commit=3600");
    let write = |name: &str, len: usize| -> std::io::Result<()> {
        let mut file = File::create(mounted.path().join(name))?;
        file.write_all(&vec![7; len])?;
        file.sync_all()
    };
    write("before", 1 << 20).unwrap();
    let report = ubtrfs(&["stats", "--json", &mounted.path().display().to_string()]).ok().stdout;
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    let process = Pid::from_raw(report["pid"].as_i64().unwrap() as i32).unwrap();
    let next: Vec<u8> = (0..40 << 20).map(|at: u32| (at / 7) as u8).collect();
    std::fs::write(dir.path().join("next"), &next).unwrap();
    server.slow_down(2 << 20);
    let after = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write("during", 100 << 20));
        let writes = server.writes();
        while server.writes() < writes + 4 {
            std::thread::sleep(Duration::from_millis(10));
        }
        kill_process(process, Signal::STOP).unwrap();
        let from = dir.path().join("next").display().to_string();
        let taken = in_a_container(&["cp", &from, &format!("{}:/next", server.uri())]);
        let after = server.durable();
        server.slow_down(0);
        kill_process(process, Signal::CONT).unwrap();
        taken.ok();
        assert!(writer.join().unwrap().is_err());
        after
    });
    drop(mounted);
    assert!(server.durable() == after, "invariant 12: nothing was written any more");
    let image = dir.path().join("image");
    std::fs::write(&image, after).unwrap();
    ubtrfs_check(&image).ok();
    assert_btrfs_check_clean(&image);
    for name in ["/before", "/next"] {
        ubtrfs(&["cat", &image.display().to_string(), name]).ok();
    }
}
