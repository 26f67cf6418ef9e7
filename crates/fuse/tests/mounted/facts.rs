//! Tests of the behaviour of the kernel on which servers rely.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;
use std::time::{Duration, Instant};

use ubtrfs_fuse::mount::MountOptions;
use ubtrfs_fuse::{Capabilities, Config, Way};

use crate::harness::{Mounted, possible_as_root};
use crate::memfs::Behaviour;

fn full() -> Config {
    Config { wanted: Config::FULL, threads: 4, ..Config::default() }
}

fn shared() -> MountOptions {
    MountOptions { allow_other: true, ..MountOptions::default() }
}

/// Runs a shell command as another user with one supplementary group.
fn as_other(command: &str) {
    let privileges = ["--reuid=4321", "--regid=4321", "--groups=1234", "sh", "-c", command];
    let output = Command::new("setpriv").args(privileges).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn requests_of_rings_are_counted_by_the_thread_that_served_them() {
    if !possible_as_root("requests_of_rings_are_counted_by_the_thread_that_served_them") {
        return;
    }
    let mounted = Mounted::plain();
    let Way::Rings { hops, .. } = mounted.session.way() else { return };
    let before = hops.read();
    // Of three requests one is served at once, one is postponed, and one is not tried.
    for number in 0..30 {
        assert!(fs::metadata(mounted.path(&format!("nothing{number}"))).is_err());
    }
    let now = hops.read();
    let at_once = now.at_once - before.at_once;
    let (postponed, not_tried) = (now.postponed - before.postponed, now.not_tried - before.not_tried);
    assert!([at_once, postponed, not_tried].iter().all(|count| (9..=12).contains(count)), "{before:?} {now:?}");
    let by_others = now.answered_elsewhere + now.woken - before.answered_elsewhere - before.woken;
    assert_eq!(by_others, postponed + not_tried, "{before:?} {now:?}");
}

#[test]
fn enosys_for_open_sticks() {
    if !possible_as_root("enosys_for_open_sticks") {
        return;
    }
    let behaviour = Behaviour { no_open: true, ..Behaviour::default() };
    let mounted = Mounted::new(behaviour, &shared(), &full());
    fs::write(mounted.path("file"), "content").unwrap();
    for _ in 0..3 {
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"content");
        assert_eq!(fs::read_dir(mounted.dir.path()).unwrap().count(), 1);
    }
    let fs = mounted.fs();
    assert_eq!(fs.asked("OPEN "), 1, "{:?}", fs.all_asked());
    assert_eq!(fs.asked("OPENDIR"), 3);
    assert_eq!(fs.asked("CREATE"), 1);
}

#[test]
fn truncation_by_open_is_a_setattr() {
    if !possible_as_root("truncation_by_open_is_a_setattr") {
        return;
    }
    for no_open in [false, true] {
        let mounted = Mounted::new(Behaviour { no_open, ..Behaviour::default() }, &shared(), &full());
        fs::write(mounted.path("file"), "content").unwrap();
        OpenOptions::new().write(true).truncate(true).open(mounted.path("file")).unwrap();
        assert_eq!(fs::metadata(mounted.path("file")).unwrap().len(), 0);
        let fs = mounted.fs();
        assert_eq!(fs.asked("SETATTR size=Some(0) kill=false mode=None"), 1, "{:?}", fs.all_asked());
        assert!(!fs.all_asked().iter().any(|asked| asked.starts_with("OPEN") && asked.contains("TRUNC")));
    }
}

#[test]
fn set_id_bits_are_ours_to_clear() {
    if !possible_as_root("set_id_bits_are_ours_to_clear") {
        return;
    }
    let options = MountOptions { default_permissions: true, ..shared() };
    let mounted = Mounted::new(Behaviour::default(), &options, &full());
    let path = mounted.path("file");
    fs::write(&path, "content").unwrap();
    let set = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    set(0o6777);
    // The superuser's writes clear nothing.
    OpenOptions::new().append(true).open(&path).unwrap().write_all(b"x").unwrap();
    as_other(&format!("echo y >> {}", path.display()));
    let fs = mounted.fs();
    assert_eq!(fs.asked("WRITE 1 WriteFlags(0x0)"), 1, "{:?}", fs.all_asked());
    assert_eq!(fs.asked("WRITE 2 WriteFlags(KILL_SUIDGID)"), 1, "{:?}", fs.all_asked());
    set(0o6777);
    as_other(&format!("truncate -s 3 {}", path.display()));
    set(0o6777);
    as_other(&format!(": > {}", path.display()));
    assert_eq!(fs.asked("SETATTR size=Some(3) kill=true mode=None"), 1, "{:?}", fs.all_asked());
    assert_eq!(fs.asked("SETATTR size=Some(0) kill=true mode=None"), 1, "{:?}", fs.all_asked());
    set(0o6777);
    chown(&path, Some(1), Some(1)).unwrap();
    assert_eq!(fs.asked("SETATTR size=None kill=true mode=None"), 1, "{:?}", fs.all_asked());
}

