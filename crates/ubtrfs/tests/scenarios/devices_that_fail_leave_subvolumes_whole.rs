//! A device that fails while a subvolume is made, changed or deleted leaves the old state or the
//! new one, whole (invariants 13 and 29): operations that succeeded have taken effect, and later
//! callers get the failure. While a deleted subvolume is dropped, a failure costs no space, and a
//! block of the subvolume that can't be read stops nothing else.

use std::collections::BTreeMap;
use std::sync::mpsc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ubtrfs::mkfs::{self, MkfsOptions, Profile};
use ubtrfs::testing::{Fate, FaultyDevice, Lasting, Operation, OverlayDevice, RecordingDevice};
use ubtrfs::{Errno, Filesystem, FreeingLimits, InodeId, NewInode, Options, Received, Step, WriteAt};
use ubtrfs_format::items::Timespec;
use ubtrfs_format::{DirIndex, Header, Physical, TreeId, Uuid};
use ubtrfs_volume::{Device, DeviceWrite, OpenOptions, SharedBuffer, Volume};

use crate::common::script::{Tree, tree, walk};

const EIO: i32 = 5;
const SIZE: u64 = 46 << 20;
const NODE: usize = 4096;
/// Files of the subvolume from which the others are made: more than fit a leaf.
const FILES: u64 = 60;

fn options() -> Options {
    Options {
        background_commits: false,
        // Mounts this subvolume, whatever the default is.
        subvolume_id: Some(TreeId::FS.0),
        // With so little memory, nodes are read again and again.
        memory: 128 << 10,
        freeing: FreeingLimits { per_transaction: 40, at_the_end: 40, ..FreeingLimits::default() },
        ..Options::default()
    }
}

fn open(device: Arc<dyn Device>, options: Options) -> ubtrfs::Result<Arc<Filesystem>> {
    let volume = Volume::open(vec![device], OpenOptions { read_only: options.read_only })?;
    Filesystem::open(Arc::new(volume), options)
}

