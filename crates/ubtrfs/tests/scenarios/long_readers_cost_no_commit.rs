//! A process that reads the trees of an old commit for long (a scrub, a comparison, an export) pins
//! the space that later commits free. Operations run out of space earlier then, but no commit does
//! (invariant 8).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ubtrfs::testing::{CommitFault, Faults};
use ubtrfs::{Errno, Filesystem, FreeingLimits, InodeId, NewInode, Options, ScrubOptions, SetAttributes, WriteAt};
use ubtrfs_format::{Ino, TreeId};
use ubtrfs_volume::{Device, MemoryDevice, OpenOptions, Volume};

use crate::common::memory::new_volume;

const SIZE: u64 = 170 << 20;
const FILES: usize = 300;

fn open(device: &Arc<MemoryDevice>, background_commits: bool) -> Arc<Filesystem> {
    open_with(device, Options { background_commits, ..Options::default() })
}

fn open_with(device: &Arc<MemoryDevice>, options: Options) -> Arc<Filesystem> {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
    Filesystem::open(Arc::new(volume), options).unwrap()
}

/// Makes a subvolume with many small files, so that its tree has some leaves.
fn filled(fs: &Filesystem) -> TreeId {
    let id = fs.subvolumes().create_subvolume(fs.root(), b"source", 0o755, (0, 0)).unwrap();
    let dir = InodeId::new(id, Ino::ROOT_DIR);
    for number in 0..FILES {
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let file = fs.directories().create(dir, format!("file {number}").as_bytes(), &new).unwrap();
        fs.files().write(file, WriteAt::Offset(0), &[1; 1500], false).unwrap();
    }
    fs.durability().sync().unwrap();
    id
}

/// Makes a snapshot and changes it, so that it has leaves of its own.
fn changed_snapshot(fs: &Filesystem, source: TreeId, name: &str) -> ubtrfs::Result<()> {
    let id = fs.subvolumes().snapshot(source, fs.root(), name.as_bytes(), false)?;
    let dir = InodeId::new(id, Ino::ROOT_DIR);
    (0..FILES).step_by(7).try_for_each(|number| {
        let file = fs.directories().lookup(dir, format!("file {number}").as_bytes())?;
        let written = fs.files().write(file, WriteAt::Offset(0), &[2; 1500], false);
        fs.references().forget(file, 1);
        written.map(drop)
    })
}

/// Makes a snapshot, changes it, and deletes it. Returns whether there was space.
fn turn(fs: &Filesystem, source: TreeId, name: &str) -> bool {
    let changed = changed_snapshot(fs, source, name);
    let deleted = fs.subvolumes().delete_subvolume(fs.root(), name.as_bytes());
    let outcome = changed.and(deleted).and_then(|_| fs.durability().sync());
    if let Err(error) = &outcome {
        assert_eq!(error.errno(), Errno::NOSPC, "{error:?}: {:?}", fs.abort_reason());
    }
    assert_eq!(fs.abort_reason(), None);
    outcome.is_ok()
}

/// Asserts that all space is free again after some syncs or, if subvolumes are dropped in the
/// background, after some time.
fn recovers(fs: &Filesystem, source: TreeId, time: Duration) {
    for _ in 0..100 {
        fs.durability().sync().unwrap();
    }
    let begun = Instant::now();
    let mut done = 0;
    for number in 0.. {
        if turn(fs, source, &format!("after {number}")) {
            done += 1;
        } else {
            assert!(begun.elapsed() < time, "all is free again");
            std::thread::sleep(Duration::from_millis(20));
        }
        if done == 3 {
            return;
        }
    }
}

#[test]
fn space_that_a_reader_pins_is_not_spent() {
    let device = Arc::new(new_volume(SIZE));
    let fs = open(&device, false);
    let source = filled(&fs);
    let reader = fs.keep_commit();
    let done = (0..3000).take_while(|number| turn(&fs, source, &format!("snapshot {number}"))).count();
    assert!((10..3000).contains(&done), "space is short after {done} turns");
    for number in 0..50 {
        turn(&fs, source, &format!("short {number}"));
        fs.durability().sync().unwrap();
        assert_eq!(fs.abort_reason(), None);
    }
    drop(reader);
    recovers(&fs, source, Duration::ZERO);
    fs.close().unwrap();
}

