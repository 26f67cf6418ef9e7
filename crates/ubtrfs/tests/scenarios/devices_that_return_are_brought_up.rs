//! A device that fails for a moment is brought up to the others while the volume is used, and data
//! that no device has any more does not keep it behind (invariant 34).

use std::sync::Arc;
use std::time::{Duration, Instant};

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::{Faults, FaultyDevice, Lasting, Operation, OverlayDevice, ResilverFault};
use ubtrfs::{Errno, Error, Filesystem, Options};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_format::{CHECKSUM_FIELD, DeviceId, Generation, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock};
use ubtrfs_volume::{Buffer, Device, DeviceWrite, OpenOptions, Volume};

use crate::common::pattern;
use crate::common::volumes::{alone, assert_clean, assert_holds, open, root, volume, write};

const EIO: i32 = 5;
/// The time in which a thread in the background does its work, on the slowest machine.
const MAX: Duration = Duration::from_secs(120);

fn pair() -> [Arc<OverlayDevice>; 2] {
    let mut devices = volume(2, Profile::Raid1, Profile::Raid1).into_iter().map(Arc::new);
    [devices.next().unwrap(), devices.next().unwrap()]
}

fn shared<T: Device + 'static>(devices: &[Arc<T>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as _).collect()
}

fn open_with(devices: Vec<Arc<dyn Device>>, options: Options) -> Arc<Filesystem> {
    let volume = Volume::open(devices, OpenOptions::default()).unwrap();
    Filesystem::open(Arc::new(volume), options).unwrap()
}

/// Options as users have them.
fn usual() -> Options {
    Options { commit_interval: Duration::from_millis(100), ..Options::default() }
}

fn mount(devices: Vec<Arc<dyn Device>>) -> Arc<Filesystem> {
    open_with(devices, usual())
}

fn with_fault(fault: ResilverFault, options: Options) -> Options {
    Options { faults: Faults { resilver: Some(fault), ..Faults::default() }, ..options }
}

fn write_and_fsync(fs: &Filesystem, number: u64) {
    let file = write(fs, &format!("file {number}"), number, 20_000).unwrap();
    fs.durability().fsync(file).unwrap();
}

