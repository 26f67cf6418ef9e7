//! Programs on two mirrored devices do not notice that one of them fails, at whichever request that
//! begins, including mounts and unmounts between them: acknowledged data is there, a scrub mends
//! what the device missed, and the volume remembers the failure (invariant 34).

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::{FaultyDevice, Lasting, Operation, OverlayDevice};
use ubtrfs::{Filesystem, InodeId, NewInode, Options, RenameFlags, ScrubOptions, WriteAt};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_format::{DeviceId, SUPERBLOCK_COPIES, TreeId};
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_volume::{Device, DeviceErrors, OpenOptions, Volume};

use crate::common::pattern;
use crate::common::script::{Tree, tree, walk};
use crate::common::volumes::{assert_clean, root, volume};

const EIO: i32 = 5;

/// Prints the story in which a test fails.
struct Story(String);

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in this story: {}", self.0);
        }
    }
}

/// The devices, after the program's earlier work.
static BEGIN: LazyLock<Vec<OverlayDevice>> = LazyLock::new(|| {
    let devices: Vec<Arc<OverlayDevice>> =
        volume(2, Profile::Raid1, Profile::Raid1).into_iter().map(Arc::new).collect();
    let fs = open(devices.iter().map(|device| device.clone() as _).collect(), false).unwrap();
    for number in 0..40 {
        write(&fs, root(), &format!("old {number}"), number, 20_000).unwrap();
    }
    fs.subvolumes().snapshot(TreeId::FS, root(), b"old snapshot", false).unwrap();
    fs.close().unwrap();
    drop(fs);
    devices.iter().map(|device| device.fork()).collect()
});

fn open_volume(devices: Vec<Arc<dyn Device>>, degraded: bool) -> ubtrfs::Result<Arc<Volume>> {
    let open = if degraded { Volume::open_degraded } else { Volume::open };
    Ok(Arc::new(open(devices, OpenOptions::default())?))
}

fn open(devices: Vec<Arc<dyn Device>>, degraded: bool) -> ubtrfs::Result<Arc<Filesystem>> {
    mount(open_volume(devices, degraded)?)
}

fn mount(volume: Arc<Volume>) -> ubtrfs::Result<Arc<Filesystem>> {
    // With so little memory, nodes are read again.
    let options = Options {
        background_commits: false,
        subvolume_id: Some(TreeId::FS.0),
        memory: 128 << 10,
        ..Options::default()
    };
    Filesystem::open(volume, options)
}

fn write(fs: &Filesystem, dir: InodeId, name: &str, seed: u64, len: usize) -> ubtrfs::Result<InodeId> {
    let file = fs.directories().create(dir, name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() })?;
    fs.files().write(file, WriteAt::Offset(0), &pattern(seed, len), false)?;
    Ok(file)
}

/// Does what a program does before the volume is mounted again.
fn first_part(fs: &Filesystem) -> ubtrfs::Result<()> {
    let dir = fs.directories().create(root(), b"dir", &NewInode { mode: 0o040_755, ..NewInode::default() })?;
    let in_place =
        fs.directories().create(root(), b"in place", &NewInode { mode: 0o100_644, ..NewInode::default() })?;
    fs.inodes().set_flags(in_place, InodeFlags::NODATACOW)?;
    fs.files().write(in_place, WriteAt::Offset(0), &pattern(1, 64 << 10), false)?;
    fs.durability().fsync(in_place)?;
    for (number, len) in [(1, 700), (2, 30_000), (3, 400_000)] {
        let file = write(fs, root(), &format!("file {number}"), number, len)?;
        fs.durability().fsync(file)?;
        fs.directories().rename(root(), format!("file {number}").as_bytes(), dir, b"file", RenameFlags::default())?;
        fs.files().write(file, WriteAt::Offset(5000), &pattern(10 + number, 6000), false)?;
        fs.durability().fsync(file)?;
        fs.files().write(in_place, WriteAt::Offset(number * 8192), &pattern(20 + number, 8192), false)?;
        fs.durability().fsync(in_place)?;
    }
    fs.subvolumes().snapshot(TreeId::FS, root(), b"snapshot", false)?;
    let old = fs.directories().lookup(root(), b"old 3")?;
    fs.files().write(old, WriteAt::Offset(4096), &pattern(30, 4096), false)?;
    fs.directories().unlink(root(), b"old 4")?;
    fs.durability().sync()
}

