//! A snapshot, read-only or not, loses the files that were open without a name in its source, also
//! after a crash, and nothing else of it changes.

use std::sync::Arc;

use ubtrfs::{Errno, Filesystem, FreeingLimits, InodeId, NewInode, Options, WriteAt};
use ubtrfs_format::TreeId;
use ubtrfs_volume::{Device, MemoryDevice, OpenOptions, Volume};

use crate::common::files::file;
use crate::common::memory::new_volume;

const SIZE: u64 = 256 << 20;
const CONTENT: u64 = 8 << 20;

/// Options with which only the test commits, and each commit frees all that waits.
fn options() -> Options {
    let freeing = FreeingLimits { at_once: 1 << 20, per_transaction: 4000, at_the_end: 4000, queue: 1000 };
    Options { background_commits: false, freeing, ..Options::default() }
}

fn open(device: &Arc<MemoryDevice>) -> Arc<Filesystem> {
    let device: Arc<dyn Device> = device.clone();
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
    Filesystem::open(Arc::new(volume), options()).unwrap()
}

/// Copies the device as it is now, for a crash of its own.
fn copy(device: &MemoryDevice) -> Arc<MemoryDevice> {
    Arc::new(MemoryDevice::from_bytes(device.to_bytes()))
}

fn used(fs: &Filesystem) -> u64 {
    let space = fs.statfs();
    (space.blocks - space.blocks_free) * 4096
}

fn settle(fs: &Filesystem) {
    for _ in 0..8 {
        fs.durability().sync().unwrap();
    }
    let waiting = fs.stats().inactivation;
    assert!(!waiting.orphans_left && waiting.inodes == 0, "{waiting:?}");
}

/// Returns the number of inodes of the subvolumes that tests make.
fn inodes(device: &Arc<MemoryDevice>) -> u64 {
    let device: [Arc<dyn Device>; 1] = [device.clone()];
    let report = ubtrfs_check::check(&device, &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
    // The rest are the root directories of the top level and of the tree for relocations.
    report.stats.inodes - 2
}

/// A subvolume with a file, and with a large one and small ones that are open and have no name.
struct Source {
    device: Arc<MemoryDevice>,
    fs: Arc<Filesystem>,
    id: TreeId,
    open: Vec<InodeId>,
}

impl Source {
    fn new() -> Self {
        let device = Arc::new(new_volume(SIZE));
        let fs = open(&device);
        let id = fs.subvolumes().create_subvolume(fs.root(), b"source", 0o755, (0, 0)).unwrap();
        let root = InodeId::root_of(id);
        file(&fs, root, "kept", b"kept");
        fs.durability().sync().unwrap();
        let regular = NewInode { mode: 0o100_644, ..NewInode::default() };
        let open: Vec<_> = (0..4).map(|_| fs.directories().create_unnamed(root, &regular).unwrap()).collect();
        for at in (0..CONTENT).step_by(1 << 20) {
            fs.files().write(open[0], WriteAt::Offset(at), &vec![at as u8; 1 << 20], false).unwrap();
        }
        fs.files().write(open[1], WriteAt::Offset(0), &vec![1; 100_000], false).unwrap();
        Self { device, fs, id, open }
    }

    fn snapshot(&self, name: &[u8], read_only: bool) -> TreeId {
        self.fs.subvolumes().snapshot(self.id, self.fs.root(), name, read_only).unwrap()
    }

    /// Closes the files, as when their programs end.
    fn close_files(&self) {
        for id in &self.open {
            self.fs.references().forget(*id, 1);
        }
    }
}

fn assert_shows_what_was_there(fs: &Filesystem, id: TreeId) {
    let root = InodeId::root_of(id);
    let kept = fs.directories().lookup(root, b"kept").unwrap();
    assert_eq!(fs.files().read(kept, 0, 100).unwrap(), b"kept");
    assert!(fs.subvolumes().subvolume_info(id).unwrap().read_only);
    let refused = fs.files().write(kept, WriteAt::Offset(0), b"other", false).unwrap_err();
    assert_eq!(refused.errno(), Errno::ROFS);
    let refused =
        fs.directories().create(root, b"new", &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap_err();
    assert_eq!(refused.errno(), Errno::ROFS);
    fs.references().forget(kept, 1);
}

#[test]
fn read_only_snapshots_do_not_keep_unlinked_files() {
    let source = Source::new();
    let before = source.snapshot(b"first", true);
    let made = source.fs.subvolumes().subvolume_info(before).unwrap();
    let others = [source.snapshot(b"second", true), source.snapshot(b"third", false)];
    settle(&source.fs);
    // Programs that have the files open still use them, while the snapshots lose them.
    assert_eq!(source.fs.files().read(source.open[0], CONTENT - 1, 1).unwrap(), [(CONTENT - (1 << 20)) as u8]);
    let left = InodeId::new(before, source.open[0].ino);
    assert!(source.fs.inodes().attributes(left).is_err(), "a snapshot has an inode without a name");
    assert_eq!(inodes(&source.device), 4 * 2 + 4);

    source.close_files();
    settle(&source.fs);
    assert!(used(&source.fs) < CONTENT / 2, "{} bytes are in use", used(&source.fs));
    assert_shows_what_was_there(&source.fs, before);
    assert_shows_what_was_there(&source.fs, others[0]);
    // As with the kernel's driver, this does not count as a change of the subvolume.
    let now = source.fs.subvolumes().subvolume_info(before).unwrap();
    assert_eq!((now.transids, now.times, now.flags), (made.transids, made.times, made.flags));
    source.fs.close().unwrap();
    assert_eq!(inodes(&source.device), 4 * 2);
}

#[test]
fn a_mount_frees_what_a_crash_left_in_read_only_snapshots() {
    let source = Source::new();
    let id = source.snapshot(b"snapshot", true);
    // A crash right after the snapshot leaves the inodes in it; earlier versions left them for
    // good.
    let device = copy(&source.device);
    let has_them = inodes(&device);
    assert_eq!(has_them, 2 * (2 + 4), "the crash left no inode without a name in the snapshot");
    let fs = open(&device);
    settle(&fs);
    assert_eq!(fs.stats().orphans_cleaned, 8);
    assert!(used(&fs) < CONTENT / 2, "{} bytes are in use", used(&fs));
    assert_shows_what_was_there(&fs, id);
    fs.close().unwrap();
    assert_eq!(inodes(&device), 2 * 2);

    // Crashes again and again: each commit leaves a state with which the next mount goes on.
    let mut device = copy(&source.device);
    for _ in 0..4 {
        let fs = open(&device);
        fs.durability().sync().unwrap();
        device = copy(&device);
        inodes(&device);
        drop(fs);
    }
    assert_eq!(inodes(&device), 2 * 2);
}

/// A subvolume becomes read-only while a file without a name is open, and then the machine crashes.
#[test]
fn a_subvolume_that_became_read_only_is_rid_of_them_too() {
    let source = Source::new();
    source.fs.subvolumes().set_subvolume_read_only(source.id, true).unwrap();
    let device = copy(&source.device);
    let fs = open(&device);
    settle(&fs);
    assert_shows_what_was_there(&fs, source.id);
    fs.close().unwrap();
    assert_eq!(inodes(&device), 2);

    source.close_files();
    source.fs.close().unwrap();
    assert_eq!(inodes(&source.device), 2);
}
