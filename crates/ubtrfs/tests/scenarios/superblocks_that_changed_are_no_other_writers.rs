//! The place of a superblock has other content, though nobody else writes the volume: a superblock
//! whose write was reported as failed, an older one, or garbage. The volume goes on (of invariants
//! 12 and 34).

use std::sync::Arc;

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::{FaultyDevice, Lasting, Operation, OverlayDevice};
use ubtrfs::{Filesystem, ScrubOptions};
use ubtrfs_format::{DeviceId, Physical, SUPERBLOCK_COPIES, Superblock};
use ubtrfs_volume::{Buffer, Device, DeviceWrite, ReadAheadDevice};

use crate::common::volumes::{alone, assert_clean, assert_holds, open, volume, write};

const SECOND: DeviceId = DeviceId(2);
const EIO: i32 = 5;

fn pair() -> Vec<Arc<OverlayDevice>> {
    volume(2, Profile::Raid1, Profile::Raid1).into_iter().map(Arc::new).collect()
}

fn shared<T: Device + 'static>(devices: &[Arc<T>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as _).collect()
}

fn superblock_of(device: &OverlayDevice) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).unwrap();
    bytes
}

/// Changes bytes at the start of the primary superblock.
fn change_superblock(device: &OverlayDevice, at: usize, with: u8) {
    let mut bytes = superblock_of(device);
    bytes[at] ^= with;
    overwrite(device, SUPERBLOCK_COPIES[0], &bytes);
}

fn overwrite(device: &OverlayDevice, at: Physical, bytes: &[u8]) {
    device.submit(vec![DeviceWrite { at, data: Buffer::from(bytes).share() }]).wait().unwrap();
}

fn write_and_sync(fs: &Filesystem, number: u64) {
    write(fs, &format!("file {number}"), number, 50_000).unwrap();
    fs.durability().sync().unwrap();
}

fn scrub(fs: &Filesystem) {
    let found = fs.scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap();
    assert_eq!(found.uncorrectable(), 0, "{found:?}");
    assert!(fs.volume().devices().lagging().is_empty());
}

#[test]
fn a_damaged_superblock_costs_a_device_its_place_until_it_is_scrubbed() {
    let devices = pair();
    let fs = open(shared(&devices)).unwrap();
    write_and_sync(&fs, 1);
    change_superblock(&devices[1], 2000, 0x55);
    write_and_sync(&fs, 2);
    assert_eq!(fs.volume().devices().lagging(), [SECOND], "it is not believed any more");
    scrub(&fs);
    write_and_sync(&fs, 3);
    assert!(fs.volume().devices().lagging().is_empty());
    fs.close().unwrap();
    drop(fs);
    assert_clean(&shared(&devices), "mended");
    let fs = open(shared(&devices)).unwrap();
    (1..=3).for_each(|number| assert_holds(&fs, &format!("file {number}"), number, 50_000));
}

/// Both devices have confirmed the write of the superblock.
#[test]
fn a_superblock_that_one_device_has_lost_is_that_devices_failure() {
    for by_a_log in [false, true] {
        let devices = pair();
        let fs = open(shared(&devices)).unwrap();
        write_and_sync(&fs, 1);
        let before = superblock_of(&devices[1]);
        if by_a_log {
            let file = write(&fs, "file 2", 2, 50_000).unwrap();
            fs.durability().fsync(file).unwrap();
        } else {
            write_and_sync(&fs, 2);
        }
        overwrite(&devices[1], SUPERBLOCK_COPIES[0], &before);
        write_and_sync(&fs, 3);
        assert_eq!(fs.volume().devices().lagging(), [SECOND], "it is not believed any more");
        assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [SECOND]);
        write_and_sync(&fs, 4);
        fs.close().unwrap();
        drop(fs);
        assert_clean(&shared(&devices), "brought up");
        let fs = open(shared(&devices)).unwrap();
        (1..=4).for_each(|number| assert_holds(&fs, &format!("file {number}"), number, 50_000));
    }
}

