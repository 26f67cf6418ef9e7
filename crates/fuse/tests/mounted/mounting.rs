//! Tests of beginnings and ends of mounts.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::mount::MountFlags;
use ubtrfs_fuse::mount::{Mount, MountError, MountKind, MountOptions, Source, Unmount, is_dead, unmount};
use ubtrfs_fuse::{Capabilities, Config, OFlags, ROOT, Transport};

use crate::harness::{Mounted, TRANSPORT, possible, possible_as_root, unmount_now};
use crate::memfs::Behaviour;

const SLOW: Duration = Duration::from_millis(300);

fn slow() -> Behaviour {
    Behaviour { slow: SLOW, ..Behaviour::default() }
}

#[test]
fn plain_mounts_end_when_unmounted() {
    if !possible_as_root("plain_mounts_end_when_unmounted") {
        return;
    }
    let options = MountOptions { name: "some image".into(), subtype: "ubtrfs".into(), ..MountOptions::default() };
    let mut mounted = Mounted::new(slow(), &options, &Config::default());
    assert_eq!((mounted.mount.kind(), mounted.mount.source()), (MountKind::Plain, "some image"));
    assert_eq!(mounted.mount.fallback(), None);
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table.lines().find(|line| line.contains(mounted.dir.path().to_str().unwrap())).unwrap();
    assert!(line.contains("- fuse.ubtrfs some\\040image") && line.contains("nosuid,nodev"), "{line}");
    let file = File::open(mounted.dir.path()).unwrap();
    assert!(matches!(mounted.mount.unmount(Unmount::Now), Err(MountError::Unmount(..))), "in use");
    drop(file);
    unmount_now(&mounted.mount);
    assert!(!mounted.mount.is_mounted());
    mounted.ended().unwrap();
    assert_eq!(mounted.fs().destroyed.load(Ordering::SeqCst), 1);
}

fn image() -> tempfile::NamedTempFile {
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(16 << 20).unwrap();
    image
}

fn from(source: Source, read_only: bool) -> MountOptions {
    MountOptions { source, read_only, subtype: "ubtrfs".into(), ..MountOptions::default() }
}

/// Returns whether sysfs shows a loop device with this backing file.
fn is_shown(attached: &str) -> bool {
    let loops = fs::read_dir("/sys/block").unwrap().map(Result::unwrap);
    loops
        .filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok())
        .any(|backing| backing.trim() == attached)
}

/// Returns whether a loop device has `image` attached.
fn is_attached(image: &Path) -> bool {
    is_shown(image.to_str().unwrap())
}

/// Returns whether within five seconds sysfs shows no loop device with this backing file any more.
fn vanishes(attached: &str) -> bool {
    let deadline = Instant::now() + Duration::from_secs(5);
    while is_shown(attached) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    !is_shown(attached)
}

/// Returns whether within five seconds no loop device has `image` attached any more.
fn detaches(image: &Path) -> bool {
    vanishes(image.to_str().unwrap())
}

/// The tasks of this machine that wait uninterruptibly for longer than any device takes.
fn stuck_tasks() -> BTreeSet<PathBuf> {
    const LOOKS: u32 = 40;
    let waiting = || -> BTreeSet<PathBuf> {
        let tasks = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        let is_waiting = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('D'));
        tasks.filter(|task| fs::read_to_string(task.join("stat")).is_ok_and(is_waiting)).collect()
    };
    let mut stuck = waiting();
    for _ in 0..LOOKS {
        if stuck.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
        let still = waiting();
        stuck.retain(|task| still.contains(task));
    }
    stuck
}

/// Returns whether a sync(2) reaches the file system. sync(2) processes one file system of the
/// machine after the other: if one of them hangs, the test can find out nothing about ours, and
/// this returns true.
fn sync_comes_to(mounted: &Mounted) -> bool {
    const TIMEOUT: Duration = Duration::from_secs(300);
    let stuck = stuck_tasks();
    if !stuck.is_empty() {
        eprintln!("sync(2) is not tried: it may wait for ever, as {stuck:?} do");
        return true;
    }
    let before = mounted.fs().asked("SYNCFS");
    let mut sync =
        Command::new("sync").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + TIMEOUT;
    let is_asked = || mounted.fs().asked("SYNCFS") > before;
    while !is_asked() && sync.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    is_asked()
}

