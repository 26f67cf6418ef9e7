//! A server's thread that must not wait begins to write the log of an fsync, and another ends that:
//! success is answered by the second alone, and nothing is built on what only the first has done
//! (invariant 22).

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

use ubtrfs::scheduling::{FsyncLeader, Scheduling};
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, Options, Reason, WriteAt};
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
    let id = fs.create(fs.root(), name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
    fs.write(id, WriteAt::Offset(0), &pattern(1, LEN), false).unwrap();
    id
}

fn begin(fs: &Filesystem, id: InodeId) -> (Option<FsyncLeader>, Receiver<ubtrfs::Result<()>>) {
    let (sender, result) = channel();
    (fs.join_fsync(id, false, Box::new(move |result| sender.send(result).unwrap())), result)
}

/// Whether the file is there, whole, if the power is cut now.
fn is_durable(device: &MemoryDevice, name: &str) -> bool {
    let crashed = Arc::new(MemoryDevice::from_bytes(device.to_bytes()));
    let fs = open(&crashed, true);
    fs.lookup(fs.root(), name.as_bytes()).is_ok_and(|id| fs.read(id, 0, 2 * LEN).unwrap() == pattern(1, LEN))
}

#[test]
fn the_second_part_answers() {
    let (device, fs) = mounted();
    let before = device.counters();
    let (leader, result) = begin(&fs, file(&fs, "file"));
    let begun = device.counters();
    assert!(begun.writes > before.writes, "data and nodes are submitted by the first part");
    assert_eq!(begun.flushes, before.flushes);
    assert_eq!(result.try_recv().unwrap_err(), TryRecvError::Empty);
    assert!(!is_durable(&device, "file"));
    fs.lead_fsync(leader.unwrap());
    result.recv().unwrap().unwrap();
    assert!(is_durable(&device, "file"));
    assert_eq!(device.counters().flushes, before.flushes + 2);
}

#[test]
fn others_gather_meanwhile_and_share_the_next_write() {
    let (device, fs) = mounted();
    let (first, first_result) = begin(&fs, file(&fs, "first"));
    let others: Vec<_> = ["second", "third"].map(|name| begin(&fs, file(&fs, name))).into();
    fs.lead_fsync(first.unwrap());
    first_result.recv().unwrap().unwrap();
    assert_eq!(fs.stats().log_writes, 1);
    for (leader, result) in others {
        if let Some(leader) = leader {
            fs.lead_fsync(leader);
        }
        result.recv().unwrap().unwrap();
    }
    assert_eq!(fs.stats().log_writes, 2);
    assert!(["first", "second", "third"].iter().all(|name| is_durable(&device, name)));
}

#[test]
fn a_leader_that_gives_up_has_failed_and_nothing_refers_to_its_log() {
    let (device, fs) = mounted();
    let (leader, result) = begin(&fs, file(&fs, "first"));
    drop(leader);
    assert_eq!(result.recv().unwrap().unwrap_err().errno(), Errno::IO);
    assert!(!is_durable(&device, "first"));
    let second = file(&fs, "second");
    fs.fsync(second).unwrap();
    let stats = fs.stats();
    assert_eq!((stats.log_writes, stats.commits), (0, 1), "a commit follows: {stats:?}");
    assert!(stats.log_fallbacks.contains(&(Reason::Abandoned, 1)), "{:?}", stats.log_fallbacks);
    assert!(is_durable(&device, "first") && is_durable(&device, "second"));
    fs.fsync(file(&fs, "third")).unwrap();
    assert_eq!(fs.stats().log_writes, 1, "the next transaction has a log again");
}
