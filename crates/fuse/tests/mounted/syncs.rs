//! Tests of syncs that arrive by a device, whatever requests the kernel sends besides.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use ubtrfs_fuse::mount::{MountKind, MountOptions, Source, remount};
use ubtrfs_fuse::{Config, Errno, ROOT, SyncDevice};

use crate::harness::{Mounted, possible, possible_as_root, unmount_now};
use crate::memfs::Behaviour;

fn mounted_from(device: &SyncDevice, name: &str) -> Mounted {
    let source = Source::Served { device: PathBuf::from(device.path()), name: name.into() };
    let options = MountOptions { source, subtype: "ubtrfs".into(), ..MountOptions::default() };
    Mounted::new(Behaviour::default(), &options, &Config::default())
}

fn sync_root(mounted: &Mounted) -> Result<(), Errno> {
    rustix::fs::syncfs(File::open(mounted.dir.path()).unwrap())
}

/// Each sync of the kernel causes a sync of the server that begins after it (invariant 46).
#[test]
fn each_sync_of_the_mount_is_one_of_its_device() {
    if !possible_as_root("each_sync_of_the_mount_is_one_of_its_device") {
        return;
    }
    let device = SyncDevice::new("/some/image".as_ref()).unwrap();
    let mut mounted = mounted_from(&device, "/some/image");
    assert_eq!((mounted.mount.kind(), mounted.mount.source()), (MountKind::Block, "/some/image"));
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(table.lines().any(|line| line.contains(" - fuseblk.ubtrfs /some/image ")), "{table}");
    let (began, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let fails = Arc::new(AtomicU32::new(0));
    let (beginning, ending, failing) = (Arc::clone(&began), Arc::clone(&ended), Arc::clone(&fails));
    device
        .begin(move || {
            beginning.fetch_add(1, SeqCst);
            std::thread::sleep(Duration::from_millis(20));
            ending.fetch_add(1, SeqCst);
            if failing.load(SeqCst) > 0 { Err(Errno::NOSPC) } else { Ok(()) }
        })
        .unwrap();
    for _ in 0..20 {
        let before = began.load(SeqCst);
        sync_root(&mounted).unwrap();
        assert!(ended.load(SeqCst) > before, "it waits for a sync that began after it");
    }
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..10 {
                    let before = began.load(SeqCst);
                    sync_root(&mounted).unwrap();
                    // Another one may have begun just before.
                    assert!(ended.load(SeqCst) > before);
                }
            });
        }
    });
    fails.store(1, SeqCst);
    assert_eq!(sync_root(&mounted), Err(Errno::IO), "who syncs hears of failures");
    fails.store(0, SeqCst);
    sync_root(&mounted).unwrap();
    let before = began.load(SeqCst);
    let root = rustix::fs::open(mounted.dir.path(), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    remount(&root, MountFlags::RDONLY).unwrap();
    drop(root);
    assert!(ended.load(SeqCst) > before, "a remount waits, too");
    unmount_now(&mounted.mount);
    mounted.ended().unwrap();
    let attached = device.path().to_owned();
    device.end();
    assert!(detaches(&attached));
}

fn detaches(device: &str) -> bool {
    let shown = format!("/sys/block/{}/loop", device.trim_start_matches("/dev/"));
    let deadline = Instant::now() + Duration::from_secs(5);
    while Path::new(&shown).exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    !Path::new(&shown).exists()
}

/// sync(2) flushes each block device, so the flush of one device stands for it.
#[test]
fn a_flush_of_the_device_is_a_sync_and_the_end_of_it_is_none() {
    if !possible_as_root("a_flush_of_the_device_is_a_sync_and_the_end_of_it_is_none") {
        return;
    }
    let device = SyncDevice::new("nbd+unix:///?socket=/run/x".as_ref()).unwrap();
    let syncs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&syncs);
    let sync = move || {
        counted.fetch_add(1, SeqCst);
        Ok(())
    };
    device.begin(sync).unwrap();
    for expected in 1..=3 {
        assert!(Command::new("sync").arg(device.path()).status().unwrap().success());
        assert_eq!(syncs.load(SeqCst), expected);
    }
    device.end();
    assert_eq!(syncs.load(SeqCst), 3);
    assert!(detaches(device.path()));
}

/// A server that can't end must not keep all others from their sync(2).
#[test]
fn an_abort_of_the_connection_of_its_file_frees_who_syncs() {
    if !possible_as_root("an_abort_of_the_connection_of_its_file_frees_who_syncs") {
        return;
    }
    let device = SyncDevice::new("/some/image".as_ref()).unwrap();
    let (begun, has_begun) = std::sync::mpsc::channel();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let held = std::sync::Mutex::new(held);
    device
        .begin(move || {
            begun.send(()).unwrap();
            let _ = held.lock().unwrap().recv();
            Ok(())
        })
        .unwrap();
    let mut syncing = Command::new("sync").arg(device.path()).spawn().unwrap();
    has_begun.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(syncing.try_wait().unwrap().is_none(), "it waits");
    let (major, minor) = device.number_of_file();
    fs::write(format!("/sys/fs/fuse/connections/{}/abort", major << 20 | minor), "1").unwrap();
    assert!(!syncing.wait().unwrap().success(), "it hears that nothing is synced");
    drop(release);
    device.end();
    assert!(detaches(device.path()));
}

/// Requests that were queued before the call are served when it returns, also while others write.
#[test]
fn queued_requests_can_be_waited_for() {
    if !possible("queued_requests_can_be_waited_for") {
        return;
    }
    let mounted = Mounted::plain();
    let notifier = mounted.session.notifier();
    let settle = || notifier.settle(|| [ROOT, 2, 3, 4, 5]).unwrap();
    for _ in 0..100 {
        settle();
    }
    let stop = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (stop, path) = (&stop, mounted.path(&format!("file{number}")));
            scope.spawn(move || {
                while stop.load(SeqCst) == 0 {
                    fs::write(&path, [7; 8192]).unwrap();
                }
            });
        }
        for _ in 0..100 {
            settle();
        }
        stop.store(1, SeqCst);
    });
}

/// One flush of the source writes all dirty pages, without a call by a path.
#[test]
fn a_mount_can_have_its_dirty_pages_written() {
    if !possible_as_root("a_mount_can_have_its_dirty_pages_written") {
        return;
    }
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(16 << 20).unwrap();
    let options = MountOptions {
        source: Source::Image(image.path().into()),
        subtype: "ubtrfs".into(),
        ..MountOptions::default()
    };
    let mut mounted = Mounted::new(Behaviour::default(), &options, &Config::default());
    mounted.mount.write_pages().unwrap();
    unmount_now(&mounted.mount);
    mounted.ended().unwrap();
}
