//! The failure of a device that a volume can do without has no effect: no operation fails,
//! acknowledged data is on the others, and the volume does not trust the device when it comes back
//! without that (invariant 34).

use std::sync::{Arc, Barrier, LazyLock};

use ubtrfs::testing::{FaultyDevice, Lasting, Operation, OverlayDevice};
use ubtrfs::{Filesystem, InodeId, NewInode, Options, ScrubOptions, WriteAt};
use ubtrfs_format::items::{BlockGroupFlags, InodeFlags};
use ubtrfs_format::{DeviceId, Header, Ino, Physical, TreeId};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_volume::{Device, DeviceErrorKind, DeviceWrite, OpenOptions, Volume};

use crate::common::script::{Tree, tree, walk};

const EIO: i32 = 5;

/// The devices of a RAID1 volume that a kernel has made.
static RAID1: LazyLock<Vec<OverlayDevice>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    let paths = Fixture::load("prof-raid1").unpack(dir.path());
    paths.iter().map(|path| OverlayDevice::new(std::fs::read(path).unwrap().into())).collect()
});

fn options(read_only: bool) -> Options {
    Options { background_commits: false, read_only, subvolume_id: Some(TreeId::FS.0), ..Options::default() }
}

fn open(devices: Vec<Arc<dyn Device>>, read_only: bool) -> ubtrfs::Result<Arc<Filesystem>> {
    let how = OpenOptions { read_only };
    let volume =
        if devices.len() == RAID1.len() { Volume::open(devices, how)? } else { Volume::open_degraded(devices, how)? };
    Filesystem::open(Arc::new(volume), options(read_only))
}

fn shown(fs: &Filesystem) -> Tree {
    tree(&walk(fs, TreeId::FS))
}

/// Makes changes of all kinds, each durable before the next: by a log, by a commit, and in place.
fn change(fs: &Filesystem) -> ubtrfs::Result<()> {
    let root = InodeId::new(TreeId::FS, Ino::ROOT_DIR);
    let made = |name: &str| {
        fs.directories().create(root, name.as_bytes(), &NewInode { mode: 0o100_644, ..NewInode::default() })
    };
    let in_place = made("in place")?;
    fs.inodes().set_flags(in_place, InodeFlags::NODATACOW)?;
    fs.files().write(in_place, WriteAt::Offset(0), &vec![1; 64 << 10], false)?;
    fs.durability().sync()?;
    for round in 0..4_u8 {
        let file = made(&format!("file {round}"))?;
        fs.files().write(file, WriteAt::Offset(0), &vec![round; 9000 * usize::from(round)], false)?;
        fs.durability().fsync(file)?;
        fs.references().forget(file, 1);
        fs.files().write(in_place, WriteAt::Offset(u64::from(round) * 8192), &[round + 10; 8192], false)?;
        fs.durability().fsync(in_place)?;
        if round == 2 {
            fs.directories().unlink(root, b"file 1")?;
            fs.durability().sync()?;
        }
    }
    fs.references().forget(in_place, 1);
    Ok(())
}

fn assert_clean(devices: &[Arc<OverlayDevice>], what: &str) {
    let devices: Vec<Arc<dyn Device>> = devices.iter().map(|device| device.clone() as _).collect();
    let report = ubtrfs_check::check(&devices, &ubtrfs_check::Options::default()).unwrap();
    assert!(report.is_clean(), "{what}: {:#?}", report.faults);
}

/// What the volume holds after the changes.
static EXPECTED: LazyLock<Tree> = LazyLock::new(|| {
    let devices = RAID1.iter().map(|device| Arc::new(device.fork()) as _).collect();
    let fs = open(devices, false).unwrap();
    change(&fs).unwrap();
    shown(&fs)
});

