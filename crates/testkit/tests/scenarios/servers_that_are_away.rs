//! Mounts whose NBD server does not answer: which operations go on without it, and how the mounts
//! end.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::fs::{Advice, fadvise, getxattr, statvfs};
use ubtrfs_testkit::nbd_server::NbdServer;
use ubtrfs_testkit::need::{Need, ubtrfs_binary};
use ubtrfs_testkit::require;
use ubtrfs_testkit::run::{Outcome, command, run};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::subject::{FuseMount, Mount, Subject, assert_ends};

/// The timeout is so long that no request fails before the server is back.
const PATIENT: &str = "timeout=3600,memory=256M";
const WRITERS: u64 = 12;
const MEGABYTES: u64 = 24;
/// The time after which a request counts as hanging; nothing else depends on it.
const LONG: Duration = Duration::from_secs(120);

fn ubtrfs(arguments: &[&str]) -> Outcome {
    run(Command::new(ubtrfs_binary().expect("the ubtrfs binary")).args(arguments))
}

fn mount(server: &NbdServer, options: &str) -> Mount {
    Subject::ubtrfs().mount(&[Path::new(&server.uri(""))], options)
}

fn serving(mount: &Mount) -> &FuseMount {
    let Mount::Ubtrfs(serving) = mount else { unreachable!("a mount of ubtrfs") };
    serving
}

/// Returns what each of the writers writes: no zeros, which would take no time.
fn content(number: u64, at: u64) -> Vec<u8> {
    vec![1 + (number * MEGABYTES + at) as u8 % 200; 1 << 20]
}

/// Makes requests that reach the process of the mount, and need nothing from the device.
fn use_what_is_cached(place: &Path) -> std::io::Result<()> {
    statvfs(place)?;
    let small = File::open(place.join("small"))?;
    fadvise(&small, 0, None, Advice::DontNeed)?;
    assert_eq!(std::fs::read(place.join("small"))?, b"small");
    let mut value = [0; 16];
    let length = getxattr(place.join("small"), "user.a", &mut value[..])?;
    assert_eq!(&value[..length], b"value");
    assert_eq!(std::fs::read_dir(place.join("dir"))?.count(), 1);
    Ok(())
}

#[test]
fn what_is_cached_is_served_while_many_writers_wait() {
    require!(Need::Fuse, Need::Ubtrfs, Need::Tool("nbdkit"));
    let dir = scratch_dir();
    let server = NbdServer::nbdkit(&dir.path().join("socket"), &["memory", "1G"]);
    ubtrfs(&["mkfs", &server.uri("")]).ok();
    let mounted = mount(&server, PATIENT);
    let place = mounted.path();
    std::fs::write(place.join("small"), "small").unwrap();
    rustix::fs::setxattr(place.join("small"), "user.a", b"value", rustix::fs::XattrFlags::empty()).unwrap();
    std::fs::create_dir(place.join("dir")).unwrap();
    std::fs::write(place.join("dir/file"), "").unwrap();
    ubtrfs(&["sync", &place.display().to_string()]).ok();
    use_what_is_cached(place).unwrap();
    server.pause();
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        for number in 0..WRITERS {
            let written = &written;
            scope.spawn(move || {
                let mut file = File::create(place.join(format!("file{number}"))).unwrap();
                for at in 0..MEGABYTES {
                    file.write_all(&content(number, at)).unwrap();
                    written.fetch_add(1, SeqCst);
                }
                file.sync_all().unwrap();
            });
        }
        let (sender, receiver) = channel();
        let (written, is_over) = (&written, &is_over);
        scope.spawn(move || {
            // Waits until the writers have come to the point at which they wait.
            let (mut last, mut still) = (u64::MAX, 0);
            while still < 100 && !is_over.load(SeqCst) {
                use_what_is_cached(place).unwrap();
                thread::sleep(Duration::from_millis(10));
                let now = written.load(SeqCst);
                still = if now == last { still + 1 } else { 0 };
                last = now;
            }
            use_what_is_cached(place).unwrap();
            sender.send(()).unwrap();
        });
        let served = receiver.recv_timeout(LONG);
        is_over.store(true, SeqCst);
        server.resume();
        assert!(served.is_ok(), "what is cached is not served");
    });
    mounted.unmount();
    let mounted = mount(&server, "ro");
    for number in 0..WRITERS {
        let expected: Vec<u8> = (0..MEGABYTES).flat_map(|at| content(number, at)).collect();
        assert!(std::fs::read(mounted.path().join(format!("file{number}"))).unwrap() == expected);
    }
    mounted.unmount();
}

/// The mount is ended by umount(8) while a program waits, and by `ubtrfs umount` also while none
/// does.
#[test]
fn a_mount_that_is_ended_by_force_does_not_wait_for_a_server() {
    require!(Need::Root, Need::Fuse, Need::Ubtrfs, Need::Tool("nbdkit"));
    for (is_killed, a_program_waits, by_umount) in
        [(false, true, true), (true, true, true), (true, true, false), (true, false, false)]
    {
        let dir = scratch_dir();
        let image = dir.path().join("image");
        ubtrfs_testkit::progs::blank_image(&image, 512 << 20);
        let mut server = NbdServer::nbdkit(&dir.path().join("socket"), &["file", &image.display().to_string()]);
        ubtrfs(&["mkfs", &server.uri("")]).ok();
        let mounted = mount(&server, PATIENT);
        let serving = serving(&mounted);
        let (_, process) = serving.server();
        let place = mounted.path();
        std::fs::write(place.join("durable"), "durable").unwrap();
        File::open(place.join("durable")).unwrap().sync_all().unwrap();
        if is_killed {
            server.kill();
        } else {
            server.pause();
        }
        std::fs::write(place.join("lost"), "lost").unwrap();
        thread::scope(|scope| {
            if a_program_waits {
                let (sender, receiver) = channel();
                scope.spawn(move || {
                    let lost = File::open(place.join("lost")).unwrap();
                    sender.send(()).unwrap();
                    assert!(lost.sync_all().is_err(), "it is not durable");
                });
                receiver.recv().unwrap();
                // Waits until the request has reached the server.
                while serving.server().0["requests"]["fsync"].as_u64() < Some(2) {
                    thread::sleep(Duration::from_millis(10));
                }
            }
            if by_umount {
                let mut umount = command("umount", &["-f", "-l"]);
                run(umount.arg(place)).ok();
            } else {
                ubtrfs(&["umount", "--force", &place.display().to_string()]).ok();
            }
        });
        assert_ends(&process);
        drop(mounted);
        drop(server);
        let mounted = Subject::ubtrfs().mount(&[&image], "");
        assert_eq!(std::fs::read(mounted.path().join("durable")).unwrap(), b"durable");
        mounted.unmount();
    }
}

#[test]
fn a_mount_whose_server_answers_loses_nothing_by_force() {
    require!(Need::Root, Need::Fuse, Need::Ubtrfs, Need::Tool("nbdkit"));
    let dir = scratch_dir();
    let server = NbdServer::nbdkit(&dir.path().join("socket"), &["memory", "512M"]);
    ubtrfs(&["mkfs", &server.uri("")]).ok();
    let mounted = mount(&server, PATIENT);
    std::fs::write(mounted.path().join("a"), "a").unwrap();
    let in_use = File::open(mounted.path().join("a")).unwrap();
    ubtrfs(&["umount", "--force", &mounted.path().display().to_string()]).ok();
    drop((in_use, mounted));
    assert_eq!(ubtrfs(&["cat", &server.uri(""), "/a"]).ok().stdout, "a");
}