#[test]
fn images_are_mounted_as_block_devices() {
    if !possible_as_root("images_are_mounted_as_block_devices") {
        return;
    }
    let image = image();
    for read_only in [false, true] {
        let options = from(Source::Image(image.path().into()), read_only);
        let mut mounted = Mounted::new(slow(), &options, &Config::default());
        if mounted.mount.kind() != MountKind::Block {
            // There is no loop device. Then the mount must say so and work.
            assert!(mounted.mount.fallback().is_some());
            assert!(fs::read_dir(mounted.dir.path()).is_ok());
            eprintln!("images_are_mounted_as_block_devices: {}", mounted.mount.fallback().unwrap());
            continue;
        }
        assert!(is_attached(image.path()));
        if !read_only {
            fs::write(mounted.path("file"), "content").unwrap();
            let begun = Instant::now();
            rustix::fs::syncfs(File::open(mounted.dir.path()).unwrap()).unwrap();
            assert!(begun.elapsed() >= SLOW, "syncfs(2) waits");
            assert!(syncfs_follows_writes(&mounted), "{:?}", mounted.fs().all_asked());
            assert!(sync_comes_to(&mounted), "sync(2) comes, too");
        }
        let begun = Instant::now();
        unmount_now(&mounted.mount);
        assert!(begun.elapsed() >= SLOW, "umount(2) waits for DESTROY");
        assert_eq!(mounted.fs().destroyed.load(Ordering::SeqCst), 1);
        mounted.ended().unwrap();
        assert_eq!(mounted.fs().destroyed.load(Ordering::SeqCst), 1);
        assert!(detaches(image.path()), "the loop device detaches itself");
    }
}

/// Returns whether a SYNCFS came after the last WRITE. Another one may have come before, since
/// other tests call sync(2), which reaches all mounts.
fn syncfs_follows_writes(mounted: &Mounted) -> bool {
    let asked = mounted.fs().all_asked();
    let last = |what: &str| asked.iter().rposition(|request| request.starts_with(what));
    last("WRITE").is_some_and(|write| last("SYNCFS").is_some_and(|sync| sync > write))
}

#[test]
fn uris_are_mounted_as_block_devices_by_their_name() {
    if !possible_as_root("uris_are_mounted_as_block_devices_by_their_name") {
        return;
    }
    // Other tests of this name may run on the machine.
    let host = std::process::id();
    for rest in ["/export", "/", ":10809/a%20b", "/?socket=/run/x.sock&y=z"] {
        for read_only in [false, true] {
            let uri = format!("nbd://{host}{rest}");
            let shown = format!("/memfd:{uri} (deleted)");
            let mut mounted =
                Mounted::new(Behaviour::default(), &from(Source::Uri(uri.clone()), read_only), &Config::default());
            assert_eq!(Path::new(mounted.mount.source()), Path::new(&uri));
            if mounted.mount.kind() != MountKind::Block {
                // There is no loop device.
                assert!(mounted.mount.fallback().is_some_and(|reason| reason.contains("loop device")));
                continue;
            }
            let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
            let line = table.lines().find(|line| line.contains(mounted.dir.path().to_str().unwrap())).unwrap();
            assert!(line.contains(&format!("- fuseblk.ubtrfs {} ", uri.trim_end_matches('/'))), "{line}");
            assert!(is_shown(&shown));
            if !read_only {
                fs::write(mounted.path("file"), "content").unwrap();
                rustix::fs::syncfs(File::open(mounted.dir.path()).unwrap()).unwrap();
                assert!(syncfs_follows_writes(&mounted), "{:?}", mounted.fs().all_asked());
            }
            unmount_now(&mounted.mount);
            assert_eq!(mounted.fs().destroyed.load(Ordering::SeqCst), 1);
            mounted.ended().unwrap();
            assert!(vanishes(&shown), "the loop device detaches itself");
        }
    }
    let cwd = std::env::current_dir().unwrap();
    let above = from(Source::Uri("nbd+unix:///?socket=/run/../x".into()), false);
    let above = Mounted::new(Behaviour::default(), &above, &Config::default());
    assert_eq!((above.mount.kind(), above.mount.source()), (MountKind::Plain, "nbd+unix:///?socket=/run/../x"));
    assert!(above.mount.fallback().is_some());
    assert_eq!(std::env::current_dir().unwrap(), cwd);
}

#[test]
fn files_are_mounted_without_a_block_device() {
    if !possible_as_root("files_are_mounted_without_a_block_device") {
        return;
    }
    let image = image();
    for source in [Source::Image("/does/not/exist".into()), Source::BlockDevice(image.path().into())] {
        let mounted = Mounted::new(Behaviour::default(), &from(source, false), &Config::default());
        assert_eq!(mounted.mount.kind(), MountKind::Plain);
        assert!(mounted.mount.fallback().is_some());
        fs::write(mounted.path("file"), "content").unwrap();
    }
}

