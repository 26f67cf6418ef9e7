//! A process that has something of a subvolume open when it is deleted goes on using it, as with
//! the kernel's driver. When all is closed, the space is freed. A crash leaves nothing of the
//! subvolume. A commit either merges into its tree or drops it (invariant 50).

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ubtrfs::{Errno, Filesystem, FreeingLimits, InodeId, NewInode, Options, RenameFlags, WriteAt};
use ubtrfs_format::{DirIndex, Physical, TreeId};
use ubtrfs_random::Rng;
use ubtrfs_testkit::progs::{assert_btrfs_check_clean, assert_ubtrfs_check_clean};
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_volume::conformance::{Subject, assert_conforms};
use ubtrfs_volume::{Device, DeviceCounters, DeviceTicket, DeviceWrite, Exclusive, FileDevice, OpenMode};

use crate::common::files::{errno, file, new_file};
use crate::common::image;

const SIZE: u64 = 512 << 20;

fn close_file(fs: &Filesystem, id: InodeId) {
    fs.references().forget(id, 1);
}

fn assert_clean(path: &Path) {
    assert_ubtrfs_check_clean(path);
    assert_btrfs_check_clean(path);
}

/// Waits until all deleted subvolumes are dropped.
#[track_caller]
fn dropped(fs: &Filesystem) {
    let start = Instant::now();
    while !fs.subvolumes().deleted_subvolumes().is_empty() {
        assert!(
            start.elapsed() < Duration::from_secs(120),
            "{:?} are never dropped",
            fs.subvolumes().deleted_subvolumes()
        );
        fs.durability().sync().unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Asserts that a mount after a crash drops the rest of the deleted subvolumes, and finds `kept`.
fn assert_crash_leaves_only(path: &Path, kept: &[&str]) {
    let copy = path.with_extension("crashed");
    std::fs::copy(path, &copy).unwrap();
    assert_clean(&copy);
    let fs = image::open(&copy, Options::default());
    for name in kept {
        let id = fs.directories().lookup(fs.root(), name.as_bytes()).unwrap();
        fs.references().forget(id, 1);
    }
    dropped(&fs);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&copy);
}

#[test]
fn open_files_of_a_deleted_subvolume_work_until_they_are_closed() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |_| {});
    let fs = image::open(&path, Options::default());
    let top = fs.root();
    fs.durability().sync().unwrap();
    let before = fs.statfs().blocks_free;
    let id = fs.subvolumes().create_subvolume(top, b"home", 0o755, (0, 0)).unwrap();
    let root = fs.directories().lookup(top, b"home").unwrap();
    assert_eq!(root, InodeId::root_of(id));
    let below = fs.directories().create(root, b"below", &NewInode { mode: 0o040_755, ..NewInode::default() }).unwrap();
    for number in 0..300 {
        close_file(&fs, file(&fs, below, &format!("{number}"), &vec![number as u8; 9000]));
    }
    let open = file(&fs, root, "open", &vec![1; 1 << 20]);
    let removed = file(&fs, root, "removed", &vec![2; 2 << 20]);
    fs.durability().sync().unwrap();
    fs.directories().unlink(root, b"removed").unwrap();
    fs.files().write(open, WriteAt::Offset(0), b"dirty", false).unwrap();
    fs.subvolumes().delete_subvolume(top, b"home").unwrap();

    for round in 0..4_u8 {
        assert_eq!(errno(fs.directories().lookup(top, b"home")), Errno::NOENT);
        assert_eq!(fs.subvolumes().ids(), [TreeId::FS]);
        assert_eq!(fs.subvolumes().deleted_subvolumes(), [id]);
        let content = fs.files().read(open, 0, 2 << 20).unwrap();
        assert!(content.len() == 1 << 20 && content[..5] == *b"dirty" && content[5..].iter().all(|byte| *byte == 1));
        assert!(fs.files().read(removed, 0, 4 << 20).unwrap() == vec![2; 2 << 20]);
        let found = fs.directories().lookup(below, format!("{round}").as_bytes()).unwrap();
        assert_eq!(fs.files().read(found, 0, 1 << 20).unwrap(), vec![round; 9000]);
        // Changes entries through the directory that is open.
        fs.files().write(found, WriteAt::Offset(5000), &[9; 9000], false).unwrap();
        fs.directories().unlink(below, format!("{round}").as_bytes()).unwrap();
        let made = file(&fs, below, &format!("made{round}"), &vec![round; 300_000]);
        fs.directories()
            .rename(below, format!("made{round}").as_bytes(), below, b"renamed", RenameFlags::default())
            .unwrap();
        fs.durability().fsync(made).unwrap();
        fs.durability().fsync(below).unwrap();
        fs.durability().sync().unwrap();
        assert!(fs.files().read(made, 0, 1 << 20).unwrap() == vec![round; 300_000]);
        close_file(&fs, made);
        close_file(&fs, found);
        // Fails as in a directory that was removed.
        assert_eq!(errno(fs.directories().create(root, b"new", &new_file())), Errno::NOENT);
        assert_eq!(
            errno(fs.directories().rename(below, b"renamed", root, b"new", RenameFlags::default())),
            Errno::NOENT
        );
        assert_eq!(errno(fs.directories().unlink(root, b"open")), Errno::NOENT);
        assert_eq!(errno(fs.directories().rmdir(root, b"below")), Errno::NOENT);
        assert_eq!(errno(fs.directories().list(root, DirIndex(0), DirIndex(u64::MAX), 10)), Errno::NOENT);
        assert_eq!(fs.directories().lookup(root, b"open").unwrap(), open);
        fs.references().forget(open, 1);
        for made in [
            fs.subvolumes().create_subvolume(below, b"inner", 0o755, (0, 0)),
            fs.subvolumes().snapshot(TreeId::FS, below, b"inner", false),
            fs.subvolumes().snapshot(id, top, b"copy", false),
        ] {
            assert_eq!(errno(made), Errno::NOENT);
        }
        assert_eq!(errno(fs.subvolumes().set_subvolume_read_only(id, true)), Errno::NOENT);
        assert_eq!(errno(fs.directories().lookup_inode(open)), Errno::STALE);
        assert_eq!(fs.directories().parent(root).unwrap(), root);
        assert_crash_leaves_only(&path, &[]);
    }
    let copy = file(&fs, top, "copy", b"");
    assert_eq!(fs.files().clone_range(open, 0, copy, 0, 1 << 20).unwrap(), 1 << 20);
    fs.durability().sync().unwrap();
    assert_crash_leaves_only(&path, &["copy"]);
    // The space of a file without a name is freed at once.
    let with_removed = fs.statfs().blocks_free;
    close_file(&fs, removed);
    fs.durability().sync().unwrap();
    fs.durability().sync().unwrap();
    assert!(fs.statfs().blocks_free >= with_removed + 500, "{with_removed}: {}", fs.statfs().blocks_free);
    for id in [root, below] {
        close_file(&fs, id);
        fs.durability().sync().unwrap();
        assert_eq!(fs.files().read(open, 0, 5).unwrap(), b"dirty");
    }
    fs.files().write(open, WriteAt::Offset(0), b"late!", false).unwrap();
    close_file(&fs, open);
    assert_eq!(errno(fs.files().read(open, 0, 5)), Errno::STALE);
    dropped(&fs);
    assert_eq!(fs.files().read(copy, 0, 6).unwrap(), b"dirty\x01");
    fs.directories().unlink(top, b"copy").unwrap();
    close_file(&fs, copy);
    for _ in 0..4 {
        fs.durability().sync().unwrap();
    }
    assert!(fs.statfs().blocks_free + 64 >= before, "{before} blocks were free, {} are", fs.statfs().blocks_free);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&path);
}