#[test]
fn requests_that_create_have_umask_and_group() {
    if !possible_as_root("requests_that_create_have_umask_and_group") {
        return;
    }
    let mounted = Mounted::new(Behaviour::default(), &shared(), &full());
    chown(mounted.dir.path(), None, Some(1234)).unwrap();
    as_other(&format!("umask 027; mkdir {}", mounted.path("dir").display()));
    let fs = mounted.fs();
    assert_eq!(
        fs.asked("MKDIR mode=40777 umask=27 groups=[1234] uid=4321")
            + fs.asked("MKDIR mode=777 umask=27 groups=[1234] uid=4321"),
        1,
        "{:?}",
        fs.all_asked()
    );
}

#[test]
fn id_mapping_hides_callers() {
    if !possible_as_root("id_mapping_hides_callers") {
        return;
    }
    let options = MountOptions { default_permissions: true, ..shared() };
    let config = Config { wanted: Config::FULL | Capabilities::ALLOW_IDMAP, ..Config::default() };
    let mounted = Mounted::new(Behaviour::default(), &options, &config);
    if !mounted.session.granted().capabilities.contains(Capabilities::ALLOW_IDMAP) {
        return;
    }
    File::create(mounted.path("file")).unwrap();
    let fs = mounted.fs();
    assert_eq!(fs.asked("CREATE mode=100666 umask=22 uid=0"), 1, "{:?}", fs.all_asked());
    assert!(fs.asked("GETATTR uid=-1") > 0, "{:?}", fs.all_asked());
    assert_eq!(fs.asked("GETATTR uid=0"), 0, "{:?}", fs.all_asked());
}

#[test]
fn writes_by_mapping_are_marked() {
    if !possible_as_root("writes_by_mapping_are_marked") {
        return;
    }
    let mounted = Mounted::new(Behaviour { no_open: true, ..Behaviour::default() }, &shared(), &full());
    fs::write(mounted.path("file"), [0; 4096]).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(mounted.path("file")).unwrap();
    let (access, descriptor) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
    // SAFETY: a new mapping of one page of an open file, wherever there is room.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, descriptor, 0) };
    assert_ne!(page, libc::MAP_FAILED);
    // SAFETY: the page was mapped just now, and no one else knows it.
    unsafe {
        page.cast::<u8>().write(b'x');
        assert_eq!(libc::msync(page, 4096, libc::MS_SYNC), 0);
        assert_eq!(libc::munmap(page, 4096), 0);
    }
    let fs = mounted.fs();
    assert_eq!(fs.asked("WRITE 4096 WriteFlags(CACHE)"), 1, "{:?}", fs.all_asked());
    assert_eq!(fs.asked("FSYNC"), 1, "{:?}", fs.all_asked());
}

#[test]
fn what_create_opens_is_released_until_enosys_sticks() {
    if !possible_as_root("what_create_opens_is_released_until_enosys_sticks") {
        return;
    }
    let mounted = Mounted::new(Behaviour { no_open: true, ..Behaviour::default() }, &shared(), &full());
    let fs = mounted.fs();
    fs::write(mounted.path("first"), "content").unwrap();
    // No process waits for a RELEASE; and a program that another test starts now has the file open,
    // too, until it runs: it may flush as well, but before the RELEASE.
    let start = Instant::now();
    while fs.asked("RELEASE") == 0 {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", fs.all_asked());
        std::thread::sleep(Duration::from_millis(1));
    }
    let flushes = fs.asked("FLUSH");
    assert!(flushes > 0, "{:?}", fs.all_asked());
    fs::read(mounted.path("first")).unwrap();
    fs::write(mounted.path("second"), "content").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((fs.asked("CREATE"), fs.asked("RELEASE")), (2, 1), "{:?}", fs.all_asked());
    assert_eq!(fs.asked("FLUSH"), flushes, "{:?}", fs.all_asked());
}