/// Fills a volume with snapshots, and deletes all of them while a reader keeps a commit. Returns
/// the error that has made it read-only, if any.
fn delete_beside_a_reader(fs: &Filesystem, source: TreeId) -> Option<String> {
    let made = (0..3000).take_while(|number| {
        changed_snapshot(fs, source, &format!("snapshot {number}")).is_ok() && fs.durability().sync().is_ok()
    });
    let made = made.count();
    let reader = fs.keep_commit();
    for number in 0..made {
        if fs.subvolumes().delete_subvolume(fs.root(), format!("snapshot {number}").as_bytes()).is_ok() {
            fs.durability().sync().ok();
        }
    }
    for _ in 0..1000 {
        fs.durability().sync().ok();
    }
    drop(reader);
    fs.abort_reason()
}

#[test]
fn subvolumes_are_not_dropped_with_space_that_a_reader_pins() {
    let device = Arc::new(new_volume(SIZE));
    let fs = open(&device, false);
    let source = filled(&fs);
    assert_eq!(delete_beside_a_reader(&fs, source), None);
    recovers(&fs, source, Duration::ZERO);
    fs.close().unwrap();
}

#[test]
fn subvolumes_that_are_dropped_with_pinned_space_are_noticed() {
    let device = Arc::new(new_volume(SIZE));
    let faults = Faults { commit: Some(CommitFault::FreeUnreserved), ..Faults::default() };
    let fs = open_with(&device, Options { background_commits: false, faults, ..Options::default() });
    let source = filled(&fs);
    let reason = delete_beside_a_reader(&fs, source).expect("a commit runs out of space");
    assert!(reason.contains("no space for metadata"), "{reason}");
}

#[test]
fn a_scrub_beside_snapshots_costs_no_commit() {
    let device = Arc::new(new_volume(SIZE));
    let fs = open(&device, true);
    let source = filled(&fs);
    let end = Arc::new(AtomicBool::new(false));
    let scrubber = {
        let (fs, end) = (Arc::clone(&fs), Arc::clone(&end));
        std::thread::spawn(move || {
            let mut scrubs = 0;
            while !end.load(Ordering::Relaxed) {
                fs.scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap();
                scrubs += 1;
            }
            scrubs
        })
    };
    for number in 0..150 {
        turn(&fs, source, &format!("snapshot {number}"));
    }
    end.store(true, Ordering::Relaxed);
    assert!(scrubber.join().unwrap() > 0);
    recovers(&fs, source, Duration::from_secs(60));
    fs.close().unwrap();
}

const SECTOR: u64 = 4096;

fn byte_of(extent: u64) -> u8 {
    (extent % 255) as u8 + 1
}

/// Opens a mount that frees in steps, on a volume that is full except for single sectors of which
/// none are adjacent. Most of the sectors are in one file.
fn with_scattered_file(device: &Arc<MemoryDevice>, extents: u64) -> (Arc<Filesystem>, InodeId) {
    let freeing = FreeingLimits { at_once: 0, per_transaction: 20, at_the_end: 20, queue: 1000 };
    let fs = open_with(device, Options { background_commits: false, freeing, ..Options::default() });
    let make = |name: String, bytes: &[u8]| {
        let file = fs.directories().create(fs.root(), name.as_bytes(), &regular())?;
        let written = fs.files().write(file, WriteAt::Offset(0), bytes, false);
        fs.references().forget(file, 1);
        written
    };
    for number in 0..3000 {
        let name = format!("small {number}");
        make(name.clone(), &[1; 1500]).unwrap();
        let file = fs.directories().lookup(fs.root(), name.as_bytes()).unwrap();
        fs.directories().link(file, fs.root(), format!("link {number}").as_bytes()).unwrap();
        fs.references().forget(file, 1);
    }
    let teeth = 2 * extents + 100;
    for number in 0..teeth {
        make(format!("tooth {number}"), &[1; SECTOR as usize]).unwrap();
    }
    fs.durability().sync().unwrap();
    for bytes in [1 << 20, SECTOR as usize] {
        let full = (0..).find_map(|number| make(format!("full {bytes} {number}"), &vec![1; bytes]).err()).unwrap();
        assert_eq!(full.errno(), Errno::NOSPC);
        fs.durability().sync().unwrap();
    }
    for number in (0..teeth).step_by(2) {
        fs.directories().unlink(fs.root(), format!("tooth {number}").as_bytes()).unwrap();
    }
    (0..=teeth / 20).for_each(|_| fs.durability().sync().unwrap());
    assert_eq!(fs.stats().inactivation.inodes, 0);
    let file = fs.directories().create(fs.root(), b"scattered", &regular()).unwrap();
    for number in 0..extents {
        let at = WriteAt::Offset(number * SECTOR);
        fs.files().write(file, at, &[byte_of(number); SECTOR as usize], false).unwrap();
    }
    fs.durability().sync().unwrap();
    (fs, file)
}

