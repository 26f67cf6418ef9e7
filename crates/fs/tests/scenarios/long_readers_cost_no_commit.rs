//! A process that reads the trees of an old commit for long (a scrub, a comparison, an export)
//! holds back what later commits free. Operations run out of space earlier then; no commit does
//! (invariant 8).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ubtrfs::testing::{CommitFault, Faults};
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, Options, ScrubOptions, WriteAt};
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

/// A subvolume of many small files, so that its tree has some leaves.
fn filled(fs: &Filesystem) -> TreeId {
    let id = fs.create_subvolume(fs.root(), b"source", 0o755, (0, 0)).unwrap();
    let dir = InodeId::new(id, Ino::ROOT_DIR);
    for number in 0..FILES {
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let file = fs.create(dir, format!("file {number}").as_bytes(), &new).unwrap();
        fs.write(file, WriteAt::Offset(0), &[1; 1500], false).unwrap();
    }
    fs.sync().unwrap();
    id
}

/// Makes a snapshot and changes it, so that it has leaves of its own.
fn changed_snapshot(fs: &Filesystem, source: TreeId, name: &str) -> ubtrfs::Result<()> {
    let id = fs.snapshot(source, fs.root(), name.as_bytes(), false)?;
    let dir = InodeId::new(id, Ino::ROOT_DIR);
    (0..FILES).step_by(7).try_for_each(|number| {
        let file = fs.lookup(dir, format!("file {number}").as_bytes())?;
        let written = fs.write(file, WriteAt::Offset(0), &[2; 1500], false);
        fs.forget(file, 1);
        written.map(drop)
    })
}

/// Makes a snapshot, changes it, and deletes it. Whether there was room.
fn turn(fs: &Filesystem, source: TreeId, name: &str) -> bool {
    let changed = changed_snapshot(fs, source, name);
    let deleted = fs.delete_subvolume(fs.root(), name.as_bytes());
    let outcome = changed.and(deleted).and_then(|_| fs.sync());
    if let Err(error) = &outcome {
        assert_eq!(error.errno(), Errno::NOSPC, "{error}: {:?}", fs.abort_reason());
    }
    assert_eq!(fs.abort_reason(), None);
    outcome.is_ok()
}

/// All is free again after some syncs, and where subvolumes are dropped in the background after
/// some time.
fn recovers(fs: &Filesystem, source: TreeId, time: Duration) {
    for _ in 0..100 {
        fs.sync().unwrap();
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
fn what_a_reader_holds_back_is_not_spent() {
    let device = Arc::new(new_volume(SIZE));
    let fs = open(&device, false);
    let source = filled(&fs);
    let reader = fs.keep_commit();
    let done = (0..3000).take_while(|number| turn(&fs, source, &format!("snapshot {number}"))).count();
    assert!((10..3000).contains(&done), "space is short after {done} turns");
    for number in 0..50 {
        turn(&fs, source, &format!("short {number}"));
        fs.sync().unwrap();
        assert_eq!(fs.abort_reason(), None);
    }
    drop(reader);
    recovers(&fs, source, Duration::ZERO);
    fs.close().unwrap();
}

/// Fills a volume with snapshots, deletes all of them while somebody reads, and returns the error
/// by which it has turned read-only.
fn delete_beside_a_reader(fs: &Filesystem, source: TreeId) -> Option<String> {
    let made = (0..3000)
        .take_while(|number| changed_snapshot(fs, source, &format!("snapshot {number}")).is_ok() && fs.sync().is_ok());
    let made = made.count();
    let reader = fs.keep_commit();
    for number in 0..made {
        if fs.delete_subvolume(fs.root(), format!("snapshot {number}").as_bytes()).is_ok() {
            fs.sync().ok();
        }
    }
    for _ in 0..1000 {
        fs.sync().ok();
    }
    drop(reader);
    fs.abort_reason()
}

#[test]
fn subvolumes_are_not_dropped_with_what_a_reader_holds_back() {
    let device = Arc::new(new_volume(SIZE));
    let fs = open(&device, false);
    let source = filled(&fs);
    assert_eq!(delete_beside_a_reader(&fs, source), None);
    recovers(&fs, source, Duration::ZERO);
    fs.close().unwrap();
}

#[test]
fn subvolumes_that_are_dropped_all_the_same_are_noticed() {
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
                fs.scrub(ScrubOptions::default(), &mut |_| true).unwrap();
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