#[test]
fn block_devices_are_mounted_as_such_unless_held() {
    if !possible_as_root("block_devices_are_mounted_as_such_unless_held") {
        return;
    }
    let image = image();
    let first = from(Source::Image(image.path().into()), false);
    let first = Mounted::new(Behaviour::default(), &first, &Config::default());
    if first.mount.kind() != MountKind::Block {
        eprintln!("block_devices_are_mounted_as_such_unless_held: {}", first.mount.fallback().unwrap());
        return;
    }
    // Its loop device is a block device that is served already.
    let device = first.mount.source().to_owned();
    let options = from(Source::BlockDevice(device.clone().into()), false);
    let dir = tempfile::tempdir().unwrap();
    let second = Mount::new(dir.path(), &options).map(drop);
    assert!(matches!(&second, Err(MountError::AlreadyServed(source)) if *source == device), "{second:?}");
    fs::remove_dir(dir.path()).expect("nothing is mounted there");
    fs::write(first.path("file"), "content").unwrap();
    // Open descriptors of the device don't prevent the mount.
    let held = OpenOptions::new().read(true).write(true).open(&device).unwrap();
    drop(first);
    let third = Mounted::new(Behaviour::default(), &options, &Config::default());
    assert_eq!(third.mount.kind(), MountKind::Block, "{:?}", third.mount.fallback());
    fs::write(third.path("file"), "content").unwrap();
    drop(third);
    // A descriptor with `O_EXCL` does. (The first descriptor keeps the loop device attached.)
    let exclusive = OFlags::EXCL.bits() as i32;
    let exclusive = OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(&device).unwrap();
    let fourth = Mounted::new(Behaviour::default(), &options, &Config::default());
    assert_eq!((fourth.mount.kind(), fourth.mount.source()), (MountKind::Plain, device.as_str()));
    assert!(fourth.mount.fallback().unwrap().contains(&device));
    drop((fourth, exclusive, held));
}

#[test]
fn mounts_of_the_dead_are_cleared() {
    if !possible("mounts_of_the_dead_are_cleared") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (mount, device) = Mount::new(dir.path(), &MountOptions::default()).unwrap();
    assert!(mount.is_mounted());
    drop(device);
    assert!(is_dead(dir.path()));
    assert!(matches!(Mount::new(dir.path(), &MountOptions::default()), Err(MountError::Dead(_))));
    unmount(dir.path(), Unmount::Lazy).unwrap();
    assert!(!is_dead(dir.path()) && !mount.is_mounted());
    drop(mount);
}

#[test]
fn images_of_the_dead_are_detached() {
    if !possible_as_root("images_of_the_dead_are_detached") {
        return;
    }
    let (image, dir) = (image(), tempfile::tempdir().unwrap());
    let uri = format!("nbd://dead-{}/", std::process::id());
    let (of_image, of_uri) = (image.path().to_str().unwrap().to_owned(), format!("/memfd:{uri} (deleted)"));
    for (source, attached) in [(Source::Image(image.path().into()), of_image), (Source::Uri(uri), of_uri)] {
        let (mount, device) = Mount::new(dir.path(), &from(source, false)).unwrap();
        let block = mount.kind() == MountKind::Block;
        assert_eq!(is_shown(&attached), block);
        drop(device);
        assert!(is_dead(dir.path()));
        unmount(dir.path(), Unmount::Now).unwrap();
        assert!(vanishes(&attached));
    }
}

#[test]
fn a_dropped_mount_is_unmounted() {
    if !possible("a_dropped_mount_is_unmounted") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (first, _first_device) = Mount::new(dir.path(), &MountOptions::default()).unwrap();
    first.unmount(Unmount::Lazy).unwrap();
    let (second, _second_device) = Mount::new(dir.path(), &MountOptions::default()).unwrap();
    drop(first);
    assert!(second.is_mounted(), "the later mount is another one");
    drop(second);
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
}

/// A device can be mounted again as soon as it is unmounted, and has the same number then. A server
/// that is about to end must only unmount what is left of its own mount.
#[test]
fn a_later_mount_of_the_same_device_is_left_alone() {
    if !possible_as_root("a_later_mount_of_the_same_device_is_left_alone") {
        return;
    }
    let image = image();
    let attached = Command::new("losetup").args(["--find", "--show"]).arg(image.path()).output().unwrap();
    assert!(attached.status.success(), "{attached:?}");
    let attached = Attached(String::from_utf8(attached.stdout).unwrap().trim().to_owned());
    let options = from(Source::BlockDevice(attached.0.clone().into()), false);
    let dirs = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let mount = |dir: &tempfile::TempDir| Mount::new(dir.path(), &options).unwrap();
    let (ended, device) = mount(&dirs[0]);
    if ended.kind() != MountKind::Block {
        eprintln!("a_later_mount_of_the_same_device_is_left_alone: {}", ended.fallback().unwrap());
        return;
    }
    // There are two mounts of the filesystem; when one is unmounted, the other is still found.
    rustix::mount::mount_bind(dirs[0].path(), dirs[1].path()).unwrap();
    let _bound = Bound(dirs[1].path());
    drop(device);
    assert_eq!(ended.points(), [dirs[1].path(), dirs[0].path()]);
    ended.unmount(Unmount::Now).unwrap();
    assert_eq!(ended.points(), [dirs[1].path()]);
    ended.unmount_lazily();
    assert!(ended.points().is_empty() && !is_dead(dirs[1].path()));
    // The later mount is aborted, as one that another process is about to unmount by force.
    let (later, device) = mount(&dirs[2]);
    drop(device);
    assert!(is_dead(dirs[2].path()) && later.device_number() == ended.device_number());
    ended.unmount_lazily();
    assert!(ended.points().is_empty() && ended.unmount_all(Unmount::Lazy).is_ok());
    assert!(later.is_mounted());
    later.unmount(Unmount::Now).unwrap();
}