/// A file is never closed, so the next mount drops the subvolume.
#[test]
fn subvolumes_that_are_open_at_an_unmount_are_dropped_by_the_next_mount() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, SIZE, |_| {});
    let fs = image::open(&path, Options::default());
    for (name, is_reset) in [("deleted", false), ("reset", true)] {
        let id = fs.subvolumes().create_subvolume(fs.root(), name.as_bytes(), 0o755, (0, 0)).unwrap();
        let open = file(&fs, InodeId::root_of(id), "open", &vec![7; 500_000]);
        if is_reset {
            let kept = fs.subvolumes().snapshot(id, fs.root(), b"kept", true).unwrap();
            fs.subvolumes().reset_subvolume(fs.root(), name.as_bytes(), kept).unwrap();
        } else {
            fs.subvolumes().delete_subvolume(fs.root(), name.as_bytes()).unwrap();
        }
        fs.files().write(open, WriteAt::Offset(0), &vec![8; 100_000], false).unwrap();
        assert_eq!(fs.files().read(open, 99_999, 2).unwrap(), [8, 7]);
    }
    assert_eq!(fs.subvolumes().deleted_subvolumes().len(), 2);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&path);
    let fs = image::open(&path, Options::default());
    dropped(&fs);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&path);
}

/// The last file is closed when nothing else has changed since the last commit, or among many
/// closes that follow each other.
#[test]
fn closing_the_last_file_drops_a_deleted_subvolume() {
    for background_commits in [false, true] {
        let dir = scratch_dir();
        let path = dir.path().join("image");
        image::make(&path, SIZE, |_| {});
        let fs = Filesystem::open_path(&path, Options { background_commits, ..Options::default() }).unwrap();
        for round in 0..20 {
            let id = fs.subvolumes().create_subvolume(fs.root(), b"sub", 0o755, (0, 0)).unwrap();
            let open = file(&fs, InodeId::root_of(id), "open", &vec![7; 50_000]);
            fs.subvolumes().delete_subvolume(fs.root(), b"sub").unwrap();
            fs.durability().sync().unwrap();
            if round % 2 == 0 {
                fs.durability().sync().unwrap();
            }
            assert_eq!(fs.subvolumes().deleted_subvolumes(), [id]);
            close_file(&fs, open);
            dropped(&fs);
            assert_eq!(errno(fs.inodes().attributes(open)), Errno::STALE);
            assert_eq!(errno(fs.directories().lookup_inode(InodeId::root_of(id))), Errno::STALE);
        }
        fs.close().unwrap();
        drop(fs);
        assert_clean(&path);
    }
}

