//! The engine scales with processors: requests in memory take few locks that all of them share, and
//! lookups take none. The test counts acquisitions, without regard to their time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use crate::common::memory::new_volume;
use ubtrfs::{Filesystem, InodeId, NewInode, Options, RenameFlags, WriteAt};
use ubtrfs_volume::{OpenOptions, Volume};

const THREADS: u64 = 4;
const TIMES: u64 = 50;
/// Locks of which there is one for the whole mount. The others are of one of many parts of a table;
/// that of the buffer pool is shared by the process, in which other tests run.
const SHARED: [&str; 5] = ["gate", "space", "fsync group", "tree log", "chunk map"];

/// A directory and a file for each thread.
struct Place {
    dir: InodeId,
    file: InodeId,
}

fn volume() -> (Arc<Filesystem>, Vec<Place>) {
    let volume = Volume::open(vec![Arc::new(new_volume(128 << 20))], OpenOptions { read_only: false }).unwrap();
    let options = Options { background_commits: false, ..Options::default() };
    let fs = Filesystem::open(Arc::new(volume), options).unwrap();
    let create = |dir, name: &str, mode| {
        fs.directories().create(dir, name.as_bytes(), &NewInode { mode, ..NewInode::default() })
    };
    let place = |number| {
        let dir = create(fs.root(), &format!("dir{number}"), 0o40_755).unwrap();
        let file = create(dir, "file", 0o100_644).unwrap();
        fs.files().write(file, WriteAt::Offset(0), &[1; 16384], false).unwrap();
        // The first read records the access, which later ones need not do.
        fs.files().read(file, 0, 4096).unwrap();
        Place { dir, file }
    };
    let places = (0..THREADS).map(place).collect();
    (fs, places)
}

fn acquisitions(fs: &Filesystem) -> BTreeMap<&'static str, u64> {
    fs.stats().locks.into_iter().map(|(name, counters)| (name, counters.acquisitions)).collect()
}

/// Returns how often each shared lock is taken per call of `operation`, if all threads make many
/// calls.
fn for_each(operation: impl Fn(&Filesystem, &Place, u64) + Sync) -> Vec<(&'static str, u64)> {
    let (fs, places) = volume();
    // The counting itself takes locks, too.
    let counting = {
        let before = acquisitions(&fs);
        let after = acquisitions(&fs);
        SHARED.map(|name| after[name] - before[name])
    };
    let before = acquisitions(&fs);
    thread::scope(|scope| {
        for place in &places {
            let (fs, operation) = (&fs, &operation);
            scope.spawn(move || (0..TIMES).for_each(|time| operation(fs, place, time)));
        }
    });
    let after = acquisitions(&fs);
    let taken = SHARED.into_iter().zip(counting).map(|(name, counting)| (name, after[name] - before[name] - counting));
    let each = taken.map(|(name, times)| {
        assert_eq!(times % (THREADS * TIMES), 0, "{name} is taken {times} times, not as often by each");
        (name, times / (THREADS * TIMES))
    });
    each.filter(|(_, times)| *times > 0).collect()
}

#[test]
fn looking_at_what_is_in_memory_takes_no_shared_lock() {
    assert_eq!(
        for_each(|fs, place, _| assert_eq!(fs.directories().lookup(place.dir, b"file").unwrap(), place.file)),
        []
    );
    assert_eq!(for_each(|fs, place, _| drop(fs.directories().lookup(place.dir, b"absent").unwrap_err())), []);
    assert_eq!(for_each(|fs, place, _| assert!(fs.inodes().attributes(place.file).unwrap().size > 0)), []);
    assert_eq!(for_each(|fs, place, _| drop(fs.files().read(place.file, 4096, 4096).unwrap())), []);
}

#[test]
fn a_write_takes_the_shared_locks_of_its_reservation_and_its_transaction() {
    let over = for_each(|fs, place, _| {
        assert_eq!(fs.files().write(place.file, WriteAt::Offset(4096), &[2; 4096], false).unwrap(), 4096);
    });
    assert_eq!(over, [("gate", 2), ("space", 3)]);
    let end = for_each(|fs, place, time| {
        fs.files().write(place.file, WriteAt::Offset(16384 + time * 4096), &[2; 4096], false).unwrap();
    });
    assert_eq!(end, [("gate", 2), ("space", 3)]);
}

#[test]
fn names_take_the_shared_locks_of_their_reservation_and_their_transaction() {
    let create = for_each(|fs, place, time| {
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        fs.directories().create(place.dir, format!("new{time}").as_bytes(), &new).unwrap();
    });
    assert_eq!(create, [("gate", 1), ("space", 2)]);
    let rename = for_each(|fs, place, time| {
        let name = |time: u64| if time == 0 { "file".to_owned() } else { format!("file{time}") };
        let (old, new) = (name(time), name(time + 1));
        fs.directories().rename(place.dir, old.as_bytes(), place.dir, new.as_bytes(), RenameFlags::default()).unwrap();
    });
    assert_eq!(rename, [("gate", 1), ("space", 2)]);
}