/// Lets a device fail an operation, once or from there on, while the volume is changed. Returns
/// whether there was such a request.
fn fails(at: usize, operation: Operation, after: u64, lasting: Lasting) -> bool {
    let what = format!("device {}, {operation:?} {after}, {lasting:?}", at + 1);
    let inner: Vec<Arc<OverlayDevice>> = RAID1.iter().map(|device| Arc::new(device.fork())).collect();
    let faulty: Vec<Arc<FaultyDevice>> =
        inner.iter().map(|device| Arc::new(FaultyDevice::new(device.clone()))).collect();
    let fs = open(faulty.iter().map(|device| device.clone() as _).collect(), false).unwrap();
    let before = faulty[at].asked(operation);
    faulty[at].fail(operation, after, EIO, lasting);
    change(&fs).unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert!(shown(&fs) == *EXPECTED, "{what}: a reader sees it");
    let has_failed = faulty[at].asked(operation) > before + after;
    let lags = !fs.volume().devices().lagging().is_empty();
    assert!(!lags || has_failed && operation != Operation::Read, "{what}: it lags");
    // The server is killed, and each device loses what it did not flush.
    let after_kill = |read_only, chosen: &[usize]| {
        let devices = chosen.iter().map(|device| Arc::new(inner[*device].fork()) as _).collect();
        open(devices, read_only).unwrap_or_else(|error| panic!("{what}, devices {chosen:?}: {error:?}"))
    };
    if lags && after.is_multiple_of(5) {
        // A scrub brings the device up from the others. Then it is as good as they are, also alone.
        let mended: Vec<Arc<OverlayDevice>> = inner.iter().map(|device| Arc::new(device.fork())).collect();
        let devices = |chosen: &[usize]| chosen.iter().map(|device| mended[*device].clone() as _).collect();
        let again = open(devices(&[0, 1]), false).unwrap();
        assert_eq!(again.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(at as u64 + 1)], "{what}");
        assert!(again.volume().devices().lagging().is_empty());
        drop(again);
        for chosen in [&[0, 1][..], &[at]] {
            let again = open(devices(chosen), true).unwrap();
            assert!(again.volume().devices().lagging().is_empty(), "{what}: it is current");
            assert!(shown(&again) == *EXPECTED, "{what}, brought up, devices {chosen:?}");
        }
        assert_clean(&mended, &what);
        return has_failed;
    }
    for (read_only, chosen) in [(true, &[0, 1][..]), (false, &[0, 1]), (false, &[1 - at])] {
        let again = after_kill(read_only, chosen);
        if lags && chosen.len() == 2 {
            let stale = [DeviceId(at as u64 + 1)];
            assert_eq!(again.volume().devices().lagging(), stale, "{what}: invariant 34");
        }
        assert!(shown(&again) == *EXPECTED, "{what}, devices {chosen:?}, read-only {read_only}");
        if !read_only {
            let root = InodeId::new(TreeId::FS, Ino::ROOT_DIR);
            again.directories().unlink(root, b"file 0").unwrap();
            again.durability().sync().unwrap();
        }
    }
    let errors: u64 = fs.volume().devices().errors().iter().flat_map(|(_, errors)| errors.counts).sum();
    assert_eq!(errors > 0, has_failed, "{what}: {:?}", fs.volume().devices().errors());
    has_failed
}

#[test]
fn a_failing_device_of_a_pair_is_not_noticed_and_not_believed_later() {
    for operation in [Operation::Write, Operation::Flush, Operation::Read] {
        for device in 0..2 {
            for lasting in [Lasting::Once, Lasting::Forever] {
                let mut after = 0;
                while fails(device, operation, after, lasting) {
                    after += 1;
                }
                assert!(after > 3 || operation == Operation::Read, "{operation:?} {device}: {after}");
            }
        }
    }
}

#[test]
fn scrub_finds_and_mends_what_is_wrong_on_any_device() {
    let inner: Vec<Arc<OverlayDevice>> = RAID1.iter().map(|device| Arc::new(device.fork())).collect();
    let devices = || inner.iter().map(|device| device.clone() as _).collect();
    let fs = open(devices(), false).unwrap();
    change(&fs).unwrap();
    fs.durability().sync().unwrap();
    let scrub =
        |read_only| fs.scrubber().run(ScrubOptions { read_only, ..ScrubOptions::default() }, &mut |_| true).unwrap();
    let clean = scrub(false);
    assert!(clean.errors() == 0 && clean.data_extents > 0 && clean.tree_extents > 0, "{clean:?}");
    // Overwrites everything on the second device from 1 MiB on, except for the copy of the
    // superblock at 64 MiB.
    let garbage = |start: u64| {
        let at = Physical(start);
        inner[1].submit(vec![DeviceWrite { at, data: vec![0x5a; 1 << 20].into() }]).wait().unwrap();
    };
    let size = inner[1].size();
    (1..size >> 20).map(|mib| mib << 20).filter(|start| !(64 << 20..65 << 20).contains(start)).for_each(garbage);
    let found = scrub(true);
    assert!(found.errors() > 0 && found.data.corrected + found.trees.corrected == 0, "{found:?}");
    assert_eq!(found.uncorrectable(), found.errors());
    let mended = scrub(false);
    assert_eq!((mended.errors(), mended.uncorrectable()), (found.errors(), 0), "{mended:?}");
    let again = scrub(false);
    assert_eq!(again.errors(), 0, "{again:?}");
    assert!(shown(&fs) == *EXPECTED);
    let errors = fs.volume().devices().errors()[1].1;
    assert!(errors.of(DeviceErrorKind::Corruption) > 0);
    drop(fs);
    // The next commit writes the counters to the volume.
    let fs = open(devices(), false).unwrap();
    fs.directories().unlink(InodeId::new(TreeId::FS, Ino::ROOT_DIR), b"file 0").unwrap();
    fs.durability().sync().unwrap();
}

