//! Tests that no process waits for a server that was killed.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::run;

use crate::harness::{Abort, FUSE, Server, Volume};

/// Reads a line, and then lists `argv[1]` into memory that is backed by the file `argv[2]`.
const LISTER: &str = r"
import ctypes, mmap, os, sys
directory = os.open(sys.argv[1], os.O_RDONLY)
memory = mmap.mmap(os.open(sys.argv[2], os.O_RDWR), 65536)
place = ctypes.addressof(ctypes.c_char.from_buffer(memory))
print('ready', flush=True)
sys.stdin.readline()
ctypes.CDLL(None).getdents64(directory, ctypes.c_void_p(place), 65536)
";

/// Aborts the connection and kills the process at the end of the test, so that nothing hangs.
struct EndAtEnd(Abort, Server);

impl EndAtEnd {
    fn of(volume: &Volume) -> Self {
        Self(Abort::of(volume), volume.server())
    }
}

impl Drop for EndAtEnd {
    fn drop(&mut self) {
        self.0.abort();
        run(Command::new("kill").args(["-KILL", &self.1.0.to_string()]));
    }
}

/// Waits until a condition is true.
#[track_caller]
fn eventually(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process has a thread in this state.
fn has_thread(process: u32, state: &str) -> bool {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.filter_map(|stat| Some(stat.rsplit_once(')')?.1.trim_start().starts_with(state))).any(|is| is)
}

fn start_lister(directory: &Path, memory: &Path) -> Child {
    let mut lister = Command::new("python3");
    lister.args(["-c", LISTER]).args([directory, memory]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut lister = lister.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(lister.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    lister
}

/// A thread that asks the kernel to drop a name waits for the directory's lock. A program holds
/// that lock while it lists the directory into memory of another server that hangs. No signal ends
/// that thread.
#[test]
fn no_request_waits_for_a_killed_server_of_which_a_thread_can_not_end() {
    require!(Need::Root, FUSE, Need::Tool("python3"));
    let hanging = Volume::new();
    hanging.mount("");
    fs::write(hanging.point.join("memory"), vec![0; 65536]).unwrap();
    // No page of the file is cached.
    hanging.umount();
    hanging.mount("");
    let volume = Volume::new();
    volume.mount("");
    let dir = volume.point.join("dir");
    fs::create_dir(&dir).unwrap();
    let mut lister = start_lister(&dir, &hanging.point.join("memory"));
    let end = EndAtEnd::of(&volume);
    let end_hanging = EndAtEnd::of(&hanging);
    end_hanging.1.signal("STOP");
    lister.stdin.take().unwrap().write_all(b"\n").unwrap();
    eventually("the listing has begun", || has_thread(lister.id(), "D"));

    let mut create = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    create.args(["subvolume", "create"]).arg(dir.join("subvolume")).stdout(Stdio::null()).stderr(Stdio::null());
    let mut create = create.spawn().unwrap();
    let server = end.1.0 as u32;
    eventually("a thread of the server waits for the directory", || has_thread(server, "D"));
    let point = volume.point.clone();
    let waiting = thread::spawn(move || fs::metadata(point.join("dir/none")).is_err());
    thread::sleep(Duration::from_millis(200));
    end.1.signal("KILL");
    // Requests are answered even if no thread is left that serves.
    thread::sleep(Duration::from_millis(200));
    let (done, all) = channel();
    for number in 0..20 {
        let (done, path) = (done.clone(), volume.point.join(format!("none-{number}")));
        thread::spawn(move || done.send(fs::metadata(path).is_err()));
    }
    for _ in 0..20 {
        let failed = all.recv_timeout(Duration::from_secs(30));
        assert_eq!(failed, Ok(true), "requests wait for a server that is no more");
    }
    drop((end_hanging, end));
    assert!(waiting.join().unwrap());
    let _ = create.wait();
    let _ = lister.kill();
    let _ = lister.wait();
}

/// Returns the watcher of a server, as its directory in `/proc`.
fn watcher_of(server: i32) -> Option<PathBuf> {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let mut children = processes.filter(|process| {
        let status = fs::read_to_string(process.join("status")).unwrap_or_default();
        status.lines().any(|line| line == format!("PPid:\t{server}"))
    });
    children.find(|process| fs::read(process.join("cmdline")).is_ok_and(|line| line.ends_with(b"--watcher\0")))
}

#[test]
fn the_watcher_holds_nothing_of_the_volume_and_ends_with_the_server_alone() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let server = volume.server();
    let watcher = watcher_of(server.0).expect("a watcher");
    let mut held: Vec<_> =
        fs::read_dir(watcher.join("fd")).unwrap().map(|entry| fs::read_link(entry.unwrap().path()).unwrap()).collect();
    held.retain(|held| !held.starts_with("/dev/null") && !held.to_string_lossy().starts_with("pipe:"));
    assert!(matches!(&held[..], [abort] if abort.ends_with("abort")), "{held:?}");
    assert_eq!(fs::read_link(watcher.join("cwd")).unwrap(), Path::new("/"));
    let number: i32 = watcher.file_name().unwrap().to_str().unwrap().parse().unwrap();
    for signal in ["TERM", "INT", "HUP"] {
        Server(number).signal(signal);
    }
    thread::sleep(Duration::from_millis(100));
    fs::write(volume.point.join("file"), "content").unwrap();
    assert!(watcher.exists());
    volume.umount();
    server.ended();
    eventually("the watcher has ended", || !watcher.exists());

    // If the connection has ended already, no other connection with that number is aborted.
    volume.mount("");
    let server = volume.server();
    let watcher = watcher_of(server.0).expect("a watcher");
    server.signal("KILL");
    server.ended();
    eventually("the watcher has ended", || !watcher.exists());
    volume.umount();
    volume.check();
}
