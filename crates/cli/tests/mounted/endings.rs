//! Tests of how a mount ends other than by an ordinary unmount.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::{NOBODY, in_private_namespace};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, compile, run};

use crate::harness::{Abort, FUSE, OVER_RINGS, Server, TRANSPORT, Volume, cat, fails, ubtrfs};
use crate::users_mount::UsersMount;

/// Returns the binary content of a file.
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
    assert!(open.metadata().is_err(), "the connection is aborted");
    drop(open);
    assert_eq!(cat(&volume.image, "/file"), "content");
    volume.check();
}

/// umount(2) with `MNT_FORCE` aborts the connection before it unmounts. The server notices that,
/// and leaves the unmount to the caller.
#[test]
fn forced_unmounts_do_not_find_the_mount_gone() {
    const AT_ONCE: usize = 4;
    const TIMES: usize = 8;
    require!(Need::Root, FUSE);
    let force = || {
        let volume = Volume::new();
        for _ in 0..TIMES {
            volume.mount("");
            let server = volume.server();
            run(command("umount", &["-f"]).arg(&volume.point)).ok();
            assert!(!volume.is_mounted());
            server.ended();
        }
        volume.check();
    };
    thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(force))));
}

/// Runs a server in the foreground that takes the kernel for one that sends no SYNCFS: sync(2)
/// reaches the server through a block device, which it provides to the kernel.
fn serve_with_a_sync_device(volume: &Volume) -> Child {
    let mut server = Command::new("setarch");
    server.args([std::env::consts::ARCH, "--uname-2.6", env!("CARGO_BIN_EXE_ubtrfs"), "mount", "-f"]);
    server.args(["-o", TRANSPORT]).args([&volume.image, &volume.point]);
    let server = server.stderr(Stdio::inherit()).spawn().unwrap();
    let begun = Instant::now();
    while !volume.is_mounted() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it is mounted");
        thread::sleep(Duration::from_millis(10));
    }
    server
}

/// A sync(2) waits for the server. When the server ends, also by force, it waits for its device,
/// and the connection is aborted before that. Builds that check the order of locks check it here.
#[test]
fn it_ends_in_order_where_syncs_arrive_by_a_device() {
    require!(Need::Root, FUSE, Need::Tool("setarch"));
    for force in [true, false, true, true] {
        let volume = Volume::new();
        let mut server = serve_with_a_sync_device(&volume);
        fs::write(volume.point.join("file"), "content").unwrap();
        thread::scope(|scope| {
            scope.spawn(|| run(&mut Command::new("sync")).ok());
            scope.spawn(|| run(&mut Command::new("sync")).ok());
            let mut line: Vec<&OsStr> = vec!["umount".as_ref()];
            line.extend(force.then_some(OsStr::new("--force")));
            line.push(volume.point.as_os_str());
            ubtrfs(&line).ok();
        });
        assert!(server.wait().unwrap().success(), "by force: {force}");
        assert!(!volume.is_mounted());
        volume.check();
    }
}