fn regular() -> NewInode {
    NewInode { mode: 0o100_644, ..NewInode::default() }
}

/// Creates files, each in a commit, as long as there is space.
fn spend_by_creations(fs: &Filesystem) {
    let create = |number| fs.directories().create(fs.root(), format!("more {number}").as_bytes(), &regular());
    let refused = (0..).find_map(|number| create(number).and_then(|_| fs.durability().sync()).err()).unwrap();
    assert_eq!(refused.errno(), Errno::NOSPC, "{refused:?}: {:?}", fs.abort_reason());
}

/// Unlinks a name of a file that has another one, if there is space.
fn spend_by_unlink(fs: &Filesystem, number: u64) {
    if let Err(error) = fs.directories().unlink(fs.root(), format!("link {number}").as_bytes()) {
        assert_eq!(error.errno(), Errno::NOSPC, "{error:?}: {:?}", fs.abort_reason());
    }
}

fn assert_clean(device: &Arc<MemoryDevice>) {
    let device: [Arc<dyn Device>; 1] = [Arc::clone(device) as _];
    let report = ubtrfs_check::check(&device, &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
}

#[test]
fn an_inode_for_which_there_is_no_space_does_not_keep_others_from_being_freed() {
    let device = Arc::new(new_volume(SIZE));
    let (fs, scattered) = with_scattered_file(&device, 2000);
    let few: Vec<InodeId> = (0..5)
        .map(|number| {
            let file = fs.directories().create(fs.root(), format!("few {number}").as_bytes(), &regular()).unwrap();
            fs.files().write(file, WriteAt::Offset(0), &[1; SECTOR as usize], false).unwrap();
            file
        })
        .collect();
    fs.directories().unlink(fs.root(), b"scattered").unwrap();
    (0..5).for_each(|number| fs.directories().unlink(fs.root(), format!("few {number}").as_bytes()).unwrap());
    fs.durability().sync().unwrap();
    let reader = fs.keep_commit();
    spend_by_creations(&fs);
    fs.references().forget(scattered, 1);
    for file in few {
        fs.references().forget(file, 1);
    }
    assert_eq!(fs.stats().inactivation.inodes, 6);
    let (mut last, mut same) = (u64::MAX, 0);
    for number in 0.. {
        spend_by_unlink(&fs, number);
        fs.durability().sync().unwrap();
        let bytes = fs.stats().inactivation.bytes;
        same = if bytes == last { same + 1 } else { 0 };
        last = bytes;
        if same == 20 {
            break;
        }
    }
    let left = fs.stats().inactivation;
    assert!(left.bytes > 0, "the reader keeps too little for the test");
    assert_eq!(left.inodes, 1, "{left:?}");
    drop(reader);
    while fs.stats().inactivation.inodes > 0 {
        fs.durability().sync().unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    assert_clean(&device);
}

#[test]
fn truncations_in_steps_that_find_no_space_are_whole_steps_and_go_on_later() {
    let device = Arc::new(new_volume(SIZE));
    let (fs, scattered) = with_scattered_file(&device, 1200);
    let size = || fs.inodes().attributes(scattered).unwrap().size;
    let truncate =
        || fs.inodes().set_attributes(scattered, &SetAttributes { size: Some(0), ..SetAttributes::default() });
    let before = size();
    let reader = fs.keep_commit();
    // Operations that free space may go on where others may not, so some steps succeed.
    spend_by_creations(&fs);
    let mut last = before;
    for _ in 0..5 {
        let refused = truncate().map(drop).expect_err("the reader keeps too little for the test");
        assert_eq!(refused.errno(), Errno::NOSPC);
        assert!(size() <= last, "{} after {last}", size());
        last = size();
        for number in 0..last / SECTOR {
            let read = fs.files().read(scattered, number * SECTOR, SECTOR as usize).unwrap();
            assert!(read == [byte_of(number); SECTOR as usize], "extent {number} of {last} bytes");
        }
        fs.durability().sync().unwrap();
        assert_eq!(fs.abort_reason(), None);
    }
    assert!(last < before, "no step is done");
    println!("{last} of {before} bytes are left");
    drop(reader);
    truncate().unwrap();
    assert_eq!(size(), 0);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&device);
}