#[test]
fn scrubs_at_the_same_time_take_nothing_for_lost_that_one_of_them_mends() {
    let inner: Vec<Arc<OverlayDevice>> = RAID1.iter().map(|device| Arc::new(device.fork())).collect();
    let fs = open(inner.iter().map(|device| device.clone() as _).collect(), false).unwrap();
    change(&fs).unwrap();
    fs.durability().sync().unwrap();
    for mib in (1..inner[1].size() >> 20).filter(|mib| *mib != 64) {
        let garbage = DeviceWrite { at: Physical(mib << 20), data: vec![0x5a; 1 << 20].into() };
        inner[1].submit(vec![garbage]).wait().unwrap();
    }
    let begin = Barrier::new(2);
    let scrub = || {
        begin.wait();
        fs.scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap()
    };
    let found = std::thread::scope(|scope| [scope.spawn(scrub), scope.spawn(scrub)].map(|it| it.join().unwrap()));
    assert!(found.iter().map(ubtrfs::ScrubProgress::errors).sum::<u64>() > 0);
    assert_eq!(found.map(|found| found.uncorrectable()), [0, 0], "{found:?}");
    assert_eq!(fs.scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap().errors(), 0);
}

/// A device that fails again while it is brought up still lags (invariant 34).
#[test]
fn a_device_that_fails_while_it_is_brought_up_is_not_current() {
    let inner: Vec<Arc<OverlayDevice>> = RAID1.iter().map(|device| Arc::new(device.fork())).collect();
    let faulty = Arc::new(FaultyDevice::new(inner[1].clone()));
    let fs = open(vec![inner[0].clone(), faulty.clone()], false).unwrap();
    faulty.fail(Operation::Write, 0, EIO, Lasting::Once);
    change(&fs).unwrap();
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    let root = InodeId::new(TreeId::FS, Ino::ROOT_DIR);
    let mut has_failed = false;
    let caught_up = fs.scrubber().catch_up(&mut |_| {
        if !std::mem::replace(&mut has_failed, true) {
            faulty.fail(Operation::Write, 0, EIO, Lasting::Once);
            fs.directories().unlink(root, b"file 2").unwrap();
            fs.durability().sync().unwrap();
        }
        true
    });
    assert!(caught_up.unwrap().is_empty() && has_failed);
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
    let expected = shown(&fs);
    drop(fs);
    assert_clean(&inner, "brought up at last");
    let alone = open(vec![inner[1].clone()], true).unwrap();
    assert!(shown(&alone) == expected);
}

/// Changes a byte of tree blocks that nothing reads, and corrects their checksums. These are blocks
/// of the subvolume that are the same on both devices, and that the second one lacks according to
/// its superblock. Returns how many there are.
fn alter_blocks_of_an_earlier_attempt(inner: &[Arc<OverlayDevice>], volume: &Volume) -> usize {
    let size = volume.node_size() as usize;
    let mut altered = 0;
    for (_, chunk) in
        volume.chunk_map().all().into_iter().filter(|(_, chunk)| chunk.flags.contains(BlockGroupFlags::METADATA))
    {
        for at in (0..chunk.length).step_by(size) {
            let place =
                |devid: u64| chunk.stripes.iter().find(|stripe| stripe.devid == DeviceId(devid)).unwrap().offset;
            let mut blocks = [1, 2].map(|devid| {
                let mut block = vec![0; size];
                inner[devid as usize - 1].read_at(place(devid).plus(at), &mut block).unwrap();
                block
            });
            let Ok(Header { owner, generation, .. }) = Header::parse(&blocks[0]) else { continue };
            let is_of_a_later_commit = Some(generation) > volume.devices().has_all_of(DeviceId(2));
            if blocks[0] != blocks[1] || owner != TreeId::FS || !is_of_a_later_commit {
                continue;
            }
            let block = &mut blocks[1];
            // This offset is between the items and their data.
            block[size / 3] ^= 0x5a;
            let sum = volume.checksum().compute(&block[32..]).0;
            block[..volume.checksum().size()].copy_from_slice(&sum[..volume.checksum().size()]);
            inner[1].submit(vec![DeviceWrite { at: place(2).plus(at), data: block.clone().into() }]).wait().unwrap();
            altered += 1;
        }
    }
    altered
}

/// A lagging device may have a block at the address of one that it lacks, from an attempt at the
/// same commit that a crash ended. Such a block is valid in itself, but not the one that the others
/// have (invariant 34).
#[test]
fn a_device_that_lags_has_nothing_of_an_earlier_attempt_when_it_is_current() {
    let inner: Vec<Arc<OverlayDevice>> = RAID1.iter().map(|device| Arc::new(device.fork())).collect();
    let faulty = Arc::new(FaultyDevice::new(inner[1].clone()));
    let fs = open(vec![inner[0].clone(), faulty.clone()], false).unwrap();
    faulty.fail(Operation::Write, 0, EIO, Lasting::Once);
    change(&fs).unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    assert!(alter_blocks_of_an_earlier_attempt(&inner, fs.volume()) > 0);
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
    drop(fs);
    assert_clean(&inner, "brought up");
}