/// Does what the program does after that.
fn second_part(fs: &Filesystem) -> ubtrfs::Result<()> {
    let snapshot = fs.directories().lookup(root(), b"snapshot")?;
    let file = write(fs, snapshot, "in the snapshot", 40, 100_000)?;
    fs.durability().fsync(file)?;
    fs.subvolumes().delete_subvolume(root(), b"old snapshot")?;
    fs.directories().unlink(root(), b"in place")?;
    fs.durability().sync()?;
    write(fs, root(), "last", 50, 50_000)?;
    fs.durability().sync()
}

fn errors_of(fs: &Filesystem) -> BTreeMap<DeviceId, DeviceErrors> {
    fs.volume().devices().errors().into_iter().collect()
}

/// Returns the trees of all subvolumes.
fn shown(fs: &Filesystem) -> BTreeMap<TreeId, Tree> {
    fs.subvolumes().ids().iter().map(|id| (*id, tree(&walk(fs, *id)))).collect()
}

/// What the program has found.
struct Seen {
    /// The subvolumes after each of its parts.
    shown: [BTreeMap<TreeId, Tree>; 2],
    /// A mount needed the option `degraded`.
    was_missing: bool,
    /// A trim failed, which loses nothing.
    failed_to_trim: bool,
    /// The errors of each device, as each mount counted them.
    errors: [BTreeMap<DeviceId, DeviceErrors>; 2],
    /// The reads of each device while each mount opened the volume, which no counter counts.
    opening: Vec<Vec<Range<u64>>>,
}

/// Runs the program, which mounts the volume twice. `heal` makes the devices well again near the
/// end.
fn program(devices: &[Arc<FaultyDevice>], heal: &mut dyn FnMut()) -> Seen {
    let (mut was_missing, mut failed_to_trim) = (false, false);
    let parts: [fn(&Filesystem) -> ubtrfs::Result<()>; 2] = [first_part, second_part];
    let (mut errors, mut opening) = ([BTreeMap::new(), BTreeMap::new()], Vec::new());
    let shown = [0, 1].map(|turn: usize| {
        let all = || devices.iter().map(|device| device.clone() as _).collect::<Vec<Arc<dyn Device>>>();
        let reads = || devices.iter().map(|device| device.asked(Operation::Read));
        let before: Vec<u64> = reads().collect();
        // A device that does not answer at the mount is left out.
        let volume = open_volume(all(), false).or_else(|_| {
            was_missing = true;
            let answers = |device: &Arc<dyn Device>| device.read_at(SUPERBLOCK_COPIES[0], &mut [0; 4096]).is_ok();
            open_volume(all().into_iter().filter(answers).collect(), true)
        });
        opening.push(before.into_iter().zip(reads()).map(|(start, end)| start..end).collect());
        let fs = mount(volume.unwrap()).unwrap();
        parts[turn](&fs).unwrap();
        let shown = shown(&fs);
        failed_to_trim |= fs.discarder().trim(0, u64::MAX, 0).is_err();
        if turn == 1 {
            // The next commit makes the counters durable.
            heal();
        }
        fs.close().unwrap();
        assert_eq!(fs.abort_reason(), None);
        errors[turn] = errors_of(&fs);
        shown
    });
    Seen { shown, was_missing, failed_to_trim, errors, opening }
}

static EXPECTED: LazyLock<[BTreeMap<TreeId, Tree>; 2]> = LazyLock::new(|| program(&devices().1, &mut || {}).shown);

