//! The cost of an fsync, in barriers, bytes and lookups: it writes only what changed, with two
//! barriers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;

use crate::common::gated::{Gated, open_gated};
use crate::common::memory::new_volume;
use ubtrfs::testing::Rng;
use ubtrfs::volume::{Device, OpenOptions, Volume};
use ubtrfs::{Filesystem, InodeId, NewInode, Options, RenameFlags, Stats, WriteAt};
use ubtrfs_format::{ItemType, Key};

const FILE: u32 = 0o100_644;
const DIR: u32 = 0o040_755;
const KIB: u64 = 1024;
/// Bytes of both copies of a node.
const NODE: u64 = 2 * 16 * KIB;
const SUPERBLOCK: u64 = 4 * KIB;
/// The minimum that a write of the log takes: a node of the log tree, a node of the tree of log
/// trees, and a superblock.
const MIN: u64 = 2 * NODE + SUPERBLOCK;

fn open(size: u64) -> (Arc<Gated>, Arc<Filesystem>) {
    let (device, fs) = open_gated(size);
    // The first write of data allocates a chunk, which only a commit can make known.
    let first = create(&fs, fs.root(), "first", FILE);
    write(&fs, first, 0, 1024 * KIB);
    fs.durability().sync().unwrap();
    (device, fs)
}

fn create(fs: &Filesystem, dir: InodeId, name: &str, mode: u32) -> InodeId {
    fs.directories().create(dir, name.as_bytes(), &NewInode { mode, ..NewInode::default() }).unwrap()
}

fn write(fs: &Filesystem, id: InodeId, at: u64, len: u64) {
    fs.files().write(id, WriteAt::Offset(at), &vec![7; len as usize], false).unwrap();
}

fn rename(fs: &Filesystem, (dir, name): (InodeId, &str), (new_dir, new_name): (InodeId, &str)) {
    fs.directories().rename(dir, name.as_bytes(), new_dir, new_name.as_bytes(), RenameFlags::default()).unwrap();
}

/// The costs of a call.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    commits: u64,
    log_writes: u64,
    requests: u64,
    searches: u64,
    flushes: u64,
    bytes: u64,
    reads: u64,
}

fn cost(fs: &Filesystem, work: impl FnOnce()) -> Cost {
    let before = fs.stats();
    work();
    let after = fs.stats();
    let difference = |of: fn(&Stats) -> u64| of(&after) - of(&before);
    Cost {
        commits: difference(|stats| stats.commits),
        log_writes: difference(|stats| stats.log_writes),
        requests: difference(|stats| stats.log_requests),
        searches: difference(|stats| stats.log_searches),
        flushes: difference(|stats| stats.volume.devices.flushes),
        bytes: difference(|stats| stats.volume.devices.written_bytes),
        reads: difference(|stats| stats.volume.devices.reads),
    }
}

/// Returns the cost of an fsync that takes one write of the log.
fn fsync(fs: &Filesystem, id: InodeId) -> Cost {
    let cost = cost(fs, || fs.durability().fsync(id).unwrap());
    assert_eq!((cost.commits, cost.log_writes, cost.flushes), (0, 1, 2), "{cost:?}");
    cost
}

const NOTHING: Cost = Cost { commits: 0, log_writes: 0, requests: 0, searches: 0, flushes: 0, bytes: 0, reads: 0 };

#[test]
fn an_overwrite_costs_its_data_and_the_least_of_a_log() {
    let (_, fs) = open(256 << 20);
    let file = create(&fs, fs.root(), "file", FILE);
    write(&fs, file, 0, 256 * KIB);
    fs.durability().sync().unwrap();
    for at in [64 * KIB, 128 * KIB, 64 * KIB] {
        write(&fs, file, at, 4 * KIB);
        let cost = fsync(&fs, file);
        assert_eq!((cost.bytes, cost.searches, cost.reads), (4 * KIB + MIN, 0, 0), "{cost:?}");
    }
    assert_eq!(cost(&fs, || fs.durability().fsync(file).unwrap()), NOTHING);
}