fn file(fs: &Filesystem, dir: InodeId, name: &str, content: &[u8]) -> InodeId {
    let id =
        fs.directories().create(dir, name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
    fs.files().write(id, WriteAt::Offset(0), content, false).unwrap();
    fs.references().forget(id, 1);
    id
}

fn drop_all(fs: &Filesystem) {
    for _ in 0..1000 {
        if fs.subvolumes().deleted_subvolumes().is_empty() {
            return;
        }
        fs.durability().sync().unwrap();
    }
    panic!("{:?} are never dropped", fs.subvolumes().deleted_subvolumes());
}

fn assert_clean(device: &Arc<OverlayDevice>, when: &str) {
    let device: [Arc<dyn Device>; 1] = [device.clone()];
    let report = ubtrfs_check::check(&device, &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{when}: {:#?}", report.faults);
}

fn new_volume() -> Arc<RecordingDevice> {
    let device = Arc::new(RecordingDevice::new(vec![0; SIZE as usize].into()));
    let mut plan = MkfsOptions::new(SIZE);
    (plan.metadata_profile, plan.node_size) = (Some(Profile::Single), Some(NODE as u32));
    mkfs::make(&[&*device], &plan).unwrap();
    device
}

/// The volume at the beginning. `home` has files; `kept` is a read-only snapshot of it that still
/// has all of them; `other` was received; `sent` is a read-only snapshot of that, and was received,
/// too.
struct Begin {
    device: OverlayDevice,
    home: TreeId,
    kept: TreeId,
    other: TreeId,
    sent: TreeId,
}

static BEGIN: LazyLock<Begin> = LazyLock::new(|| {
    let device = new_volume();
    let fs = open(device.clone(), options()).unwrap();
    let home = fs.subvolumes().create_subvolume(fs.root(), b"home", 0o755, (0, 0)).unwrap();
    for number in 0..FILES {
        file(&fs, InodeId::root_of(home), &format!("file {number}"), &vec![number as u8; 5000]);
    }
    let kept = fs.subvolumes().snapshot(home, fs.root(), b"kept", true).unwrap();
    for number in 0..FILES / 4 {
        fs.directories().unlink(InodeId::root_of(home), format!("file {}", 3 * number).as_bytes()).unwrap();
    }
    let other = fs.subvolumes().create_subvolume(fs.root(), b"other", 0o755, (0, 0)).unwrap();
    file(&fs, InodeId::root_of(other), "file", &[1; 5000]);
    let sent = fs.subvolumes().snapshot(other, fs.root(), b"sent", false).unwrap();
    for id in [other, sent] {
        fs.subvolumes().set_received(id, &received(1)).unwrap();
    }
    fs.subvolumes().set_subvolume_read_only(sent, true).unwrap();
    fs.close().unwrap();
    drop(fs);
    Begin { device: device.current(), home, kept, other, sent }
});

fn received(number: u8) -> Received {
    Received { uuid: Uuid([number; 16]), transid: number.into(), sent: Timespec { sec: 1, nsec: 0 } }
}

/// What a volume shows of its subvolumes, without what differs from run to run. The checker
/// compares what the root tree has twice.
#[derive(Debug, PartialEq)]
struct Shown {
    subvolumes: BTreeMap<TreeId, Described>,
    default: TreeId,
    entries: BTreeMap<Vec<u8>, InodeId>,
    size: u64,
    content: BTreeMap<TreeId, Tree>,
}

#[derive(Debug, PartialEq)]
struct Described {
    entry: Option<(InodeId, Vec<u8>)>,
    read_only: bool,
    is_snapshot: bool,
    received: (Uuid, u64),
}

fn shown(fs: &Filesystem) -> Shown {
    let subvolumes = fs.subvolumes().ids();
    let listed = fs.directories().list(fs.root(), DirIndex(0), DirIndex(u64::MAX), usize::MAX).unwrap();
    for entry in &listed {
        assert_eq!(
            fs.directories().lookup(fs.root(), &entry.name).unwrap(),
            entry.inode,
            "{}",
            entry.name.escape_ascii()
        );
        fs.references().forget(entry.inode, 1);
    }
    let describe = |id: &TreeId| {
        let info = fs.subvolumes().subvolume_info(*id).unwrap();
        let (is_snapshot, received) = (info.parent_uuid != Uuid::NIL, (info.received_uuid, info.transids[2]));
        (*id, Described { entry: info.entry, read_only: info.read_only, is_snapshot, received })
    };
    Shown {
        default: fs.subvolumes().default_subvolume().unwrap(),
        entries: listed.into_iter().map(|entry| (entry.name, entry.inode)).collect(),
        size: fs.inodes().attributes(fs.root()).unwrap().size,
        content: subvolumes.iter().map(|id| (*id, tree(&walk(fs, *id)))).collect(),
        subvolumes: subvolumes.iter().map(describe).collect(),
    }
}

/// An operation on a volume that was just opened: one transaction.
type Act = fn(&Filesystem) -> ubtrfs::Result<()>;

/// Makes a snapshot of changes in the same transaction, and of a file without a name.
fn snapshot_of_changes(fs: &Filesystem) -> ubtrfs::Result<()> {
    let home = InodeId::root_of(BEGIN.home);
    for name in [&b"new"[..], b"gone"] {
        let id = match fs.directories().lookup(home, name) {
            Err(error) if error.errno() == Errno::NOENT => {
                fs.directories().create(home, name, &NewInode { mode: 0o100_644, ..NewInode::default() })?
            }
            found => found?,
        };
        fs.files().write(id, WriteAt::Offset(0), &[7; 9000], false)?;
    }
    fs.directories().unlink(home, b"gone")?;
    fs.subvolumes().snapshot(BEGIN.home, fs.root(), b"made", false).map(drop)
}

fn delete(fs: &Filesystem) -> ubtrfs::Result<()> {
    match fs.subvolumes().delete_subvolume(fs.root(), b"other") {
        Err(error) if error.errno() != Errno::NOENT => Err(error),
        _ => fs.durability().sync(),
    }
}

const ACTS: [(&str, Act); 10] = [
    ("create", |fs| fs.subvolumes().create_subvolume(fs.root(), b"made", 0o755, (0, 0)).map(drop)),
    ("snapshot", |fs| fs.subvolumes().snapshot(BEGIN.home, fs.root(), b"made", false).map(drop)),
    ("read-only snapshot", |fs| fs.subvolumes().snapshot(BEGIN.home, fs.root(), b"made", true).map(drop)),
    ("snapshot of changes", snapshot_of_changes),
    ("delete", delete),
    ("reset", |fs| fs.subvolumes().reset_subvolume(fs.root(), b"home", BEGIN.kept).map(drop)),
    ("read-only", |fs| fs.subvolumes().set_subvolume_read_only(BEGIN.home, true)),
    ("writable", |fs| fs.subvolumes().set_subvolume_read_only(BEGIN.sent, false)),
    ("default", |fs| fs.subvolumes().set_default_subvolume(BEGIN.other)),
    ("received", |fs| fs.subvolumes().set_received(BEGIN.other, &received(2)).map(drop)),
];

/// Mounts a volume again, drops what is deleted, and unmounts. Returns what the volume shows.
fn shown_by(device: OverlayDevice, when: &str) -> Shown {
    let device = Arc::new(device);
    assert_clean(&device, when);
    let fs = open(device.clone(), options()).unwrap();
    let before = shown(&fs);
    drop_all(&fs);
    assert_eq!(shown(&fs), before, "{when}");
    fs.close().unwrap();
    assert_eq!(fs.abort_reason(), None, "{when}");
    drop(fs);
    assert_clean(&device, when);
    before
}

/// Asserts that after a failure of the device nothing changes any more, and that each operation
/// returns the failure.
fn says_so(fs: &Filesystem, when: &str) {
    assert!(fs.is_read_only() && fs.stats().errors > 0, "{when}");
    let made = b"later";
    let refused = [
        fs.subvolumes().create_subvolume(fs.root(), made, 0o755, (0, 0)).map(drop),
        fs.subvolumes().snapshot(BEGIN.kept, fs.root(), made, false).map(drop),
        fs.subvolumes().delete_subvolume(fs.root(), b"sent").map(drop),
        fs.subvolumes().reset_subvolume(fs.root(), b"home", BEGIN.sent).map(drop),
        fs.subvolumes().set_subvolume_read_only(BEGIN.kept, false),
        fs.subvolumes().set_default_subvolume(BEGIN.kept),
        fs.subvolumes().set_received(BEGIN.sent, &received(3)).map(drop),
        fs.directories().create(fs.root(), made, &NewInode { mode: 0o100_644, ..NewInode::default() }).map(drop),
    ];
    for (number, refused) in refused.into_iter().enumerate() {
        assert_eq!(refused.map_err(|error| error.errno()), Err(Errno::ROFS), "{when}: call {number}");
    }
    assert!(fs.durability().sync().is_err(), "{when}");
    // Committed data can still be read.
    assert_eq!(walk(fs, BEGIN.kept).len() as u64, FILES + 1, "{when}");
    assert!(fs.close().is_err(), "{when}");
}

/// Lets one request of the device fail, or all from there on. Returns whether there was such a
/// request, and whether the file system aborted.
fn fault_in(name: &str, act: Act, (kind, at, lasting): (Operation, u64, Lasting), states: &[Shown; 2]) -> (bool, bool) {
    let when = &format!("{name}: {kind:?} {at} fails, {lasting:?}");
    let recording = Arc::new(RecordingDevice::on(&BEGIN.device));
    let faulty = Arc::new(FaultyDevice::new(recording.clone()));
    let fs = open(faulty.clone(), options()).unwrap();
    let asked = faulty.asked(kind);
    faulty.fail(kind, at, EIO, lasting);
    let mut result = act(&fs);
    let is_met = faulty.asked(kind) > asked + at;
    faulty.heal();
    let [old, new] = states;
    let gave_up = fs.abort_reason().is_some();
    if let Err(error) = &result {
        assert!(is_met, "{when}: {error:?}");
        assert_eq!(error.errno(), Errno::IO, "{when}: {error:?}");
        if !gave_up {
            // The request failed before anything was changed, so the caller may try again.
            assert_eq!(kind, Operation::Read, "{when}: {error:?}");
            result = act(&fs);
            assert!(result.is_ok(), "{when}, and then {result:?}");
        }
    }
    for fate in [Fate::Lost, Fate::Whole] {
        let found = shown_by(recording.crash_state(recording.len(), &mut |_| fate.clone()), when);
        assert!(found == *new || (result.is_err() && found == *old), "{when}, {result:?}: {found:#?}");
    }
    if gave_up {
        says_so(&fs, when);
    } else {
        assert!(shown(&fs) == *new, "{when}");
        fs.close().unwrap();
    }
    (is_met, gave_up)
}

/// Fails the test if `act` takes too long, since a thread that hangs can't be joined.
fn in_time<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || done.send(act()).unwrap());
    match is_done.recv_timeout(Duration::from_secs(300)) {
        Ok(result) => result,
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("this hangs"),
        Err(mpsc::RecvTimeoutError::Disconnected) => std::panic::resume_unwind(thread.join().unwrap_err()),
    }
}

/// Runs each of the acts once for each request of this kind, and lets that request fail.
fn every(kind: Operation) {
    for (name, act) in ACTS {
        let old = shown_by(BEGIN.device.fork(), name);
        let device = Arc::new(RecordingDevice::on(&BEGIN.device));
        act(&open(device.clone(), options()).unwrap()).unwrap();
        let new = shown_by(device.current(), name);
        assert!(old != new, "{name} changes nothing");
        let faults = in_time(move || {
            let (states, mut faults) = ([old, new], Vec::new());
            for lasting in [Lasting::Once, Lasting::Forever] {
                for at in 0.. {
                    let (is_met, gave_up) = fault_in(name, act, (kind, at, lasting), &states);
                    if !is_met {
                        break;
                    }
                    faults.push(gave_up);
                }
            }
            faults
        });
        let gave_up = faults.iter().filter(|gave_up| **gave_up).count();
        eprintln!("{name}: {} faults of {kind:?}, of which {gave_up} ended the mount's writing", faults.len());
        assert!(kind == Operation::Read || gave_up == faults.len(), "{name}: nobody noticed");
        assert!(faults.len() >= 2, "{name}");
    }
}

#[test]
fn what_a_failed_write_interrupts_is_done_or_not() {
    every(Operation::Write);
}

#[test]
fn what_a_failed_flush_interrupts_is_done_or_not() {
    every(Operation::Flush);
}

#[test]
fn what_a_failed_read_interrupts_is_done_or_not() {
    every(Operation::Read);
}

/// Makes a volume with deleted subvolumes of which nothing is dropped yet: one that shares blocks
/// with others, and `large`, which has three levels.
fn with_deleted() -> (OverlayDevice, TreeId) {
    let device = Arc::new(RecordingDevice::on(&BEGIN.device));
    let fs = open(device.clone(), options()).unwrap();
    let large = fs.subvolumes().create_subvolume(fs.root(), b"large", 0o755, (0, 0)).unwrap();
    for number in 0..600 {
        file(&fs, InodeId::root_of(large), &format!("{number:0200}"), b"");
    }
    fs.subvolumes().snapshot(BEGIN.home, fs.root(), b"made", false).unwrap();
    file(&fs, InodeId::root_of(BEGIN.home), "after the snapshot", &[9; 9000]);
    fs.durability().sync().unwrap();
    fs.subvolumes().delete_subvolume(fs.root(), b"home").unwrap();
    fs.subvolumes().delete_subvolume(fs.root(), b"large").unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(fs.subvolumes().deleted_subvolumes(), [BEGIN.home, large]);
    (device.current(), large)
}

/// Drops as much as it can. Returns whether the file system aborted.
fn drop_what_can_be_read(fs: &Filesystem) -> bool {
    for _ in 0..200 {
        if fs.durability().sync().is_err() {
            assert!(fs.abort_reason().is_some());
            return true;
        }
        if fs.subvolumes().deleted_subvolumes().len() as u64 == fs.stats().subvolumes_undropped {
            return false;
        }
    }
    panic!("{:?} are never dropped", fs.subvolumes().deleted_subvolumes());
}

/// Mounts a volume again and drops the rest. Returns how many blocks are free then.
fn free_in_the_end(device: OverlayDevice, when: &str) -> u64 {
    let device = Arc::new(device);
    assert_clean(&device, when);
    let fs = open(device.clone(), options()).unwrap();
    drop_all(&fs);
    (0..3).for_each(|_| fs.durability().sync().unwrap());
    let free = fs.statfs().blocks_free;
    fs.close().unwrap();
    assert_eq!(fs.stats().errors, 0, "{when}");
    drop(fs);
    assert_clean(&device, when);
    free
}

/// A difference of free blocks that is allowed, since trees may have another shape.
const SLACK: u64 = 16;

#[test]
fn what_is_dropped_while_the_device_fails_gives_all_of_its_space_back() {
    let (base, _) = with_deleted();
    let wanted = free_in_the_end(base.fork(), "without faults");
    for kind in [Operation::Read, Operation::Write, Operation::Flush] {
        let base = base.fork();
        let (went_on, gave_up) = in_time(move || {
            let (mut went_on, mut gave_up) = (0, 0);
            for at in 0.. {
                let when = &format!("{kind:?} {at} fails");
                let recording = Arc::new(RecordingDevice::on(&base));
                let faulty = Arc::new(FaultyDevice::new(recording.clone()));
                let fs = open(faulty.clone(), options()).unwrap();
                let asked = faulty.asked(kind);
                faulty.fail(kind, at, EIO, Lasting::Once);
                let has_given_up = drop_what_can_be_read(&fs);
                if faulty.asked(kind) <= asked + at {
                    assert!(!has_given_up && fs.subvolumes().deleted_subvolumes().is_empty(), "{when}");
                    break;
                }
                if has_given_up {
                    gave_up += 1;
                } else {
                    // The failure came while a deleted tree was read, or during the search for
                    // orphans.
                    assert_eq!((kind, fs.stats().errors), (Operation::Read, 1), "{when}");
                    went_on += fs.stats().subvolumes_undropped;
                }
                let crashed = recording.crash_state(recording.len(), &mut |_| Fate::Lost);
                let free = free_in_the_end(crashed, when);
                assert!(free + SLACK >= wanted, "{when}: {free} of {wanted} blocks are free in the end");
            }
            (went_on, gave_up)
        });
        eprintln!("{kind:?}: {went_on} faults in a deleted subvolume, {gave_up} ended the mount's writing");
        assert_eq!(went_on > 50, kind == Operation::Read);
        assert!(kind == Operation::Read || gave_up > 10);
    }
}

/// Returns the addresses and levels of all blocks that were made for a tree, whether they are still
/// in use or not.
fn blocks_of(device: &OverlayDevice, tree: TreeId) -> Vec<(Physical, u8)> {
    let bytes = device.to_bytes();
    let blocks = bytes.chunks_exact(NODE).enumerate();
    let of_tree = blocks.filter_map(|(number, block)| {
        let header = Header::parse(block).ok()?;
        (header.owner == tree && header.nritems > 0).then_some((Physical((number * NODE) as u64), header.level))
    });
    of_tree.collect()
}

fn write(device: &dyn Device, at: Physical, bytes: &[u8]) {
    device.submit(vec![DeviceWrite { at, data: SharedBuffer::from(bytes.to_vec()) }]).wait().unwrap();
}

#[test]
fn a_block_of_a_deleted_subvolume_that_can_not_be_read_ends_no_commits() {
    let (base, large) = with_deleted();
    let wanted = free_in_the_end(base.fork(), "without damage");
    // The number of earlier commits that have dropped parts of it.
    for begun in [0, 3] {
        let device = Arc::new(RecordingDevice::on(&base));
        let fs = open(device.clone(), options()).unwrap();
        (0..begun).for_each(|_| fs.durability().sync().unwrap());
        assert_eq!(fs.subvolumes().deleted_subvolumes().last(), Some(&large));
        drop(fs);
        let base = device.current();
        let (inner, leaves): (Vec<_>, Vec<_>) = blocks_of(&base, large).into_iter().partition(|(_, level)| *level > 0);
        let mut met = [0; 3];
        for (at, level) in inner.into_iter().chain(leaves.into_iter().step_by(11)) {
            let when = &format!("after {begun} commits: the block at {at} of level {level}");
            let device = Arc::new(base.fork());
            let mut block = vec![0; NODE];
            device.read_at(at, &mut block).unwrap();
            write(&*device, at, &[0x55; NODE]);
            let fs = open(device.clone(), options()).unwrap();
            assert!(!drop_what_can_be_read(&fs), "{when}: {:?}", fs.abort_reason());
            let undropped = fs.stats().subvolumes_undropped;
            met[usize::from(level)] += undropped;
            // The other subvolumes are dropped, and all other operations go on.
            assert_eq!(fs.subvolumes().deleted_subvolumes(), [large][..undropped as usize], "{when}");
            for number in 0..3 {
                file(&fs, fs.root(), &format!("beside {number}"), &[1; 5000]);
                fs.durability().sync().unwrap();
            }
            fs.subvolumes().snapshot(BEGIN.kept, fs.root(), b"beside", false).unwrap();
            let stats = fs.stats();
            assert_eq!((stats.errors, stats.last_errors.len() as u64), (undropped, undropped), "{when}");
            if let Some(error) = stats.last_errors.last() {
                assert_eq!((error.count, &error.steps[..]), (1, &[Step::DropSubvolume(large)][..]), "{when}");
            }
            for name in ["beside 0", "beside 1", "beside 2"] {
                fs.directories().unlink(fs.root(), name.as_bytes()).unwrap();
            }
            fs.subvolumes().delete_subvolume(fs.root(), b"beside").unwrap();
            fs.close().unwrap();
            drop(fs);
            if undropped > 0 {
                write(&*device, at, &block);
            }
            let free = free_in_the_end(device.fork(), when);
            assert!(free + SLACK >= wanted, "{when}: {free} of {wanted} blocks are free in the end");
        }
        eprintln!("after {begun} commits: {met:?} damaged blocks of each level were met");
        assert!(met.iter().all(|met| *met > 0), "{met:?}");
    }
}