fn devices() -> (Vec<Arc<OverlayDevice>>, Vec<Arc<FaultyDevice>>) {
    let inner: Vec<_> = BEGIN.iter().map(|device| Arc::new(device.fork())).collect();
    let faulty = inner.iter().map(|device| Arc::new(FaultyDevice::new(device.clone()))).collect();
    (inner, faulty)
}

/// Lets a device fail at a request of this kind, once or from there on. Returns whether there was
/// one.
fn fails(at: usize, operation: Operation, after: u64, lasting: Lasting) -> bool {
    let story = Story(format!("device {}, {operation:?} {after}, {lasting:?}", at + 1));
    let (inner, faulty) = devices();
    faulty[at].fail(operation, after, EIO, lasting);
    let mut has_failed = false;
    let seen = program(&faulty, &mut || {
        has_failed = faulty[at].asked(operation) > after;
        faulty[at].heal();
    });
    assert!(seen.shown == *EXPECTED, "a reader sees it");
    assert_eq!(seen.failed_to_trim, has_failed && operation == Operation::Discard);
    assert!(!seen.was_missing || operation == Operation::Read, "only a superblock that can't be read");
    drop(faulty);
    // The device is back.
    let both: Vec<Arc<dyn Device>> = inner.iter().map(|device| device.clone() as _).collect();
    let fs = open(both.clone(), false).unwrap();
    assert_eq!(errors_of(&fs), seen.errors[1], "DEV_STATS");
    let devid = DeviceId(at as u64 + 1);
    let lagging = fs.volume().devices().lagging();
    assert!(lagging.is_empty() || lagging == [devid] && has_failed, "{lagging:?}");
    assert!(shown(&fs) == EXPECTED[1], "a reader sees it when the device is back");
    let scrub = || fs.scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap();
    let found = scrub();
    assert_eq!((found.uncorrectable(), found.super_errors * u64::from(lagging.is_empty())), (0, 0), "{found:?}");
    assert_eq!(scrub().errors(), 0);
    assert!(fs.volume().devices().lagging().is_empty(), "it is as good as the other one now");
    fs.close().unwrap();
    drop(fs);
    assert_clean(&both, &story.0);
    let counted = |at: usize| -> u64 {
        let devid = DeviceId(at as u64 + 1);
        seen.errors.iter().flat_map(|mount| mount[&devid].counts).sum()
    };
    assert_eq!(counted(1 - at), 0, "{:?}", seen.errors);
    // No counter counts discards, or requests to devices that are missing.
    let is_opening = operation == Operation::Read && seen.opening.iter().any(|mount| mount[at].contains(&after));
    let is_counted = operation != Operation::Discard && !is_opening;
    assert!(if has_failed { counted(at) > 0 || !is_counted } else { counted(at) == 0 }, "{:?}", seen.errors);
    // Each device has all of it.
    for alone in both {
        let fs = open(vec![alone], true).unwrap();
        assert!(shown(&fs) == EXPECTED[1], "it lacks something");
    }
    has_failed
}

fn every(operation: Operation, least: u64) {
    let step = if soaks() { 1 } else { 5 };
    for at in 0..2 {
        for (lasting, first) in [(Lasting::Once, 0), (Lasting::Forever, 2)] {
            let mut after = first % step;
            while fails(at, operation, after, lasting) {
                after += step;
            }
            eprintln!("device {}: {after} times {operation:?}, {lasting:?}", at + 1);
            assert!(after >= least, "{after}");
        }
    }
}

#[test]
fn no_failed_read_reaches_a_program() {
    every(Operation::Read, 10);
}

#[test]
fn no_failed_write_reaches_a_program() {
    every(Operation::Write, 50);
}

#[test]
fn no_failed_flush_reaches_a_program() {
    every(Operation::Flush, 5);
}

#[test]
fn no_failed_discard_reaches_a_program() {
    every(Operation::Discard, 5);
}