/// Such a superblock may be that of another writer, whatever its generation is (invariant 12).
#[test]
fn a_superblock_that_we_never_wrote_is_another_writers() {
    for commits in 0..3 {
        let devices = pair();
        let fs = open(shared(&devices)).unwrap();
        (1..=4).for_each(|number| write_and_sync(&fs, number));
        let mut theirs = Superblock::parse(&superblock_of(&devices[1]), SUPERBLOCK_COPIES[0]).unwrap();
        theirs.generation.0 -= commits;
        theirs.chunk_root_generation = theirs.chunk_root_generation.min(theirs.generation);
        theirs.label[0] = b'x';
        let theirs = theirs.to_bytes().unwrap();
        overwrite(&devices[1], SUPERBLOCK_COPIES[0], &theirs[..]);
        write(&fs, "file 5", 5, 50_000).unwrap();
        fs.durability().sync().unwrap_err();
        assert!(fs.is_read_only() && superblock_of(&devices[1]) == theirs[..], "{commits} commits older");
        assert!(fs.volume().devices().lagging().is_empty());
    }
}

/// No other device says which superblock counts.
#[test]
fn superblocks_that_all_devices_have_lost_are_another_writers() {
    let devices = pair();
    let fs = open(shared(&devices)).unwrap();
    write_and_sync(&fs, 1);
    let before: Vec<Vec<u8>> = devices.iter().map(|device| superblock_of(device)).collect();
    write_and_sync(&fs, 2);
    devices.iter().zip(before).for_each(|(device, before)| overwrite(device, SUPERBLOCK_COPIES[0], &before));
    assert!(fs.durability().sync().is_ok(), "nothing has changed");
    write(&fs, "file 3", 3, 50_000).unwrap();
    fs.durability().sync().unwrap_err();
    assert!(fs.is_read_only());
}

#[test]
fn bytes_that_no_checksum_covers_do_not_matter() {
    let devices = pair();
    let fs = open(shared(&devices)).unwrap();
    write_and_sync(&fs, 1);
    change_superblock(&devices[1], 10, 0x55);
    write_and_sync(&fs, 2);
    assert!(fs.volume().devices().lagging().is_empty());
    fs.close().unwrap();
}

#[test]
fn a_superblock_whose_write_failed_may_be_there() {
    for lasting in [Lasting::Once, Lasting::Forever] {
        for after in 0.. {
            let what = format!("write {after} fails, {lasting:?}");
            let inner = pair();
            let faulty = [0, 1].map(|at: usize| Arc::new(FaultyDevice::new(inner[at].clone())));
            let fs = open(shared(&faulty)).unwrap();
            write_and_sync(&fs, 1);
            faulty[1].fail(Operation::Write, after, EIO, lasting);
            let before = faulty[1].asked(Operation::Write);
            write_and_sync(&fs, 2);
            let has_failed = faulty[1].asked(Operation::Write) > before + after;
            faulty[1].heal();
            scrub(&fs);
            write_and_sync(&fs, 3);
            fs.close().unwrap_or_else(|error| panic!("{what}: {error:?}"));
            drop(fs);
            assert_clean(&shared(&inner), &what);
            if !has_failed {
                assert!(after > 5, "{after}");
                break;
            }
        }
    }
}

/// Gives a device back the content of `old`.
fn go_back_to(device: &OverlayDevice, old: &OverlayDevice) {
    const PART: usize = 1 << 20;
    let (mut then, mut now) = (vec![0; PART], vec![0; PART]);
    for at in (0..device.size()).step_by(PART).map(Physical) {
        old.read_at(at, &mut then).unwrap();
        device.read_at(at, &mut now).unwrap();
        if then != now {
            overwrite(device, at, &then);
        }
    }
}

