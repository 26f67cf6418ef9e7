//! A server's thread that must not block begins to write the log of an fsync, and another thread
//! ends that. The fsync succeeds only when the second thread has ended it, and nothing is built on
//! what only the first has done (invariant 22).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use ubtrfs::scheduling::FsyncLeader;
use ubtrfs::{Filesystem, InodeId, NewInode, Options, WriteAt};
use ubtrfs_volume::{Device, MemoryDevice, OpenOptions, Volume};

use crate::common::memory::new_volume;
use crate::common::pattern;

const LEN: usize = 64 << 10;

fn open(device: &Arc<MemoryDevice>, read_only: bool) -> Arc<Filesystem> {
    let device: Arc<dyn Device> = Arc::clone(device) as _;
    let volume = Volume::open(vec![device], OpenOptions { read_only }).unwrap();
    let options = Options { background_commits: false, read_only, ..Options::default() };
    Filesystem::open(Arc::new(volume), options).unwrap()
}

fn mounted() -> (Arc<MemoryDevice>, Arc<Filesystem>) {
    let device = Arc::new(new_volume(128 << 20));
    let fs = open(&device, false);
    (device, fs)
}

fn file(fs: &Filesystem, name: &str) -> InodeId {
    let id = fs
        .directories()
        .create(fs.root(), name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() })
        .unwrap();
    fs.files().write(id, WriteAt::Offset(0), &pattern(1, LEN), false).unwrap();
    id
}

fn begin(fs: &Filesystem, id: InodeId) -> (Option<FsyncLeader>, Receiver<ubtrfs::Result<()>>) {
    let (sender, result) = channel();
    (fs.durability().join_fsync(id, false, Box::new(move |result| sender.send(result).unwrap())), result)
}

/// Returns whether the whole file is there if the power is cut now.
fn is_durable(device: &MemoryDevice, name: &str) -> bool {
    let crashed = Arc::new(MemoryDevice::from_bytes(device.to_bytes()));
    let fs = open(&crashed, true);
    fs.directories()
        .lookup(fs.root(), name.as_bytes())
        .is_ok_and(|id| fs.files().read(id, 0, 2 * LEN).unwrap() == pattern(1, LEN))
}

#[test]
fn an_fsync_is_answered_by_the_thread_that_ends_it() {
    let (device, fs) = mounted();
    let before = device.counters();
    let (leader, result) = begin(&fs, file(&fs, "file"));
    let begun = device.counters();
    assert!(begun.writes > before.writes, "data and nodes are submitted by the first part");
    assert_eq!(begun.flushes, before.flushes);
    assert_eq!(result.try_recv().unwrap_err(), TryRecvError::Empty);
    assert!(!is_durable(&device, "file"));
    fs.durability().lead_fsync(leader.unwrap());
    result.recv().unwrap().unwrap();
    assert!(is_durable(&device, "file"));
    assert_eq!(device.counters().flushes, before.flushes + 2);
}

#[test]
fn fsyncs_during_a_log_write_share_the_next_one() {
    let (device, fs) = mounted();
    let (first, first_result) = begin(&fs, file(&fs, "first"));
    let others: Vec<_> = ["second", "third"].map(|name| begin(&fs, file(&fs, name))).into();
    fs.durability().lead_fsync(first.unwrap());
    first_result.recv().unwrap().unwrap();
    assert_eq!(fs.stats().log_writes, 1);
    for (leader, result) in others {
        if let Some(leader) = leader {
            fs.durability().lead_fsync(leader);
        }
        result.recv().unwrap().unwrap();
    }
    assert_eq!(fs.stats().log_writes, 2);
    assert!(["first", "second", "third"].iter().all(|name| is_durable(&device, name)));
}

/// The thread that has to publish a log may come late, or never (invariant 37).
#[test]
fn nobody_waits_for_a_leader_that_has_yet_to_come() {
    let (device, fs) = mounted();
    let what_waits: [fn(&Filesystem); 2] =
        [|fs| fs.durability().sync().unwrap(), |fs| fs.durability().fsync(file(fs, "other")).unwrap()];
    for (number, wait) in what_waits.into_iter().enumerate() {
        let name = format!("first {number}");
        let (leader, result) = begin(&fs, file(&fs, &name));
        let (other, (ended, end)) = (Arc::clone(&fs), channel());
        let waiter = std::thread::spawn(move || {
            wait(&other);
            ended.send(()).unwrap();
        });
        end.recv_timeout(Duration::from_secs(60)).expect("the log in flight is published by who needs the tree log");
        waiter.join().unwrap();
        result.recv().unwrap().unwrap();
        assert!(is_durable(&device, &name));
        fs.durability().lead_fsync(leader.unwrap());
        fs.directories().unlink(fs.root(), b"other").ok();
    }
}

#[test]
fn a_leader_that_never_comes_is_replaced_by_who_writes_next() {
    let (device, fs) = mounted();
    let (leader, result) = begin(&fs, file(&fs, "first"));
    drop(leader);
    assert_eq!(result.try_recv().unwrap_err(), TryRecvError::Empty);
    assert!(!is_durable(&device, "first"));
    fs.durability().fsync(file(&fs, "second")).unwrap();
    result.recv().unwrap().unwrap();
    let stats = fs.stats();
    assert_eq!((stats.log_writes, stats.commits), (2, 0), "{stats:?}");
    assert!(is_durable(&device, "first") && is_durable(&device, "second"));
}

#[test]
fn a_log_in_flight_at_the_end_of_a_mount_is_published() {
    let (device, fs) = mounted();
    let (leader, result) = begin(&fs, file(&fs, "file"));
    drop(leader);
    fs.close().unwrap();
    result.recv().unwrap().unwrap();
    assert!(is_durable(&device, "file"));
}
