//! Operations during a commit keep their promises when the commit fails: fsyncs that joined it
//! return an error (invariant 22), and committed data stays as it was (invariant 2). The next
//! transaction is closed when this one has ended (invariant 6).

use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use ubtrfs::scheduling::FsyncLeader;
use ubtrfs::testing::{CommitFault, CommitHook, CommitStep, Faults};
use ubtrfs::{Filesystem, InodeId, NewInode, Options, SetAttributes, WriteAt, XattrMode};
use ubtrfs_format::items::{BlockGroupFlags, FileExtent, FileExtentKind, InodeFlags};
use ubtrfs_format::{ItemType, Key, Logical};
use ubtrfs_volume::{Device, FaultyDevice, Lasting, OpenOptions, Operation, Volume};

use crate::common::memory::new_volume;
use crate::common::pattern;

const EIO: i32 = 5;
const LEN: usize = 256 << 10;
/// Bytes of a file, few enough to stay dirty until a commit has frozen them.
const SMALL: usize = 32 << 10;
/// Enough time for another thread to close a block group if nothing prevents that.
const TIME_TO_CLOSE_A_GROUP: Duration = Duration::from_millis(300);

fn device() -> Arc<FaultyDevice> {
    device_of(128 << 20)
}

fn device_of(bytes: u64) -> Arc<FaultyDevice> {
    Arc::new(FaultyDevice::new(Arc::new(new_volume(bytes))))
}

fn mount(device: &Arc<FaultyDevice>, options: Options) -> Arc<Filesystem> {
    let devices = vec![device.clone() as Arc<dyn Device>];
    let volume = Volume::open(devices, OpenOptions { read_only: options.read_only }).unwrap();
    let fs = Filesystem::open(Arc::new(volume), Options { background_commits: false, ..options }).unwrap();
    MOUNTED.with(|mounted| *mounted.borrow_mut() = Arc::downgrade(&fs));
    fs
}

fn with_faults(faults: Faults) -> Options {
    Options { faults, ..Options::default() }
}

thread_local! {
    /// The volume that this test mounted last. The test's own thread makes its commits.
    static MOUNTED: RefCell<Weak<Filesystem>> = RefCell::default();
}

fn mounted() -> Arc<Filesystem> {
    MOUNTED.with(|mounted| mounted.borrow().upgrade().unwrap())
}