/// With its superblocks the device has lost all other writes, too. So it has what its old
/// superblock refers to, and not what we have written last (invariant 34).
#[test]
fn a_device_that_went_back_by_some_commits_is_brought_up_from_there() {
    // The checksums of each file are in leaves of their own.
    const LEN: usize = 24 << 20;
    let write_and_sync = |fs: &Filesystem, number| {
        write(fs, &format!("file {number}"), number, LEN).unwrap();
        fs.durability().sync().unwrap();
    };
    let devices = pair();
    let fs = open(shared(&devices)).unwrap();
    write_and_sync(&fs, 1);
    let old = devices[1].fork();
    (2..=5).for_each(|number| write_and_sync(&fs, number));
    go_back_to(&devices[1], &old);
    write_and_sync(&fs, 6);
    assert_eq!(fs.volume().devices().lagging(), [SECOND]);
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [SECOND]);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&shared(&devices), "brought up");
    let fs = alone(&devices[1]);
    (1..=6).for_each(|number| assert_holds(&fs, &format!("file {number}"), number, LEN));
}

/// A device that loses one superblock often loses the next, so for a while the superblocks of all
/// logs are read.
#[test]
fn a_device_that_has_lost_a_superblock_is_looked_at_more_often() {
    let devices = pair();
    let fs = open(shared(&devices)).unwrap();
    let write_and_fsync = |number: u64| {
        let file = write(&fs, &format!("file {number}"), number, 50_000).unwrap();
        fs.durability().fsync(file).unwrap();
    };
    write_and_sync(&fs, 1);
    for round in 1..4 {
        let before = superblock_of(&devices[1]);
        write_and_fsync(2 * round);
        overwrite(&devices[1], SUPERBLOCK_COPIES[0], &before);
        if round == 1 {
            write_and_sync(&fs, 3);
        } else {
            write_and_fsync(2 * round + 1);
        }
        assert_eq!(fs.volume().devices().lagging(), [SECOND], "round {round}");
        assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [SECOND]);
    }
    fs.close().unwrap();
    drop(fs);
    let fs = alone(&devices[1]);
    (1..=7).for_each(|number| assert_holds(&fs, &format!("file {number}"), number, 50_000));
}

/// Superblocks of logs are read once a second.
#[test]
fn however_many_superblocks_a_device_has_lost_the_others_go_on() {
    let devices = pair();
    let fs = open(shared(&devices)).unwrap();
    write_and_sync(&fs, 1);
    let old = superblock_of(&devices[1]);
    for number in 2..40 {
        let file = write(&fs, &format!("file {number}"), number, 50_000).unwrap();
        fs.durability().fsync(file).unwrap();
    }
    overwrite(&devices[1], SUPERBLOCK_COPIES[0], &old);
    write_and_sync(&fs, 40);
    assert_eq!(fs.abort_reason(), None);
    assert_eq!(fs.volume().devices().lagging(), [SECOND]);
    scrub(&fs);
    fs.close().unwrap();
    drop(fs);
    let fs = alone(&devices[1]);
    (1..=40).for_each(|number| assert_holds(&fs, &format!("file {number}"), number, 50_000));
}

/// Writes to distant devices are kept in memory and returned by reads, but not by those that
/// compare.
#[test]
fn what_a_distant_device_has_lost_is_found_though_it_was_just_written() {
    let devices = pair();
    let distant: Vec<Arc<dyn Device>> =
        devices.iter().map(|device| Arc::new(ReadAheadDevice::new(device.clone(), 0)) as _).collect();
    let fs = open(distant).unwrap();
    write_and_sync(&fs, 1);
    let old = devices[1].fork();
    // A scrub finds everything except superblocks.
    write_and_sync(&fs, 2);
    let superblock = superblock_of(&devices[1]);
    go_back_to(&devices[1], &old);
    overwrite(&devices[1], SUPERBLOCK_COPIES[0], &superblock);
    let found = fs.scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap();
    assert!(found.data.corrected > 0 && found.trees.corrected > 0, "{found:?}");
    // Superblocks are lost, too, again and again.
    for number in 3..6 {
        write_and_sync(&fs, number);
        go_back_to(&devices[1], &old);
    }
    write_and_sync(&fs, 6);
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [SECOND]);
    fs.close().unwrap();
    drop(fs);
    let fs = alone(&devices[1]);
    (1..=6).for_each(|number| assert_holds(&fs, &format!("file {number}"), number, 50_000));
}