#[test]
fn an_append_costs_its_data_and_the_least_of_a_log() {
    let (_, fs) = open(256 << 20);
    let file = create(&fs, fs.root(), "file", FILE);
    write(&fs, file, 0, 256 * KIB);
    fs.durability().sync().unwrap();
    write(&fs, file, 256 * KIB, 64 * KIB);
    let cost = fsync(&fs, file);
    assert_eq!((cost.bytes, cost.searches, cost.reads), (64 * KIB + MIN, 0, 0), "{cost:?}");
}

/// Returns how many extents of a file the last commit has.
fn extents(fs: &Filesystem, file: InodeId) -> usize {
    let key = |offset| Key::new(file.ino.0, ItemType::EXTENT_DATA, offset);
    let mut found = 0;
    fs.search_tree(file.subvolume, key(0), key(u64::MAX), &mut |_| {
        found += 1;
        true
    })
    .unwrap();
    found
}

#[test]
fn a_file_that_grows_from_fsync_to_fsync_costs_the_same_each_time_and_stays_in_one_piece() {
    const STEP: u64 = 64 * KIB;
    const STEPS: u64 = 100;
    let (_, fs) = open(256 << 20);
    let file = create(&fs, fs.root(), "file", FILE);
    for number in 0..STEPS {
        write(&fs, file, number * STEP, STEP);
        let cost = fsync(&fs, file);
        assert_eq!(cost.bytes, STEP + MIN, "{number}: {cost:?}");
    }
    fs.durability().sync().unwrap();
    assert_eq!(extents(&fs, file), 1);
    // A committed extent does not grow.
    write(&fs, file, STEPS * STEP, STEP);
    fsync(&fs, file);
    fs.durability().sync().unwrap();
    assert_eq!(extents(&fs, file), 2);
    assert!(fs.files().read(file, 0, ((STEPS + 1) * STEP) as usize).unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn files_that_grow_side_by_side_leave_each_other_room() {
    const STEP: u64 = 64 * KIB;
    let (_, fs) = open(256 << 20);
    let files = ["one", "other"].map(|name| create(&fs, fs.root(), name, FILE));
    for number in 0..40 {
        for file in files {
            write(&fs, file, number * STEP, STEP);
            fsync(&fs, file);
        }
    }
    fs.durability().sync().unwrap();
    for file in files {
        assert!(extents(&fs, file) <= 5, "{}", extents(&fs, file));
    }
}

#[test]
fn scattered_writes_cost_one_submission_of_data() {
    let (device, fs) = open(256 << 20);
    let file = create(&fs, fs.root(), "file", FILE);
    write(&fs, file, 0, 1024 * KIB);
    fs.durability().sync().unwrap();
    for round in 0..50 {
        for number in 0..16 {
            write(&fs, file, (number * 8 + round % 8) * 8 * KIB, 4 * KIB);
        }
        let before = device.submissions.load(Ordering::SeqCst);
        fsync(&fs, file);
        let submissions = device.submissions.load(Ordering::SeqCst) - before;
        assert_eq!(submissions, 3, "data, log, superblock");
    }
}

#[test]
fn the_thousandth_append_costs_hardly_more_than_the_first() {
    let (_, fs) = open(256 << 20);
    let file = create(&fs, fs.root(), "file", FILE);
    let mut last = None;
    for number in 0..1000 {
        write(&fs, file, number * 4 * KIB, 4 * KIB);
        last = Some(fsync(&fs, file));
    }
    let last = last.unwrap();
    // The inode item, the last extents and the checksums are in leaves of their own by then, below
    // a root; each leaf may be split.
    assert!(last.bytes <= 4 * KIB + MIN + 5 * NODE && last.searches == 0 && last.reads == 0, "{last:?}");
}

#[test]
fn a_new_file_costs_its_data_and_the_least_of_a_log() {
    let (_, fs) = open(256 << 20);
    let file = create(&fs, fs.root(), "file", FILE);
    write(&fs, file, 0, 16 * KIB);
    let cost = fsync(&fs, file);
    assert_eq!((cost.bytes, cost.searches, cost.reads), (16 * KIB + MIN, 0, 0), "{cost:?}");
    // The log contains the data of a small file.
    let small = create(&fs, fs.root(), "small", FILE);
    write(&fs, small, 0, 100);
    let cost = fsync(&fs, small);
    assert_eq!((cost.bytes, cost.searches, cost.reads), (MIN, 0, 0), "{cost:?}");
}

#[test]
fn a_renamed_file_costs_a_lookup_of_its_names() {
    let (_, fs) = open(256 << 20);
    let (one, two) = (create(&fs, fs.root(), "one", DIR), create(&fs, fs.root(), "two", DIR));
    let file = create(&fs, one, "file", FILE);
    write(&fs, file, 0, 16 * KIB);
    fs.durability().sync().unwrap();
    assert_eq!(cost(&fs, || rename(&fs, (one, "file"), (two, "file"))), NOTHING);
    let cost = fsync(&fs, file);
    // There is a search for the names in each of the two directories, and none for their contents.
    assert!(cost.searches <= 2 && cost.bytes == MIN, "{cost:?}");
}

#[test]
fn a_new_entry_in_a_large_directory_costs_what_it_does_in_a_small_one() {
    let (_, fs) = open(512 << 20);
    let dir = create(&fs, fs.root(), "dir", DIR);
    for number in 0..100_000 {
        let id = create(&fs, dir, &format!("file {number}"), FILE);
        fs.references().forget(id, 1);
    }
    fs.durability().sync().unwrap();
    create(&fs, dir, "new", FILE);
    let cost = fsync(&fs, dir);
    assert_eq!((cost.bytes, cost.searches, cost.reads), (MIN, 0, 0), "{cost:?}");
    create(&fs, dir, "newer", FILE);
    let cost = fsync(&fs, dir);
    assert_eq!((cost.bytes, cost.searches, cost.reads), (MIN, 0, 0), "{cost:?}");
}

#[test]
fn renames_start_no_io_whatever_the_log_has() {
    let (_, fs) = open(256 << 20);
    let (one, two) = (create(&fs, fs.root(), "one", DIR), create(&fs, fs.root(), "two", DIR));
    let files: Vec<_> = (0..10_000).map(|number| create(&fs, one, &number.to_string(), FILE)).collect();
    fs.durability().sync().unwrap();
    for (number, id) in files.iter().enumerate().filter(|(number, _)| number % 2 == 0) {
        fs.files().write(*id, WriteAt::Offset(0), &number.to_le_bytes(), false).unwrap();
        fs.durability().fsync(*id).unwrap();
    }
    fs.durability().fsync(two).unwrap();
    let renames = || {
        for number in 0..10_000 {
            rename(&fs, (one, &number.to_string()), (two, &format!("{number}.new")));
        }
    };
    assert_eq!(cost(&fs, renames), NOTHING);
}

#[test]
fn changes_of_names_look_into_the_trees_once_for_each_thing_they_must_know() {
    let (_, fs) = open(256 << 20);
    let dir = create(&fs, fs.root(), "dir", DIR);
    let files: Vec<_> = (0..2000).map(|number| create(&fs, dir, &number.to_string(), FILE)).collect();
    fs.durability().sync().unwrap();
    create(&fs, dir, "first of a transaction", FILE);
    let nodes = |work: &dyn Fn()| {
        let before = fs.stats().cache;
        work();
        let after = fs.stats().cache;
        assert_eq!(before.misses, after.misses);
        after.hits - before.hits
    };
    let search = nodes(&|| drop(fs.directories().lookup(dir, b"not there").unwrap_err()));
    assert!(search > 0);
    // It searches for the name.
    assert_eq!(
        nodes(&|| {
            create(&fs, dir, "new", FILE);
        }),
        search
    );
    assert_eq!(nodes(&|| fs.directories().link(files[0], dir, b"linked").unwrap()), search);
    // It searches for the entry of the name, and for its index.
    assert_eq!(nodes(&|| fs.directories().unlink(dir, b"1").unwrap()), 2 * search);
    // The same for the old name, and a search for the new one.
    assert_eq!(nodes(&|| rename(&fs, (dir, "2"), (dir, "2.new"))), 3 * search);
    // The same for both names.
    assert_eq!(nodes(&|| rename(&fs, (dir, "3"), (dir, "4"))), 4 * search);
}

#[test]
fn fsyncs_that_come_while_a_log_is_written_share_the_next_write() {
    let (device, fs) = open(256 << 20);
    let files: Vec<_> = (0..16).map(|number| create(&fs, fs.root(), &number.to_string(), FILE)).collect();
    fs.durability().sync().unwrap();
    for id in &files {
        write(&fs, *id, 0, 8 * KIB);
    }
    let cost = cost(&fs, || {
        std::thread::scope(|scope| {
            device.flushes.close();
            scope.spawn(|| fs.durability().fsync(files[0]).unwrap());
            device.flushes.until_reached();
            let (returned, returns) = channel();
            let (ended, ends) = channel();
            for id in &files[1..] {
                let (fs, returned, ended) = (&fs, returned.clone(), ended.clone());
                scope.spawn(move || {
                    fs.durability().start_fsync(*id, false, Box::new(move |result| ended.send(result).unwrap()));
                    let _ = returned.send(());
                });
            }
            // All but the leader of the next group have joined it.
            for _ in 0..14 {
                returns.recv().unwrap();
            }
            device.flushes.open();
            for _ in 0..15 {
                ends.recv().unwrap().unwrap();
            }
        });
    });
    assert_eq!((cost.requests, cost.log_writes, cost.flushes), (16, 2, 4), "{cost:?}");
}

#[test]
fn fsyncs_during_a_commit_are_durable_with_its_superblock() {
    let (device, fs) = open(256 << 20);
    let files = ["one", "two"].map(|name| create(&fs, fs.root(), name, FILE));
    let old = create(&fs, fs.root(), "old", FILE);
    fs.durability().sync().unwrap();
    write(&fs, old, 0, 100);
    let cost = cost(&fs, || {
        std::thread::scope(|scope| {
            device.writes.close();
            scope.spawn(|| fs.durability().sync().unwrap());
            device.writes.until_reached();
            // The commit's nodes are in flight. Changes from now on belong to the next transaction.
            for id in files {
                write(&fs, id, 0, 100);
            }
            let (returned, returns) = channel();
            let (ended, ends) = channel();
            for id in files {
                let (fs, returned, ended) = (&fs, returned.clone(), ended.clone());
                scope.spawn(move || {
                    fs.durability().start_fsync(id, false, Box::new(move |result| ended.send(result).unwrap()));
                    let _ = returned.send(());
                });
            }
            // One of them leads, and the other has joined it.
            returns.recv().unwrap();
            device.writes.open();
            for _ in 0..2 {
                ends.recv().unwrap().unwrap();
            }
        });
    });
    assert_eq!((cost.commits, cost.requests, cost.log_writes, cost.flushes), (1, 2, 1, 2), "{cost:?}");
    assert_eq!(fs.volume().superblocks().current().generation.0, fs.generation().0);
    assert_ne!(fs.volume().superblocks().current().log_root.0, 0);
}

/// Returns the bytes of tree blocks that 1,500 fsyncs of 16 random sectors each write.
fn blocks_of_random_fsyncs(background_commits: bool) -> u64 {
    const SECTORS: u64 = 16_384;
    const SECTOR: u64 = 4096;
    let device: Arc<dyn Device> = Arc::new(new_volume(512 << 20));
    let volume = Volume::open(vec![device], OpenOptions { read_only: false }).unwrap();
    let fs = Filesystem::open(Arc::new(volume), Options { background_commits, ..Options::default() }).unwrap();
    let file =
        fs.directories().create(fs.root(), b"file", &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
    for sector in (0..SECTORS).step_by(256) {
        fs.files().write(file, WriteAt::Offset(sector * SECTOR), &vec![1; 256 * SECTOR as usize], false).unwrap();
    }
    fs.durability().sync().unwrap();
    let before = fs.stats();
    let mut random = Rng::new(1);
    for _ in 0..1500 {
        for _ in 0..16 {
            let at = random.below(SECTORS) * SECTOR;
            fs.files().write(file, WriteAt::Offset(at), &[2; SECTOR as usize], false).unwrap();
        }
        fs.durability().fsync(file).unwrap();
    }
    let after = fs.stats();
    fs.close().unwrap();
    after.log_bytes + after.commit_bytes - before.log_bytes - before.commit_bytes
}

#[test]
fn a_commit_ends_a_log_that_has_become_expensive() {
    let (with, without) = (blocks_of_random_fsyncs(true), blocks_of_random_fsyncs(false));
    assert!(with < without * 4 / 5, "{with} bytes with commits, {without} without");
}
