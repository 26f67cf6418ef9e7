//! Tests with mounts whose server is hostile: nothing that it reports about itself is trusted
//! (invariant 39).

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use ubtrfs_testkit::kernel::LoopDevice;
use ubtrfs_testkit::need::Need;
use ubtrfs_testkit::ordinary_user::NOBODY;
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, compile, run};
use ubtrfs_testkit::scratch::mount_points;
use ubtrfs_testkit::threads_of::threads_of;

use crate::harness::{Volume, fails, ubtrfs};

const SERVER: &str = include_str!("hostile_server.c");

/// A mount that looks like a user's mount by ubtrfs.
struct Hostile {
    volume: Volume,
    server: Child,
}

impl Hostile {
    /// Makes a mount whose server reports what an honest one would, changed by `lie`. With `hangs`
    /// it does not answer; with `closed` neither, and only its user may access the mount.
    fn new(user: u32, how: &str, lie: impl FnOnce(&mut Value)) -> Self {
        Self::with_source(user, how, OsStr::new("hostile"), lie)
    }

    /// Makes such a mount, with this source.
    fn with_source(user: u32, how: &str, source: &OsStr, lie: impl FnOnce(&mut Value)) -> Self {
        let volume = Volume::new();
        volume.mount("");
        let mut report = volume.stats();
        volume.umount();
        lie(&mut report);
        let said = volume.dir.path().join("said");
        fs::write(&said, report.to_string()).unwrap();
        let mut line = Command::new(compile(volume.dir.path(), "server", SERVER));
        line.arg(&volume.point).arg(user.to_string()).arg(&said).arg(how).arg(source);
        let mut server = line.stdout(Stdio::piped()).spawn().unwrap();
        // Any request serves: INIT comes before it.
        let _ = fs::metadata(&volume.point);
        let mut ready = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        assert!(volume.is_mounted());
        Self { volume, server }
    }