/// A mount on this directory, which ends when this is dropped if it has not ended before.
struct Bound<'a>(&'a Path);

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

/// A loop device, detached when this is dropped.
struct Attached(String);

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

#[test]
fn only_directories_are_mounted_on() {
    if !possible("only_directories_are_mounted_on") {
        return;
    }
    let image = image();
    let mount = |path: &Path| Mount::new(path, &MountOptions::default()).map(drop);
    assert!(matches!(mount(image.path()), Err(MountError::NotADirectory(_))));
    assert!(matches!(mount("/does/not/exist".as_ref()), Err(MountError::MountPoint(..))));
}

/// The kernel's file that aborts a mount's connection, if its control file system is there or can
/// be mounted.
pub fn abort_file(point: &Path) -> Option<PathBuf> {
    const CONTROL: &str = "/sys/fs/fuse/connections";
    let number = rustix::fs::minor(fs::metadata(point).ok()?.dev());
    let file = Path::new(CONTROL).join(number.to_string()).join("abort");
    if !file.exists() {
        let _ = rustix::mount::mount("none", CONTROL, "fusectl", MountFlags::empty(), None);
    }
    file.exists().then_some(file)
}

#[test]
fn no_process_waits_on_an_aborted_connection() {
    if !possible_as_root("no_process_waits_on_an_aborted_connection") {
        return;
    }
    let mut mounted = Mounted::plain();
    let Some(abort) = abort_file(mounted.dir.path()) else {
        eprintln!("no_process_waits_on_an_aborted_connection: no control file system");
        return;
    };
    let path = mounted.path("file");
    fs::write(&path, "content").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            // Their requests wait for another thread's answer nearly all the time.
            scope.spawn(|| {
                let file = File::open(&path).unwrap();
                while file.sync_all().is_ok() {}
            });
            scope.spawn(|| while fs::write(&path, "content").is_ok() {});
        }
        std::thread::sleep(Duration::from_millis(110));
        fs::write(&abort, "1").unwrap();
    });
    mounted.ended().unwrap();
    assert_eq!(mounted.fs().destroyed.load(Ordering::SeqCst), 1);
}

#[test]
fn what_is_in_files_is_read_by_the_ring_or_comes_again() {
    if !possible("what_is_in_files_is_read_by_the_ring_or_comes_again") {
        return;
    }
    let mounted = Mounted::plain();
    let content: Vec<u8> = (0..10_000_u32).map(|at| (at % 251) as u8).collect();
    for number in 0..40 {
        let path = mounted.path(&number.to_string());
        fs::write(&path, &content).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert!(fs::read(&path).unwrap() == content, "file {number}");
    }
    let from_files = mounted.fs().trial.from_files.load(Ordering::Relaxed);
    assert_eq!(from_files > 10, TRANSPORT == Transport::Ring, "{from_files}");
}

#[test]
fn what_would_wait_comes_again() {
    if !possible("what_would_wait_comes_again") {
        return;
    }
    let mounted = Mounted::plain();
    for number in 0..60 {
        let path = mounted.path(&number.to_string());
        fs::write(&path, "content").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    let postponed = mounted.fs().trial.postponed.load(Ordering::Relaxed);
    assert_eq!(postponed > 0, TRANSPORT == Transport::Ring, "{postponed}");
    assert_eq!(
        mounted.fs().asked("SETATTR size=None kill=false mode=Some(33152)"),
        60,
        "{:?}",
        mounted.fs().all_asked()
    );
}

#[test]
fn the_granted_capabilities_are_reported() {
    if !possible("the_granted_capabilities_are_reported") {
        return;
    }
    let mounted = Mounted::plain();
    let granted = mounted.session.granted();
    let besides = granted.capabilities - Config::FULL;
    assert_eq!(besides - Capabilities::OVER_IO_URING, Capabilities::empty());
    assert_eq!(granted.max_write, 1 << 20);
    assert_eq!(mounted.fs().asked(&format!("INIT {}", granted.minor)), 1);
    assert_eq!(ROOT, 1);
}