fn file(fs: &Filesystem, name: &[u8]) -> InodeId {
    fs.directories().create(fs.root(), name, &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap()
}

/// Returns a hook that calls `act` once, at this step of the next commit.
fn once_at(step: CommitStep, act: impl FnOnce(&Filesystem) + Send + 'static) -> CommitHook {
    let act = Mutex::new(Some(act));
    CommitHook(Arc::new(move |reached| {
        if reached == step
            && let Some(act) = act.lock().take()
        {
            act(&mounted());
        }
    }))
}

/// Returns the content of a file in a read-only mount after a crash, or `None` if the file is not
/// there.
fn after_a_crash(device: &Arc<FaultyDevice>, name: &[u8]) -> Option<Vec<u8>> {
    device.heal();
    let fs = mount(device, Options { read_only: true, ..Options::default() });
    let id = fs.directories().lookup(fs.root(), name).ok()?;
    Some(fs.files().read(id, 0, 1 << 20).unwrap_or_else(|error| panic!("{}: {error:?}", String::from_utf8_lossy(name))))
}

/// Lets an fsync join the log that a commit writes with its superblock, and fails one of the
/// commit's requests. Returns whether the fsync succeeded though its data is lost.
fn fsync_beside_a_commit_that_fails(operation: Operation, successes: u64, fault: Option<CommitFault>) -> Option<bool> {
    let device = device();
    let (sender, receiver) = channel();
    let leader: Arc<Mutex<Option<FsyncLeader>>> = Arc::default();
    let hook = once_at(CommitStep::Merged, {
        let (device, leader) = (device.clone(), leader.clone());
        move |fs| {
            let late = file(fs, b"late");
            fs.files().write(late, WriteAt::Offset(0), &pattern(1, LEN), false).unwrap();
            device.fail(operation, successes, EIO, Lasting::Forever);
            *leader.lock() =
                fs.durability().join_fsync(late, false, Box::new(move |result| sender.send(result.is_ok()).unwrap()));
        }
    });
    let options = with_faults(Faults { commit: fault, hook: Some(hook), ..Faults::default() });
    let fs = mount(&device, options);
    file(&fs, b"early");
    let committed = fs.durability().sync();
    let waiting = leader.lock().take();
    if let Some(leader) = waiting {
        fs.durability().lead_fsync(leader);
    }
    let succeeded = receiver.recv().unwrap();
    assert_eq!(committed.is_err(), fs.abort_reason().is_some());
    let aborted = committed.is_err();
    drop(fs);
    let content = after_a_crash(&device, b"late");
    aborted.then_some(succeeded && content.is_none_or(|content| content != pattern(1, LEN)))
}

#[test]
fn an_fsync_that_joins_a_commit_succeeds_only_if_it_is_durable() {
    for operation in [Operation::Write, Operation::Flush] {
        let failed = (0..40).map_while(|at| fsync_beside_a_commit_that_fails(operation, at, None));
        let lies: Vec<bool> = failed.collect();
        assert!(!lies.is_empty(), "{operation:?}: no commit failed");
        assert!(lies.iter().all(|lie| !lie), "{operation:?}: {lies:?}");
    }
}

#[test]
fn fsyncs_that_are_answered_before_the_superblock_are_noticed() {
    let lie = |operation| fsync_beside_a_commit_that_fails(operation, 0, Some(CommitFault::AnswerEarly));
    assert_eq!((lie(Operation::Write), lie(Operation::Flush)), (Some(true), Some(true)));
}

/// A file is dirty when a commit begins. Before its data is written, the file is truncated to
/// nothing and set to nocow. Power is cut before the superblock. Returns whether the data of the
/// last commit is still there.
fn dirty_data_meets_new_flags(fault: Option<CommitFault>) -> bool {
    let device = device();
    let hooked: Arc<Mutex<Option<InodeId>>> = Arc::default();
    let at_the_second = once_after(1, {
        let (device, hooked) = (device.clone(), hooked.clone());
        move |fs| {
            let id = hooked.lock().unwrap();
            fs.inodes().set_attributes(id, &SetAttributes { size: Some(0), ..SetAttributes::default() }).unwrap();
            fs.inodes().set_flags(id, InodeFlags::NODATACOW).unwrap();
            device.fail(Operation::Flush, 0, EIO, Lasting::Forever);
        }
    });
    let options = with_faults(Faults { commit: fault, hook: Some(at_the_second), ..Faults::default() });
    let fs = mount(&device, options);
    let id = file(&fs, b"file");
    *hooked.lock() = Some(id);
    fs.files().write(id, WriteAt::Offset(0), &pattern(1, LEN), false).unwrap();
    fs.durability().sync().unwrap();
    fs.files().write(id, WriteAt::Offset(0), &pattern(2, SMALL), false).unwrap();
    assert!(fs.durability().sync().is_err());
    drop(fs);
    device.heal();
    let fs = mount(&device, Options { read_only: true, ..Options::default() });
    let found = fs.files().read(fs.directories().lookup(fs.root(), b"file").unwrap(), 0, 1 << 20);
    found.is_ok_and(|content| content == pattern(1, LEN))
}

/// Returns a hook that calls `act` once, when the commit after `commits` others has frozen its
/// transaction.
fn once_after(commits: usize, act: impl FnOnce(&Filesystem) + Send + 'static) -> CommitHook {
    let left = Mutex::new((commits, Some(act)));
    CommitHook(Arc::new(move |reached| {
        if reached != CommitStep::Frozen {
            return;
        }
        let act = {
            let mut left = left.lock();
            match left.0.checked_sub(1) {
                Some(fewer) => {
                    left.0 = fewer;
                    None
                }
                None => left.1.take(),
            }
        };
        if let Some(act) = act {
            act(&mounted());
        }
    }))
}

#[test]
fn data_of_a_commit_is_written_by_the_flags_that_the_file_had() {
    assert!(dirty_data_meets_new_flags(None));
    assert!(!dirty_data_meets_new_flags(Some(CommitFault::NewestFlags)));
}

/// Like the kernel, we move inline data to an extent before a file grows past it.
#[test]
fn a_file_that_grows_beside_a_commit_is_kept_in_metadata_or_in_extents_not_in_both() {
    type Grow = fn(&Filesystem, InodeId);
    let ways: [Grow; 2] = [
        |fs, id| {
            fs.files().write(id, WriteAt::Offset(8192), &pattern(2, 4096), false).unwrap();
        },
        |fs, id| {
            let size = SetAttributes { size: Some(8192), ..SetAttributes::default() };
            fs.inodes().set_attributes(id, &size).unwrap();
            fs.files().write(id, WriteAt::End, &pattern(2, 4096), false).unwrap();
        },
    ];
    for grow in ways {
        let device = device();
        let hooked: Arc<Mutex<Option<InodeId>>> = Arc::default();
        let hook = once_at(CommitStep::Frozen, {
            let hooked = hooked.clone();
            move |fs| grow(fs, hooked.lock().unwrap())
        });
        let fs = mount(&device, with_faults(Faults { hook: Some(hook), ..Faults::default() }));
        let id = file(&fs, b"small");
        fs.files().write(id, WriteAt::Offset(0), &pattern(1, 1000), false).unwrap();
        *hooked.lock() = Some(id);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            fs.durability().sync().unwrap();
            let key = |offset| Key::new(id.ino.0, ItemType::EXTENT_DATA, offset);
            let mut inline = Vec::new();
            fs.search_tree(id.subvolume, key(0), key(u64::MAX), &mut |item| {
                let extent = FileExtent::parse(&item.data).unwrap();
                inline.push(matches!(extent.kind, FileExtentKind::Inline(_)));
                true
            })
            .unwrap();
            kinds.push(inline);
        }
        assert_eq!(kinds, [vec![true], vec![false, false]]);
        let content = fs.files().read(id, 0, 1 << 20).unwrap();
        assert_eq!(content, [pattern(1, 1000), vec![0; 7192], pattern(2, 4096)].concat());
    }
}