    fn umount(&self, how: &[&str]) -> Outcome {
        let words = [&["umount"][..], how].concat();
        let mut line: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        line.push(self.volume.point.as_os_str());
        ubtrfs(&line)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A process that must not be ended.
struct Bystander(Child);

impl Bystander {
    fn new() -> Self {
        Self(Command::new("sleep").arg("300").spawn().unwrap())
    }

    /// Makes a server's report name this process.
    fn take_part_in(&self, report: &mut Value) {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        let started: u64 = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(19).unwrap().parse().unwrap();
        report["pid"] = self.0.id().into();
        report["pid_started"] = started.into();
    }
}

impl Drop for Bystander {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Invariant 39.
#[test]
fn a_process_that_a_hostile_server_names_is_neither_signalled_nor_waited_for() {
    require!(Need::Root, Need::Fuse, Need::Tool("cc"));
    for user in [0, NOBODY] {
        for how in [&["--force"][..], &[]] {
            let mut bystander = Bystander::new();
            let hostile = Hostile::new(user, "answers", |report| bystander.take_part_in(report));
            let begun = Instant::now();
            hostile.umount(how).ok();
            assert!(begun.elapsed() < Duration::from_secs(5), "user {user}, {how:?}: {:?}", begun.elapsed());
            assert!(!hostile.volume.is_mounted());
            assert!(bystander.0.try_wait().unwrap().is_none(), "it has ended: user {user}, {how:?}");
        }
    }
}

#[test]
fn a_mount_whose_server_answers_nothing_ends_by_force() {
    require!(Need::Root, Need::Fuse, Need::Tool("cc"));
    for user in [0, NOBODY] {
        let hostile = Hostile::new(user, "hangs", |_| ());
        hostile.umount(&["--force"]).ok();
        assert!(!hostile.volume.is_mounted());
    }
}

/// Waits until a condition is true, while a command waits for a server.
fn until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < limit, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Invariant 52: while root's command waits for the server, the user makes the path of the mount
/// refer to another one.
#[test]
fn what_is_unmounted_is_what_was_found_at_first() {
    require!(Need::Root, Need::Fuse, Need::Tool("cc"));
    let hostile = Hostile::new(NOBODY, "hangs", |_| ());
    let (place, point) = (hostile.volume.dir.path(), &hostile.volume.point);
    let other = ubtrfs_testkit::scratch::scratch_dir();
    let precious = other.path().join(point.file_name().unwrap());
    fs::create_dir(&precious).unwrap();
    run(command("mount", &["-t", "tmpfs", "precious"]).arg(&precious)).ok();
    let mut line = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    let mut umount = line.args(["umount", "--force"]).arg(point).stdout(Stdio::null()).spawn().unwrap();
    until("it asks the server", || threads_of(umount.id()).contains("request_wait_answer"));
    let moved = place.with_extension("moved");
    fs::rename(place, &moved).unwrap();
    symlink(other.path(), place).unwrap();
    let ended = umount.wait().unwrap();
    fs::remove_file(place).unwrap();
    fs::rename(&moved, place).unwrap();
    let is_left = mount_points().contains(&precious);
    run(Command::new("umount").arg(&precious));
    assert!(is_left, "invariant 52: another mount was unmounted");
    assert!(ended.success() && !hostile.volume.is_mounted());
}

/// Invariant 53.
#[test]
fn the_process_that_asks_as_a_user_is_not_his() {
    require!(Need::Root, Need::Fuse, Need::Tool("cc"), Need::Tool("setpriv"));
    let hostile = Hostile::new(NOBODY, "closed", |_| ());
    let field = |process: &str, number: usize| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").and_then(|(_, rest)| rest.split(' ').nth(number)?.parse::<u32>().ok())
    };
    let (parent, session) = (1, 3);
    let mut line = Command::new(env!("CARGO_BIN_EXE_ubtrfs"));
    let mut asking = line.arg("sync").arg(&hostile.volume.point).stderr(Stdio::null()).spawn().unwrap();
    let child = || {
        let all = fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        all.into_iter().find(|process| field(process, parent) == Some(asking.id()))
    };
    until("its child asks the server", || {
        child().is_some_and(|child| threads_of(child.parse().unwrap()).contains("request_wait_answer"))
    });
    let child = child().unwrap();
    let status = fs::read_to_string(format!("/proc/{child}/status")).unwrap();
    let sessions = [&*child, "self"].map(|process| field(process, session));
    // The operations that the kernel allows a user on a process that they may trace.
    let ids = [format!("--reuid={NOBODY}"), format!("--regid={NOBODY}")];
    let looked = |process: &str| {
        let mut line = command("setpriv", &[&ids[0], &ids[1], "--clear-groups", "readlink"]);
        run(line.arg(format!("/proc/{process}/exe"))).success()
    };
    let (is_traced, sees_own) = (looked(&child), looked("self"));
    drop(hostile);
    let _ = asking.wait();
    assert!(status.contains(&format!("\nUid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t")), "{status}");
    assert!(sees_own && !is_traced, "invariant 53: he may trace it");
    assert_ne!(sessions[0], sessions[1], "invariant 53: it has root's terminal");
}

/// Invariant 39. If root has made the mount, the devices that it names are opened, which shows that
/// the name refers to something.
#[test]
fn what_another_users_server_names_as_its_device_is_not_opened() {
    require!(Need::Root, Need::Fuse, Need::Tool("cc"));
    for (user, is_opened) in [(0, true), (NOBODY, false)] {
        let dir = ubtrfs_testkit::scratch::scratch_dir();
        let socket = dir.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let hostile = Hostile::new(user, "answers", |report| report["devices"] = json!([uri]));
        let has_come = |command: &[&str]| {
            let mut line: Vec<&OsStr> = command.iter().map(OsStr::new).collect();
            line.push(hostile.volume.point.as_os_str());
            thread::scope(|scope| {
                let asked = scope.spawn(|| ubtrfs(&line));
                let mut has_come = false;
                while !asked.is_finished() {
                    // Any connection is closed at once.
                    has_come |= listener.accept().is_ok();
                    thread::sleep(Duration::from_millis(5));
                }
                (has_come | listener.accept().is_ok(), asked.join().unwrap())
            })
        };
        for command in [&["filesystem", "usage"][..], &["filesystem", "df"], &["device", "usage"]] {
            let (has_come, outcome) = has_come(command);
            assert_eq!(has_come, is_opened, "user {user}, {command:?}: {}", outcome.report());
            if !is_opened {
                fails(&outcome, "another user serves this mount");
            }
        }
    }
}

/// Names from a server are escaped, so that they do not control a terminal.
#[test]
fn what_a_server_says_is_harmless_to_a_terminal() {
    require!(Need::Root, Need::Fuse, Need::Tool("cc"));
    let hostile = Hostile::new(NOBODY, "answers", |report| {
        report["mount_type"] = json!("\u{1b}]0;title\u{7}");
        report["aborted"] = json!("\u{1b}[2J");
    });
    let shown = ubtrfs(&["stats".as_ref(), hostile.volume.point.as_os_str()]).ok();
    let umount = hostile.umount(&[]);
    assert!(umount.stderr.contains("turned read-only"), "{}", umount.report());
    for text in [shown.stdout, umount.stderr] {
        assert!(text.contains("\\u{1b}") && !text.contains('\u{1b}'), "{text:?}");
    }
}

/// A mount by root is served by root's server, whatever other mount names the device, and whatever
/// covers the mount of root's server (invariant 51).
#[test]
fn a_second_mount_never_lands_on_another_users_server() {
    require!(Need::Kernel, Need::Fuse, Need::Tool("cc"));
    let volume = Volume::new();
    let device = LoopDevice::attach(&volume.image, false);
    let path = device.path();
    for how in ["answers", "hangs"] {
        for user in [0, NOBODY] {
            let name = |report: &mut Value| report["devices"] = json!([path]);
            let hostile = Hostile::with_source(user, how, path.as_os_str(), name);
            volume.try_mount_device(path, "").ok();
            fs::write(volume.point.join("file"), "ours").unwrap();
            // A user can cover a mount point that is in an own directory.
            run(command("mount", &["--bind"]).arg(&hostile.volume.point).arg(&volume.point)).ok();
            let second = Volume::without_image();
            let begun = Instant::now();
            second.try_mount_device(path, "").ok();
            assert!(begun.elapsed() < Duration::from_secs(20), "{how}: {:?}", begun.elapsed());
            assert_eq!(fs::read_to_string(second.point.join("file")).unwrap(), "ours");
            run(command("umount", &["-l"]).arg(&volume.point)).ok();
            volume.umount();
            second.umount();
        }
    }
    volume.check();
}