/// A device whose flushes return at once: there is no crash here, and on a busy disk each of a
/// thousand flushes takes a tenth of a second.
#[derive(Debug)]
struct Unflushed(FileDevice);

impl Device for Unflushed {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(at, buf)
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        self.0.submit(writes)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.0.discard(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

/// Subvolumes are deleted and reset while others have them open, write to them, and share their
/// extents, with commits and steps of drops in between.
#[test]
fn deleted_subvolumes_are_dropped_when_all_is_closed_while_others_write() {
    let rounds = if soaks() { 2000 } else { 150 };
    let dir = scratch_dir();
    let path = dir.path().join("image");
    image::make(&path, 2 << 30, |_| {});
    let freeing = FreeingLimits { per_transaction: 30, at_the_end: 30, ..FreeingLimits::default() };
    let opened = FileDevice::open(&path, OpenMode::ReadWrite, Exclusive::Yes).unwrap();
    let device: Arc<dyn Device> = if soaks() { Arc::new(opened) } else { Arc::new(Unflushed(opened)) };
    let fs = Filesystem::open_devices(vec![device], Options { freeing, memory: 32 << 20, ..Options::default() });
    let fs = fs.unwrap();
    let top = fs.root();
    let source = fs.subvolumes().create_subvolume(top, b"source", 0o755, (0, 0)).unwrap();
    for number in 0..60 {
        close_file(&fs, file(&fs, InodeId::root_of(source), &format!("{number}"), &[1; 9000]));
    }
    fs.subvolumes().snapshot(source, top, b"work", false).unwrap();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for user in 0..3_u64 {
            let (fs, done) = (&fs, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(user);
                let mut held = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    let Ok(work) = fs.directories().lookup(top, b"work") else { continue };
                    if let Ok(id) = fs.directories().lookup(work, format!("{}", rng.below(60)).as_bytes()) {
                        held.push(id);
                    }
                    if rng.one_in(3)
                        && let Ok(id) =
                            fs.directories().create(work, format!("{user}.{}", rng.below(9999)).as_bytes(), &new_file())
                    {
                        held.push(id);
                    }
                    fs.references().forget(work, 1);
                    for id in &held {
                        // The file may have lost its name, and is usable all the same.
                        fs.files().write(*id, WriteAt::Offset(rng.below(20_000)), &[user as u8; 5000], false).unwrap();
                        fs.files().read(*id, 0, 1 << 16).unwrap();
                        if rng.one_in(10) {
                            fs.durability().fsync(*id).unwrap();
                        }
                    }
                    while held.len() > 6 || (!held.is_empty() && rng.one_in(3)) {
                        fs.references().forget(held.remove(rng.index(held.len())), 1);
                    }
                }
                for id in held {
                    fs.references().forget(id, 1);
                }
            });
        }
        let mut rng = Rng::new(99);
        for _ in 0..rounds {
            if rng.one_in(2) {
                fs.subvolumes().reset_subvolume(top, b"work", source).unwrap();
            } else {
                fs.subvolumes().delete_subvolume(top, b"work").unwrap();
                fs.subvolumes().snapshot(source, top, b"work", false).unwrap();
            }
            if rng.one_in(4) {
                fs.durability().sync().unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    dropped(&fs);
    fs.close().unwrap();
    assert_eq!(fs.abort_reason(), None);
    drop(fs);
    assert_clean(&path);
}

#[test]
fn a_file_that_is_not_flushed_conforms_but_for_crashes() {
    let dir = scratch_dir();
    let path = dir.path().join("image");
    File::create(&path).unwrap().set_len(2 << 20).unwrap();
    let file = FileDevice::open(&path, OpenMode::ReadWrite, Exclusive::Yes).unwrap();
    assert_conforms(Subject::new(Arc::new(Unflushed(file))));
}