fn wait_until_current(fs: &Filesystem) {
    let begun = Instant::now();
    while !fs.volume().devices().lagging().is_empty() {
        assert!(begun.elapsed() < MAX, "{:?} still lag", fs.volume().devices().lagging());
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// First one device fails, then the other one. Neither is given up for good.
#[test]
fn after_glitches_of_both_each_device_has_everything() {
    let inner = pair();
    let faulty = inner.each_ref().map(|device| Arc::new(FaultyDevice::new(device.clone())));
    let fs = mount(shared(&faulty));
    (0..10).for_each(|number| write_and_fsync(&fs, number));
    let mut number = 10;
    for (device, kind) in [(1, Operation::Write), (0, Operation::Write), (1, Operation::Flush), (0, Operation::Flush)] {
        faulty[device].fail(kind, 0, EIO, Lasting::Forever);
        (number..number + 5).for_each(|number| write_and_fsync(&fs, number));
        assert_eq!(fs.volume().devices().lagging(), [DeviceId(device as u64 + 1)]);
        faulty[device].heal();
        (number + 5..number + 30).for_each(|number| write_and_fsync(&fs, number));
        number += 30;
        wait_until_current(&fs);
    }
    // The last superblock that each of them got says that it is current.
    fs.durability().sync().unwrap();
    let cut = inner.each_ref().map(|device| Arc::new(device.fork()));
    fs.close().unwrap();
    for device in &cut {
        let fs = alone(device);
        (0..number).for_each(|number| assert_holds(&fs, &format!("file {number}"), number, 20_000));
    }
    assert_clean(&shared(&inner), "in the end");
}

/// The fault that this prevents, put back.
#[test]
fn a_device_that_is_never_brought_up_is_noticed_when_the_other_fails() {
    let faulty = pair().map(|device| Arc::new(FaultyDevice::new(device)));
    let fs = open_with(shared(&faulty), with_fault(ResilverFault::LeaveBehind, usual()));
    faulty[1].fail(Operation::Write, 0, EIO, Lasting::Forever);
    (0..5).for_each(|number| write_and_fsync(&fs, number));
    faulty[1].heal();
    (5..10).for_each(|number| write_and_fsync(&fs, number));
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    faulty[0].fail(Operation::Write, 0, EIO, Lasting::Forever);
    let file = write(&fs, "file 10", 10, 20_000).unwrap();
    assert!(fs.durability().fsync(file).is_err(), "the fault is not found");
}

/// Overwrites all sectors that have the content of a file's first sector, on all devices.
fn spoil(fs: &Filesystem, devices: &[Arc<OverlayDevice>], content: &[u8]) {
    fs.durability().sync().unwrap();
    let sector = 4096;
    for device in devices {
        let bytes = device.to_bytes();
        let found: Vec<usize> = bytes
            .chunks_exact(sector)
            .enumerate()
            .filter(|(_, it)| *it == &content[..sector])
            .map(|(at, _)| at)
            .collect();
        for at in found {
            let at = ubtrfs_format::Physical((at * sector) as u64);
            device
                .submit(vec![DeviceWrite { at, data: Buffer::from(&vec![0x55; sector][..]).share() }])
                .wait()
                .unwrap();
        }
    }
}

/// Makes a pair of which the second device lags: only the first one has the file "missed", and
/// neither has the first sector of the file "lost".
fn pair_without_a_sector() -> [Arc<OverlayDevice>; 2] {
    let devices = pair();
    let fs = open(shared(&devices)).unwrap();
    write(&fs, "before", 1, 20_000).unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = alone(&devices[0]);
    write(&fs, "lost", 2, 20_000).unwrap();
    write(&fs, "missed", 3, 20_000).unwrap();
    spoil(&fs, &devices, &pattern(2, 20_000));
    fs.close().unwrap();
    devices
}

#[test]
fn data_that_no_device_has_keeps_no_device_behind() {
    let devices = pair_without_a_sector();
    let fs = open(shared(&devices)).unwrap();
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
    fs.close().unwrap();
    drop(fs);
    // The first device can be lost now.
    let fs = alone(&devices[1]);
    assert_holds(&fs, "before", 1, 20_000);
    assert_holds(&fs, "missed", 3, 20_000);
    let lost = fs.directories().lookup(root(), b"lost").unwrap();
    assert!(fs.files().read(lost, 0, 20_000).is_err(), "it is wrong everywhere");
    assert!(fs.files().read(lost, 4096, 4096).unwrap() == pattern(2, 20_000)[4096..8192]);
}

/// The fault that this prevents, put back.
#[test]
fn a_device_kept_behind_by_data_that_no_device_has_is_noticed() {
    let devices = pair_without_a_sector();
    let options = Options { background_commits: false, ..Options::default() };
    let fs = open_with(shared(&devices), with_fault(ResilverFault::MissWhatNobodyHas, options));
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [], "the fault is not found");
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
}

/// Without checksums, nothing would show that the other device's data is older.
#[test]
fn data_without_checksums_that_only_a_failing_sector_has_keeps_a_device_behind() {
    let devices = pair();
    let fs = open(shared(&devices)).unwrap();
    let file = write(&fs, "in place", 1, 0).unwrap();
    fs.inodes().set_flags(file, InodeFlags::NODATACOW).unwrap();
    fs.files().write(file, ubtrfs::WriteAt::Offset(0), &pattern(1, 20_000), false).unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = alone(&devices[0]);
    let file = fs.directories().lookup(root(), b"in place").unwrap();
    fs.files().write(file, ubtrfs::WriteAt::Offset(0), &pattern(2, 20_000), false).unwrap();
    fs.close().unwrap();
    drop(fs);
    let faulty = Arc::new(FaultyDevice::new(devices[0].clone()));
    let fs = open(vec![faulty.clone(), devices[1].clone()]).unwrap();
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    fs.volume().superblocks().level().unwrap();
    faulty.fail(Operation::Read, 0, EIO, Lasting::Forever);
    match fs.scrubber().catch_up(&mut |_| true) {
        Ok(caught_up) => assert_eq!(caught_up, []),
        Err(error) => assert!(!matches!(error, Error::Posix(Errno::CANCELED)), "{error:?}"),
    }
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    faulty.heal();
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
    fs.close().unwrap();
    drop(fs);
    assert_holds(&alone(&devices[1]), "in place", 2, 20_000);
}

/// A device that was away gets what it has missed in few requests, and nothing else is read.
#[test]
fn a_device_is_brought_up_by_few_requests_for_what_it_has_missed() {
    const MIB: usize = 1 << 20;
    for is_nodatacow in [false, true] {
        let devices = pair();
        let fs = open(shared(&devices)).unwrap();
        if is_nodatacow {
            fs.inodes().set_flags(root(), InodeFlags::NODATACOW).unwrap();
        }
        write(&fs, "both have it", 1, 24 * MIB).unwrap();
        fs.close().unwrap();
        drop(fs);
        let fs = alone(&devices[0]);
        write(&fs, "missed", 2, 8 * MIB).unwrap();
        fs.close().unwrap();
        drop(fs);
        let counted = devices.each_ref().map(|device| Arc::new(FaultyDevice::new(device.clone())));
        let fs = open(shared(&counted)).unwrap();
        let asked = |kind| counted.each_ref().map(|device| device.asked(kind));
        let (reads, writes) = (asked(Operation::Read), asked(Operation::Write));
        assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
        let (reads, writes) = (asked(Operation::Read)[1] - reads[1], asked(Operation::Write)[1] - writes[1]);
        assert!(writes < 100, "{writes} writes");
        assert!(reads < if is_nodatacow { 250 } else { 150 }, "{reads} reads");
        fs.close().unwrap();
        drop(fs);
        let fs = alone(&devices[1]);
        assert_holds(&fs, "both have it", 1, 24 * MIB);
        assert_holds(&fs, "missed", 2, 8 * MIB);
        assert_clean(&shared(&devices), "in the end");
    }
}

/// Opens the devices as a mount that begins to bring up a device, and stops after so many steps.
fn bring_up_a_little(devices: &[Arc<dyn Device>], steps: usize) -> Arc<Filesystem> {
    let fs = open(devices.to_vec()).unwrap();
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    let mut left = steps;
    let ended = fs.scrubber().catch_up(&mut |_| {
        left -= 1;
        left > 0
    });
    assert!(matches!(ended, Err(Error::Posix(Errno::CANCELED))), "{ended:?}");
    fs
}

const MISSED: [(u64, usize); 3] = [(2, 17 << 20), (3, 20_000), (4, 14 << 20)];

/// Makes two devices, of which the second one has missed files. A mount that ended as given has
/// brought it up in part.
fn pair_in_part(
    end: impl FnOnce(&[Arc<OverlayDevice>; 2], Arc<Filesystem>) -> [Arc<OverlayDevice>; 2],
) -> [Arc<OverlayDevice>; 2] {
    let devices = pair();
    let fs = open(shared(&devices)).unwrap();
    write(&fs, "both have it", 1, 1 << 20).unwrap();
    // Makes the chunks now, since one device alone gets no mirrored ones.
    write(&fs, "room", 1, 36 << 20).unwrap();
    fs.durability().sync().unwrap();
    fs.directories().unlink(root(), b"room").unwrap();
    fs.close().unwrap();
    drop(fs);
    let fs = alone(&devices[0]);
    for (number, len) in MISSED {
        write(&fs, &format!("missed {number}"), number, len).unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    let fs = bring_up_a_little(&shared(&devices), 2);
    end(&devices, fs)
}

/// Brings the second device up. Returns how many bytes of data were compared for that.
fn bring_up(devices: &[Arc<OverlayDevice>; 2]) -> u64 {
    let fs = open(shared(devices)).unwrap();
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    let mut bytes = 0;
    let caught_up = fs.scrubber().catch_up(&mut |progress| {
        bytes = progress.data.bytes;
        true
    });
    assert_eq!(caught_up.unwrap(), [DeviceId(2)]);
    assert_eq!(fs.volume().superblocks().current().resilvered, None);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&shared(devices), "in the end");
    let fs = alone(&devices[1]);
    assert_holds(&fs, "both have it", 1, 1 << 20);
    for (number, len) in MISSED {
        assert_holds(&fs, &format!("missed {number}"), number, len);
    }
    bytes
}

fn close(devices: &[Arc<OverlayDevice>; 2], fs: Arc<Filesystem>) -> [Arc<OverlayDevice>; 2] {
    fs.close().unwrap();
    drop(fs);
    devices.clone()
}

fn crash(devices: &[Arc<OverlayDevice>; 2], fs: Arc<Filesystem>) -> [Arc<OverlayDevice>; 2] {
    drop(fs);
    devices.each_ref().map(|device| Arc::new(device.fork()))
}

/// If a mount ends before the device has everything, the next one goes on there.
#[test]
fn a_device_is_brought_up_from_where_the_mount_before_had_come_to() {
    let all: u64 = MISSED.iter().map(|(_, len)| *len as u64).sum();
    for end in [close, crash] {
        let bytes = bring_up(&pair_in_part(end));
        assert!(bytes > 0 && bytes <= all - (16 << 20), "{bytes} of {all}");
    }
}

/// Whatever happens between two mounts that bring up a device, data that it misses in between is
/// not mistaken for data that it has already got (invariant 45).
#[test]
fn writes_that_a_device_misses_while_it_is_brought_up_are_brought_up_too() {
    let all: u64 = MISSED.iter().map(|(_, len)| *len as u64).sum();
    let later = |fs: &Filesystem| write(fs, "later", 9, 1 << 20).unwrap();
    let has_it = |devices: &[Arc<OverlayDevice>; 2], what| {
        let bytes = bring_up(devices);
        assert!(bytes >= all, "{what}: {bytes} of {all}");
        let fs = alone(&devices[1]);
        assert_holds(&fs, "later", 9, 1 << 20);
    };
    let without_it = pair_in_part(close);
    let fs = alone(&without_it[0]);
    later(&fs);
    fs.close().unwrap();
    drop(fs);
    has_it(&without_it, "it was away");

    let logged = pair_in_part(|devices, fs| {
        let file = later(&fs);
        fs.durability().fsync(file).unwrap();
        crash(devices, fs)
    });
    has_it(&logged, "a log follows");

    for kind in [Operation::Write, Operation::Flush] {
        let failed = pair_in_part(|devices, fs| {
            fs.close().unwrap();
            drop(fs);
            let faulty = devices.each_ref().map(|device| Arc::new(FaultyDevice::new(device.clone())));
            let fs = bring_up_a_little(&shared(&faulty), 1);
            faulty[1].fail(kind, 0, EIO, Lasting::Forever);
            later(&fs);
            fs.durability().sync().unwrap();
            faulty[1].heal();
            // Its error counters are as before then.
            fs.volume().devices().reset_errors(DeviceId(2)).unwrap();
            fs.durability().sync().unwrap();
            fs.close().unwrap();
            devices.clone()
        });
        has_it(&failed, "it has failed");
    }
}

/// Returns a superblock with the notes of ubtrfs from another one, and the right checksum.
fn with_notes_of(superblock: &Superblock, bytes: &[u8]) -> Vec<u8> {
    const NOTES: std::ops::Range<usize> = 3544..4096;
    let mut changed = superblock.to_bytes().unwrap().to_vec();
    changed[NOTES].copy_from_slice(&bytes[NOTES]);
    let sum = superblock.checksum.compute(&changed[CHECKSUM_FIELD..]);
    changed[..CHECKSUM_FIELD].copy_from_slice(&sum.0[..CHECKSUM_FIELD]);
    changed
}

/// A kernel that writes a volume keeps the notes of ubtrfs in the superblock, and makes none. Its
/// commit has another generation, or the same one after it went back to an older root.
#[test]
fn notes_in_a_superblock_that_a_kernel_wrote_do_not_count() {
    let all: u64 = MISSED.iter().map(|(_, len)| *len as u64).sum();
    for is_same_number in [false, true] {
        let devices = pair_in_part(close);
        for at in SUPERBLOCK_COPIES.into_iter().filter(|at| at.0 + (SUPERBLOCK_SIZE as u64) < devices[0].size()) {
            let mut bytes = Buffer::for_reading(SUPERBLOCK_SIZE);
            devices[0].read_at(at, &mut bytes).unwrap();
            let mut superblock = Superblock::parse(&bytes, at).unwrap();
            assert!(superblock.resilvered.is_some());
            let changed = if is_same_number {
                superblock.label[0] = b'x';
                with_notes_of(&superblock, &bytes)
            } else {
                superblock.epochs.set_of_ubtrfs(Generation(superblock.generation.0 - 1));
                superblock.to_bytes().unwrap().to_vec()
            };
            let data = Buffer::from(&changed[..]).share();
            devices[0].submit(vec![DeviceWrite { at, data }]).wait().unwrap();
        }
        let bytes = bring_up(&devices);
        assert!(bytes >= all, "{bytes} of {all}");
    }
}

/// Counters of errors are for users, who may reset them at any time, so they can't say whether a
/// device lags.
#[test]
fn a_device_whose_counters_were_reset_is_not_current_before_it_has_everything() {
    let inner = pair();
    let faulty = inner.each_ref().map(|device| Arc::new(FaultyDevice::new(device.clone())));
    let fs = open(shared(&faulty)).unwrap();
    let miss = |number| {
        faulty[1].fail(Operation::Write, 0, EIO, Lasting::Once);
        write(&fs, &format!("missed {number}"), number, 1 << 20).unwrap();
        fs.durability().sync().unwrap();
    };
    miss(1);
    let volume = fs.volume();
    let errors = |devid| volume.devices().errors().into_iter().find(|(it, _)| *it == devid).unwrap().1;
    let (before, mut is_first) = (errors(DeviceId(2)), true);
    let _ = fs.scrubber().catch_up(&mut |_| {
        if std::mem::take(&mut is_first) {
            volume.devices().reset_errors(DeviceId(2)).unwrap();
            miss(2);
            while errors(DeviceId(2)).counts[0] < before.counts[0] {
                miss(3);
            }
        }
        true
    });
    assert_eq!(volume.devices().lagging(), [DeviceId(2)]);
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
    fs.close().unwrap();
    drop(fs);
    let fs = alone(&inner[1]);
    (1..3).for_each(|number| assert_holds(&fs, &format!("missed {number}"), number, 1 << 20));
}

/// A device with older superblocks than the others is no excuse for a fault in theirs.
#[test]
fn a_damaged_superblock_is_a_fault_though_the_other_device_lags() {
    let devices = pair();
    let fs = alone(&devices[0]);
    write(&fs, "missed", 1, 20_000).unwrap();
    fs.close().unwrap();
    drop(fs);
    let at = SUPERBLOCK_COPIES[1];
    let zeros = Buffer::from(&[0; SUPERBLOCK_SIZE][..]).share();
    devices[0].submit(vec![DeviceWrite { at, data: zeros }]).wait().unwrap();
    let report = ubtrfs_check::check(&shared(&devices), &ubtrfs_check::Options::default()).unwrap();
    let found: Vec<String> = report.faults.iter().map(ToString::to_string).collect();
    assert!(found.iter().any(|fault| fault.contains("superblock copy 1 of device 1 is bad")), "{found:#?}");
}

/// A device that mount after mount leaves out has none of the epochs that these begin, and the
/// epoch that it has is not forgotten (invariant 44).
#[test]
fn however_many_mounts_leave_a_device_out_it_is_brought_up() {
    const MOUNTS: u64 = 15;
    let devices = pair();
    let mut number = 0;
    let mut write_without = |times: u64| {
        for _ in 0..times {
            let fs = alone(&devices[0]);
            number += 1;
            write(&fs, &format!("file {number}"), number, 50_000).unwrap();
            fs.close().unwrap();
        }
    };
    // The device has an epoch that is not the first one.
    for times in [1, 1, MOUNTS] {
        write_without(times);
        let fs = open(shared(&devices)).unwrap();
        assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
        assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
        fs.close().unwrap();
    }
    let fs = alone(&devices[1]);
    (1..=2 + MOUNTS).for_each(|number| assert_holds(&fs, &format!("file {number}"), number, 50_000));
}

/// A device that was left out has missed something, even if that is a single superblock, and no
/// crash explains it.
#[test]
fn a_device_that_was_left_out_is_not_current_where_another_one_is_missing() {
    let devices: Vec<_> = volume(3, Profile::Raid1, Profile::Raid1).into_iter().map(Arc::new).collect();
    let faulty = Arc::new(FaultyDevice::new(devices[2].clone()));
    let fs = open(vec![devices[0].clone(), devices[1].clone(), faulty.clone()]).unwrap();
    (0..8).for_each(|number| _ = write(&fs, &format!("file {number}"), number, 8 << 20).unwrap());
    fs.durability().sync().unwrap();
    faulty.fail(Operation::Write, 0, EIO, Lasting::Forever);
    write(&fs, "missed", 9, 20_000).unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(3)]);
    let cut: Vec<_> = devices.iter().map(|device| Arc::new(device.fork())).collect();
    drop(fs);
    for missing in 0..2 {
        let left: Vec<_> = (0..3).filter(|at| *at != missing).map(|at| cut[at].clone() as Arc<dyn Device>).collect();
        match Volume::open_degraded(left, OpenOptions::default()) {
            Err(ubtrfs_volume::Error::MissingData(lost)) => assert!(lost.contains(&DeviceId(3)), "{lost:?}"),
            Err(error) => panic!("{error:?}"),
            Ok(volume) => assert_eq!(volume.devices().lagging(), [DeviceId(3)]),
        }
    }
}

/// What a device has got since it was brought up counts, though earlier mounts had left it out
/// (invariant 44).
#[test]
fn halves_that_were_one_again_are_not_joined_when_they_are_written_apart() {
    let devices = pair();
    for number in 1..=3 {
        let fs = alone(&devices[0]);
        write(&fs, &format!("file {number}"), number, 50_000).unwrap();
        fs.close().unwrap();
    }
    let fs = open(shared(&devices)).unwrap();
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
    fs.close().unwrap();
    drop(fs);
    for (number, device) in (4..).zip(&devices) {
        let fs = alone(device);
        write(&fs, &format!("file {number}"), number, 50_000).unwrap();
        fs.close().unwrap();
    }
    let error = open(shared(&devices)).err().unwrap();
    assert!(error.to_string().contains("without the other"), "{error:?}");
}