fn metadata_groups(fs: &Filesystem) -> Vec<Logical> {
    let chunks = fs.volume().chunk_map().all().into_iter();
    chunks.filter(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::METADATA)).map(|(start, _)| start).collect()
}

/// Makes files with a lot of metadata until that needs another block group, but at most `most`.
/// Returns how many it has made.
fn fill_metadata(fs: &Filesystem, prefix: &str, most: u64) -> u64 {
    let groups = metadata_groups(fs);
    let file = |number| {
        let id = file(fs, format!("{prefix}{number}").as_bytes());
        fs.inodes().set_xattr(id, b"user.large", &pattern(number, 3000), XattrMode::Set).unwrap();
    };
    (0..most).take_while(|_| metadata_groups(fs) == groups).inspect(|number| file(*number)).count() as u64
}

/// A chunk that is made during a commit is not in that commit's trees, so its nodes can't be there
/// (invariant 8). The commit keeps the space that it may still need.
#[test]
fn a_commit_keeps_the_space_that_it_may_still_need() {
    const BATCH: u64 = 10;
    const SIZE: u64 = 512 << 20;
    let fill = |fs: &Filesystem, most: u64| {
        let batches = (0..most).take_while(|batch| {
            let made = fill_metadata(fs, &format!("early{batch}-"), BATCH);
            fs.durability().sync().unwrap();
            made == BATCH && metadata_groups(fs).len() == 1
        });
        batches.count() as u64
    };
    let batches_until_growth = fill(&mount(&device_of(SIZE), Options::default()), u64::MAX);
    let device = device_of(SIZE);
    drop({
        let fs = mount(&device, Options::default());
        fill(&fs, batches_until_growth);
        fs
    });
    let emptier = Arc::new(Mutex::new(None));
    let hook = once_at(CommitStep::ChunksTaken, {
        let emptier = emptier.clone();
        move |fs| {
            let known = metadata_groups(fs);
            fill_metadata(fs, "late", 1000);
            assert!(metadata_groups(fs).len() > known.len(), "the commit in progress can't use the new one");
            let fs = mounted();
            let empty =
                move || known.into_iter().try_for_each(|at| fs.relocator().empty_block_group(at, &|| true).map(drop));
            *emptier.lock() = Some(std::thread::spawn(empty));
            std::thread::sleep(TIME_TO_CLOSE_A_GROUP);
        }
    });
    let fs = mount(&device, with_faults(Faults { hook: Some(hook), ..Faults::default() }));
    fs.files().write(file(&fs, b"file"), WriteAt::End, &pattern(1, SMALL), false).unwrap();
    fs.durability().sync().unwrap();
    let emptier = emptier.lock().take().unwrap();
    emptier.join().unwrap().unwrap();
    fs.durability().sync().unwrap();
    drop(fs);
    assert_eq!(after_a_crash(&device, b"file"), Some(pattern(1, SMALL)));
}

/// Of invariant 56: an fsync that waits for a commit is notified when the commit panics.
#[test]
fn fsyncs_that_wait_for_a_commit_fail_when_it_panics() {
    let device = device();
    let (sender, receiver) = channel();
    let hook = once_at(CommitStep::Merged, move |fs| {
        let early = fs.directories().lookup(fs.root(), b"early").unwrap();
        fs.durability().start_fsync(early, false, Box::new(move |result| sender.send(result.is_ok()).unwrap()));
        panic!("this panic is part of the test");
    });
    let fs = mount(&device, with_faults(Faults { hook: Some(hook), ..Faults::default() }));
    let early = file(&fs, b"early");
    let committed = std::panic::catch_unwind(AssertUnwindSafe(|| fs.durability().sync()));
    assert!(committed.is_err(), "the commit does not reach the step");
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(false));
    assert!(fs.abort_reason().is_some());
    fs.durability().fsync(early).unwrap_err();
}