#[test]
fn umount_reports_that_the_mount_is_busy() {
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
fn umount_waits_for_transient_users() {
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    for _ in 0..10 {
        volume.mount("");
        let open = File::create(volume.point.join("open")).unwrap();
        let (umount, stayed) = thread::scope(|scope| {
            let begun = Instant::now();
            let inside = scope.spawn(move || {
                thread::sleep(Duration::from_millis(500));
                drop(open);
                begun.elapsed()
            });
            (ubtrfs(&["umount".as_ref(), volume.point.as_os_str()]), inside.join().unwrap())
        });
        if umount.success() || stayed < Duration::from_millis(1500) {
            umount.ok();
            assert!(!volume.is_mounted());
            return;
        }
        // The process that used the mount was not scheduled in time, so the result is unknown.
        volume.umount();
    }
}

/// A program that stores through a mapping of a file in the background, and keeps the mapping but
/// no open file. When it has stored, it prints its pid.
const STORER: &str = r#"
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* The mapping is only in one process: Linux writes the pages when any copy of it ends. */
static int store(const char *name, int ready) {
    int file = open(name, O_RDWR);
    char *pages = mmap(0, 256 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || pages == MAP_FAILED || close(file) || chdir("/")) return 1;
    for (int page = 0; page < 256; page++) pages[page * 4096] = 7;
    write(ready, "", 1);
    for (int other = 0; other < 32; other++) close(other);
    alarm(120);
    for (;;) pause();
}

int main(int argc, char **argv) {
    int ready[2];
    if (argc != 2 || pipe(ready)) return 1;
    int child = fork();
    if (child == 0) return store(argv[1], ready[1]);
    close(ready[1]);
    char byte;
    if (child < 0 || read(ready[0], &byte, 1) != 1) return 1;
    printf("%d\n", child);
    return 0;
}
"#;

/// A process that runs [`STORER`].
struct Storing(String);

impl Storing {
    fn said(outcome: &Outcome) -> Self {
        Self(outcome.stdout.trim().to_owned())
    }
}

impl Drop for Storing {
    fn drop(&mut self) {
        run(&mut command("kill", &[&self.0]));
    }
}

/// Asserts that the volume contains the data that the storer stored.
#[track_caller]
fn assert_stored(volume: &Volume, path: &str) {
    let kept = cat_bytes(&volume.image, path);
    let saved = kept.iter().step_by(4096).filter(|byte| **byte == 7).count();
    assert_eq!((saved, kept.len()), (256, 256 * 4096));
    volume.check();
}

/// Sends a signal to a server after a program has stored through a mapping; with `detached`, after
/// `umount -l`.
fn signal_beside_a_mapping(detached: bool) {
    let volume = Volume::new();
    let storer = compile(volume.dir.path(), "storer", STORER);
    volume.mount("commit=1000");
    let file = volume.point.join("file");
    fs::write(&file, vec![1; 256 * 4096]).unwrap();
    let server = volume.server();
    let storing = Storing::said(&run(Command::new(&storer).arg(&file)).ok());
    if detached {
        run(&mut command("umount", &["-l".as_ref(), volume.point.as_os_str()])).ok();
        assert!(!volume.is_mounted());
    }
    server.signal("TERM");
    server.ended();
    drop(storing);
    assert_stored(&volume, "/file");
}

#[test]
fn a_signal_loses_no_store_of_a_live_mapping() {
    require!(Need::Root, FUSE, Need::Tool("cc"));
    signal_beside_a_mapping(false);
}

#[test]
fn a_signal_ends_a_mount_that_was_detached_while_in_use_and_loses_nothing() {
    require!(Need::Root, FUSE, Need::Tool("cc"));
    signal_beside_a_mapping(true);
}

/// The user who mounted the volume may not read the mappings of other processes, not even those of
/// the same user.
#[test]
fn a_signal_loses_no_store_of_an_ordinary_users_mapping() {
    require!(Need::Root, FUSE, Need::Tool("cc"), Need::Tool("setpriv"), Need::Tool("unshare"));
    require!(Need::Tool("fusermount3"), Need::Tool("nsenter"));
    // In the second volume the user may not open the root directory.
    for (detached, is_root_closed) in [(true, false), (false, true)] {
        let volume = Volume::new();
        compile(volume.dir.path(), "storer", STORER);
        volume.mount("");
        let dir = volume.point.join("dir");
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("file"), vec![1; 256 * 4096]).unwrap();
        for path in [&dir, &dir.join("file")] {
            chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        if is_root_closed {
            fs::set_permissions(&volume.point, PermissionsExt::from_mode(0o711)).unwrap();
        }
        volume.umount();
        let mount = UsersMount::new(&volume, "commit=1000");
        let storing = Storing::said(&mount.as_user(r#"exec "$3/storer" "$2/dir/file""#, &volume).ok());
        if detached {
            mount.as_user(r#"fusermount3 -uz "$2""#, &volume).ok();
        }
        mount.server.signal("TERM");
        mount.server.ended();
        drop(storing);
        assert_stored(&volume, "/dir/file");
    }
}

#[test]
fn a_signal_ends_a_mount_that_another_mount_namespace_has() {
    require!(Need::Root, FUSE, Need::Tool("unshare"));
    let volume = Volume::new();
    volume.mount("commit=1000");
    fs::write(volume.point.join("file"), "content").unwrap();
    let server = volume.server();
    let mut other = in_private_namespace(volume.dir.path());
    other.args(["sh", "-c", "echo ready; read line || true"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut other = other.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    server.signal("TERM");
    server.ended();
    assert!(!volume.is_mounted() && other.try_wait().unwrap().is_none());
    assert_eq!(cat(&volume.image, "/file"), "content");
    volume.check();
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());
}

/// A program that stops threads, reports that, and continues them when its input ends.
const STOPPER: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

int main(int argc, char **argv) {
    for (int number = 1; number < argc; number++) {
        int thread = atoi(argv[number]);
        if (ptrace(PTRACE_SEIZE, thread, 0, 0) || ptrace(PTRACE_INTERRUPT, thread, 0, 0)) return 1;
        waitpid(thread, 0, __WALL);
    }
    puts("stopped");
    fflush(stdout);
    getchar();
    return 0;
}
"#;

/// Stops the threads that answer requests. The returned program continues them when its input ends.
fn stop_serving(volume: &Volume, server: &Server) -> Child {
    let stopper = compile(volume.dir.path(), "stopper", STOPPER);
    let tasks = fs::read_dir(format!("/proc/{}/task", server.0)).unwrap().flatten();
    let serves = |task: &fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).unwrap();
        name.starts_with("fuse-") || name == "ubtrfs\n"
    };
    let threads: Vec<_> = tasks.filter(serves).map(|task| task.file_name()).collect();
    let mut stopped = Command::new(stopper);
    stopped.args(&threads).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut stopped = stopped.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(stopped.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "stopped\n");
    stopped
}

/// The last request gets another error than the requests after the end of the connection.
#[test]
fn watching_ends_quietly_when_the_connection_is_aborted() {
    if OVER_RINGS {
        return;
    }
    require!(Need::Root, FUSE, Need::Tool("cc"));
    let volume = Volume::new();
    volume.mount("");
    let abort = AbortAtEnd(Abort::of(&volume));
    let server = volume.server();
    let mut watch = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    watch.args(["stats", "--watch"]).arg(&volume.point).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut watch = watch.spawn().unwrap();
    let mut out = BufReader::new(watch.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.contains("requests/s"), "{line}");
    let mut stopped = stop_serving(&volume, &server);
    thread::sleep(Duration::from_millis(1500));
    drop(abort);
    let watch = watch.wait_with_output().unwrap();
    assert!(watch.status.success(), "{}", String::from_utf8_lossy(&watch.stderr));
    drop(stopped.stdin.take());
    stopped.wait().unwrap();
    server.ended();
    volume.check();
}

/// No request is answered any more, not even those that the server sends to itself.
#[test]
fn a_signal_has_all_committed_by_a_server_whose_requests_hang() {
    if OVER_RINGS {
        return;
    }
    require!(Need::Root, FUSE, Need::Tool("cc"));
    let volume = Volume::new();
    volume.mount("commit=1000");
    let _abort = AbortAtEnd(Abort::of(&volume));
    let open = File::create(volume.point.join("open")).unwrap();
    fs::write(volume.point.join("file"), "content").unwrap();
    let server = volume.server();
    let mut stopped = stop_serving(&volume, &server);
    server.signal("TERM");
    let (sender, receiver) = channel();
    thread::spawn(move || {
        while open.metadata().is_ok() {
            thread::sleep(Duration::from_millis(20));
        }
        let _ = sender.send(());
    });
    receiver.recv_timeout(Duration::from_secs(60)).expect("the connection is aborted");
    assert!(!volume.is_mounted());
    let copy = volume.dir.path().join("copy");
    fs::copy(&volume.image, &copy).unwrap();
    assert_eq!(cat(&copy, "/file"), "content");
    drop(stopped.stdin.take());
    stopped.wait().unwrap();
    server.ended();
    volume.check();
}

#[test]
fn the_mount_of_a_dead_server_is_cleared_and_synced_data_is_there() {
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
    for command in [
        &["stats"][..],
        &["balance", "status"],
        &["balance", "cancel"],
        &["replace", "status"],
        &["scrub", "status"],
        &["scrub", "cancel"],
        &["device", "stats"],
    ] {
        let line: Vec<_> = command.iter().map(OsStr::new).chain([volume.point.as_os_str()]).collect();
        fails(&ubtrfs(&line), "the server of this mount is no more");
    }
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

/// Aborts the connection on every path out of the test: a mount that hangs would block sync(2) of
/// the whole machine.
struct AbortAtEnd(Abort);

impl Drop for AbortAtEnd {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Checks the statement of docs/durability.md, with the default commit interval.
#[test]
fn a_killed_server_loses_a_few_seconds_and_nothing_that_was_fsynced() {
    if OVER_RINGS {
        return;
    }
    require!(Need::Root, FUSE);
    let volume = Volume::new();
    volume.mount("");
    let _abort = AbortAtEnd(Abort::of(&volume));
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

/// `CAP_SYS_RESOURCE` lets a process lower its score for the OOM killer.
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
    for _ in 0..10 {
        let volume = Volume::new();
        volume.mount("commit=1000");
        fs::write(volume.point.join("file"), "content").unwrap();
        let server = volume.server();
        run(&mut command("umount", &[&volume.point])).ok();
        if is_held_elsewhere(&volume) {
            continue;
        }
        // For a fuseblk mount umount(8) returns after the last commit; the server then only has to
        // exit.
        let copy = volume.dir.path().join("copy");
        fs::copy(&volume.image, &copy).unwrap();
        assert_eq!(cat(&copy, "/file"), "content");
        server.ended();
        assert_eq!(cat(&volume.image, "/file"), "content");
        return;
    }
    panic!("all mounts were copied into the mount namespaces of others");
}

/// Whether another mount namespace that was made while the volume was mounted still has that mount.
/// The mount ends there, and not with umount(8) here.
fn is_held_elsewhere(volume: &Volume) -> bool {
    let point = format!(" {} ", volume.point.display());
    let tables = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path().join("mountinfo"));
    tables.filter_map(|table| fs::read_to_string(table).ok()).any(|table| table.contains(&point))
}
