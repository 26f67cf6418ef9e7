//! Each of two mirrored devices was written without the other. They are not written together,
//! however many commits each has, until the changes of one of them are given up (invariants 34 and
//! 44). A device that was not written meanwhile only lags.

use std::sync::Arc;

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::{FaultyDevice, Lasting, Operation, OverlayDevice};
use ubtrfs::{Filesystem, Options, ReplaceOptions, ScrubOptions};
use ubtrfs_format::items::{BalanceArgs, BalanceFilters, BalanceFlags, BalanceItem, BlockGroupFlags, SINGLE};
use ubtrfs_format::{DeviceId, Generation, SUPERBLOCK_COPIES, Superblock};
use ubtrfs_testkit::seeds::soaks;
use ubtrfs_volume::{Buffer, Device, DeviceWrite, Error, Fate, Half, OpenOptions, OpenWrite, RecordingDevice, Volume};

use crate::common::volumes::{assert_clean, assert_holds, blank, open, volume, write};

const EIO: i32 = 5;
/// As many small files as fill some leaves.
const MANY: u64 = 200;

fn options() -> Options {
    Options { background_commits: false, ..Options::default() }
}

fn open_alone(device: &Arc<OverlayDevice>) -> Arc<Filesystem> {
    let volume = Volume::open_degraded(vec![device.clone()], OpenOptions::default()).unwrap();
    Filesystem::open(Arc::new(volume), options()).unwrap()
}

/// Makes two mirrored devices, each with commits of so many files that were made without the other.
fn apart(commits: [&[u64]; 2]) -> [Arc<OverlayDevice>; 2] {
    let mut devices = volume(2, Profile::Raid1, Profile::Raid1).into_iter().map(Arc::new);
    let devices = [devices.next().unwrap(), devices.next().unwrap()];
    let fs = open(devices.iter().map(|device| device.clone() as _).collect()).unwrap();
    (0..MANY).for_each(|file| _ = write(&fs, &format!("common {file}"), file, 1000).unwrap());
    fs.close().unwrap();
    for (number, (device, commits)) in devices.iter().zip(commits).enumerate() {
        let fs = open_alone(device);
        for (commit, files) in commits.iter().enumerate() {
            for file in 0..*files {
                write(&fs, &format!("{number} {commit} {file}"), file, 1000).unwrap();
            }
            fs.durability().sync().unwrap();
        }
        fs.close().unwrap();
    }
    devices
}

fn assert_as_first(fs: &Filesystem, commits: &[u64]) {
    (0..MANY).for_each(|file| assert_holds(fs, &format!("common {file}"), file, 1000));
    for (commit, files) in commits.iter().enumerate() {
        (0..*files).for_each(|file| assert_holds(fs, &format!("0 {commit} {file}"), file, 1000));
    }
}

fn both(devices: &[Arc<OverlayDevice>; 2]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as _).collect()
}

/// Asserts that the devices are not opened together, and that the error says what each of them has.
fn assert_not_joined(devices: &[Arc<OverlayDevice>; 2]) -> [Half; 2] {
    let before = devices.each_ref().map(|device| device.to_bytes());
    let mut found = None;
    for order in [[0, 1], [1, 0]] {
        let both: Vec<Arc<dyn Device>> = order.iter().map(|at| devices[*at].clone() as _).collect();
        for open in [Volume::open, Volume::open_degraded] {
            match open(both.clone(), OpenOptions::default()).unwrap_err() {
                Error::Apart(mut halves) => {
                    halves.sort_by_key(|half| half.devid);
                    assert_eq!(*found.get_or_insert(halves.clone()), halves);
                }
                error => panic!("{error:?}"),
            }
        }
    }
    assert!(devices.each_ref().map(|device| device.to_bytes()) == before);
    *found.unwrap()
}

fn assert_as_second(fs: &Filesystem, commits: &[u64]) {
    (0..MANY).for_each(|file| assert_holds(fs, &format!("common {file}"), file, 1000));
    for (commit, files) in commits.iter().enumerate() {
        (0..*files).for_each(|file| assert_holds(fs, &format!("1 {commit} {file}"), file, 1000));
    }
}

/// Gives up the changes of this device, and brings it up to the other one.
fn give_up(devices: &[Arc<OverlayDevice>; 2], devid: DeviceId, bring_up: impl Fn(&Filesystem)) {
    let volume = Volume::open_giving_up(&[devid], both(devices), false).unwrap();
    let fs = Filesystem::open(Arc::new(volume), options()).unwrap();
    assert_eq!(fs.volume().devices().lagging(), [devid]);
    write(&fs, "after", 7, 1000).unwrap();
    fs.close().unwrap();
    drop(fs);
    // If the mount ends here, the next one goes on by itself.
    let fs = open(both(devices)).unwrap();
    assert_eq!(fs.volume().devices().lagging(), [devid]);
    bring_up(&fs);
    assert_eq!(fs.volume().devices().lagging(), []);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&both(devices), "together");
}

/// Writes to one of two mirrored devices without the other one. Then the other device is removed
/// from the volume, and commits go on up to this generation.
fn without_the_other(device: &Arc<OverlayDevice>, other: DeviceId, name: &str, last: Generation) {
    let fs = open_alone(device);
    let to = |target| BalanceArgs { target, filters: BalanceFilters::CONVERT, ..BalanceArgs::default() };
    let flags = BalanceFlags::DATA | BalanceFlags::METADATA | BalanceFlags::SYSTEM | BalanceFlags::FORCE;
    let (data, metadata, system) = (to(SINGLE), to(BlockGroupFlags::DUP.0), to(BlockGroupFlags::DUP.0));
    fs.balancer().start(&BalanceItem { flags, data, metadata, system }, &|_| true).unwrap();
    fs.relocator().remove_device(other, &|_| true).unwrap();
    write(&fs, name, 5, 1 << 20).unwrap();
    let commits = last.0 - fs.volume().superblocks().current().generation.0;
    (0..commits).for_each(|commit| {
        write(&fs, &format!("{name} {commit}"), commit, 1000).unwrap();
        fs.durability().sync().unwrap();
    });
    assert_eq!(fs.volume().superblocks().current().generation, last);
    fs.close().unwrap();
}

/// Each device has removed the other one. Neither history is taken for that of the volume, unlike
/// the one of a volume that was about to get an empty device.
#[test]
fn devices_that_were_each_left_alone_are_only_read_together() {
    let devices = apart([&[], &[]]);
    without_the_other(&devices[0], DeviceId(2), "first", Generation(100));
    without_the_other(&devices[1], DeviceId(1), "second", Generation(100));
    assert_not_joined(&devices);
    for (device, name) in devices.iter().zip(["first", "second"]) {
        assert_holds(&open(vec![device.clone()]).unwrap(), name, 5, 1 << 20);
    }
}

/// Some of its blocks are newer than the other device's blocks at the same address.
#[test]
fn a_scrub_brings_up_a_device_that_has_newer_blocks_of_another_history() {
    let commits = [MANY, MANY, 1, 1, 1, 1, 1, 1, 1];
    let devices = apart([&commits, &[1, 1, 1, 3 * MANY]]);
    assert_not_joined(&devices);
    give_up(&devices, DeviceId(2), |fs| {
        let found = fs.scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap();
        assert!(found.trees.corrected > 0 && found.uncorrectable() == 0, "{found:?}");
    });
    // The device that lagged has all of it.
    assert_as_first(&open_alone(&devices[1]), &commits);
}

/// Both histories have the same operations, whose data lies at the same addresses. Only the
/// contents differ.
#[test]
fn a_device_whose_commits_look_like_those_of_the_other_is_brought_up_as_well() {
    let commits = [3, 3, 1];
    let devices = apart([&commits, &[3, 3]]);
    let [first, second] = assert_not_joined(&devices);
    let began = |half: Half| half.since.map(|(generation, _)| generation);
    assert!(began(first).is_some() && began(first) == began(second), "{first} {second}");
    assert_eq!(first.generation.0, second.generation.0 + 1);
    give_up(&devices, DeviceId(2), |fs| assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]));
    assert_as_first(&open_alone(&devices[1]), &commits);
}

/// The changes of the device with more commits can be given up, too.
#[test]
fn the_changes_of_either_device_can_be_given_up() {
    for (commits, given_up) in [([&[3, 3, 1][..], &[3, 3]], 1), ([&[3, 3], &[3, 3]], 1), ([&[3, 3], &[3, 3]], 2)] {
        let devices = apart(commits);
        give_up(&devices, DeviceId(given_up), |fs| _ = fs.scrubber().catch_up(&mut |_| true).unwrap());
        match given_up {
            1 => assert_as_second(&open_alone(&devices[0]), commits[1]),
            _ => assert_as_first(&open_alone(&devices[1]), commits[0]),
        }
    }
}

/// Such a device alone does not look like the volume that it was.
#[test]
fn a_device_that_is_given_up_is_no_volume_alone() {
    let devices = apart([&[3, 3], &[3, 3]]);
    let volume = Volume::open_giving_up(&[DeviceId(2)], both(&devices), false).unwrap();
    let fs = Filesystem::open(Arc::new(volume), options()).unwrap();
    write(&fs, "after", 7, 1000).unwrap();
    fs.durability().sync().unwrap();
    drop(fs);
    let alone = Volume::open_degraded(vec![devices[1].clone()], OpenOptions::default());
    assert!(alone.is_err(), "its superblock is of no commit");
    for order in [[0, 1], [1, 0]] {
        let both: Vec<Arc<dyn Device>> = order.iter().map(|at| devices[*at].clone() as _).collect();
        let volume = Volume::open(both, OpenOptions { read_only: true }).unwrap();
        assert_eq!(volume.devices().lagging(), [DeviceId(2)]);
    }
}

/// The kernel mounts such devices, and gives both one superblock. Of two tree blocks that are both
/// valid, a scrub writes none over the other.
#[test]
fn a_scrub_finds_devices_that_were_joined_all_the_same() {
    let commits = [3, 3];
    let devices = apart([&commits, &commits]);
    let superblock = |device: &OverlayDevice| {
        let mut bytes = vec![0; 4096];
        device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).unwrap();
        Superblock::parse(&bytes, SUPERBLOCK_COPIES[0]).unwrap()
    };
    let (first, second) = (superblock(&devices[0]), superblock(&devices[1]));
    let joined = Superblock { dev_item: second.dev_item, ..first }.to_bytes().unwrap();
    let data = Buffer::from(&joined[..]).share();
    devices[1].submit(vec![DeviceWrite { at: SUPERBLOCK_COPIES[0], data }]).wait().unwrap();
    let fs = open(both(&devices)).unwrap();
    assert_eq!(fs.volume().devices().lagging(), []);
    let found = fs.scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap();
    assert!(found.trees.uncorrectable > 0, "{found:?}");
    let again = fs.scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap();
    assert_eq!((again.trees.uncorrectable, again.trees.corrected), (found.trees.uncorrectable, 0));
    // Scrubs one device after the other, as programs on mounts do.
    let of = |device| {
        let options = ScrubOptions { device: Some(DeviceId(device)), ..ScrubOptions::default() };
        fs.scrubber().run(options, &mut |_| true).unwrap().trees.uncorrectable
    };
    assert_eq!(of(1) + of(2), found.trees.uncorrectable);
    fs.close().unwrap();
    drop(fs);
    give_up(&devices, DeviceId(2), |fs| _ = fs.scrubber().catch_up(&mut |_| true).unwrap());
    assert_as_first(&open_alone(&devices[1]), &commits);
}

/// A device can't be given up if no other device has its data.
#[test]
fn a_device_that_alone_has_something_can_not_be_given_up() {
    let devices: Vec<_> = volume(2, Profile::Single, Profile::Raid1).into_iter().map(Arc::new).collect();
    let shared: Vec<Arc<dyn Device>> = devices.iter().map(|device| device.clone() as _).collect();
    let fs = open(shared.clone()).unwrap();
    for file in 0..4 {
        write(&fs, &format!("file {file}"), file, 20 << 20).unwrap();
        fs.durability().sync().unwrap();
    }
    fs.close().unwrap();
    drop(fs);
    let before: Vec<_> = devices.iter().map(|device| device.to_bytes()).collect();
    let refused = [1, 2].map(|devid| Volume::open_giving_up(&[DeviceId(devid)], shared.clone(), false));
    assert!(refused.iter().any(|refused| matches!(refused, Err(Error::MissingData(_)))));
    drop(refused);
    assert!(devices.iter().map(|device| device.to_bytes()).eq(before));
}

/// The device has all that the others have. Giving it up would lose what was written since.
#[test]
fn a_device_that_the_others_lag_behind_can_not_be_given_up() {
    let devices = apart([&[MANY], &[]]);
    let before = devices.each_ref().map(|device| device.to_bytes());
    let refused = Volume::open_giving_up(&[DeviceId(1)], both(&devices), false).unwrap_err();
    assert!(matches!(refused, Error::OthersLag { ahead: DeviceId(1), behind: DeviceId(2) }), "{refused:?}");
    let refused = Volume::open_giving_up(&[DeviceId(1), DeviceId(2)], both(&devices), false).unwrap_err();
    assert!(matches!(refused, Error::AllGivenUp), "{refused:?}");
    assert!(devices.each_ref().map(|device| device.to_bytes()) == before);
    // A device that only lags is given up without a loss. To keep its state instead, it has to be
    // used alone first.
    give_up(&devices, DeviceId(2), |fs| _ = fs.scrubber().catch_up(&mut |_| true).unwrap());
    assert_as_first(&open_alone(&devices[1]), &[MANY]);
    let devices = apart([&[MANY], &[]]);
    let fs = open_alone(&devices[1]);
    write(&fs, "back", 1, 1000).unwrap();
    fs.close().unwrap();
    drop(fs);
    give_up(&devices, DeviceId(1), |fs| _ = fs.scrubber().catch_up(&mut |_| true).unwrap());
    assert_holds(&open_alone(&devices[0]), "back", 1, 1000);
}

/// The other device was used without it any number of times.
#[test]
fn a_device_that_was_only_missing_is_brought_up() {
    let devices = apart([&[MANY], &[]]);
    for mount in 0..20 {
        let fs = open_alone(&devices[0]);
        write(&fs, &format!("mount {mount}"), mount, 1000).unwrap();
        fs.close().unwrap();
    }
    let fs = open(both(&devices)).unwrap();
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&both(&devices), "together");
    (0..20).for_each(|mount| assert_holds(&open_alone(&devices[1]), &format!("mount {mount}"), mount, 1000));
}

/// The devices take turns at being missing, and each is brought up by the other one in between.
#[test]
fn devices_that_are_missing_in_turns_are_brought_up() {
    let devices = apart([&[1], &[]]);
    for turn in 0..16 {
        let fs = open(both(&devices)).unwrap();
        fs.scrubber().catch_up(&mut |_| true).unwrap();
        assert_eq!(fs.volume().devices().lagging(), []);
        fs.close().unwrap();
        drop(fs);
        let fs = open_alone(&devices[turn as usize % 2]);
        write(&fs, &format!("turn {turn}"), turn, 1000).unwrap();
        fs.close().unwrap();
    }
    let fs = open(both(&devices)).unwrap();
    (0..16).for_each(|turn| assert_holds(&fs, &format!("turn {turn}"), turn, 1000));
}

/// One device fails while the volume is used. Both are then used alone.
#[test]
fn a_device_that_failed_and_was_used_alone_is_not_joined() {
    let devices = apart([&[1], &[]]);
    let fs = open(both(&devices)).unwrap();
    fs.scrubber().catch_up(&mut |_| true).unwrap();
    fs.close().unwrap();
    drop(fs);
    let failing = Arc::new(FaultyDevice::new(devices[1].clone()));
    let fs = open(vec![devices[0].clone(), failing.clone()]).unwrap();
    write(&fs, "both", 1, 1000).unwrap();
    fs.durability().sync().unwrap();
    failing.fail(Operation::Write, 0, EIO, Lasting::Forever);
    for number in 0..4 {
        write(&fs, &format!("first {number}"), number, 1000).unwrap();
        fs.durability().sync().unwrap();
    }
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    drop(fs);
    // The failed device has no commits of its own yet: it lags.
    let volume = Volume::open(both(&devices), OpenOptions::default()).unwrap();
    assert_eq!(volume.devices().lagging(), [DeviceId(2)]);
    drop(volume);
    let fs = open_alone(&devices[1]);
    write(&fs, "second", 1, 1000).unwrap();
    fs.close().unwrap();
    drop(fs);
    assert_not_joined(&devices);
}

#[test]
fn devices_with_as_many_commits_are_only_read_together() {
    let commits = [MANY, 1];
    let devices = apart([&commits, &[1, 2 * MANY]]);
    assert_not_joined(&devices);
    for order in [[0, 1], [1, 0]] {
        let both: Vec<Arc<dyn Device>> = order.iter().map(|at| devices[*at].clone() as _).collect();
        for open in [Volume::open, Volume::open_degraded] {
            let volume = open(both.clone(), OpenOptions { read_only: true }).unwrap();
            assert_eq!(volume.devices().lagging(), [DeviceId(1)]);
            let fs = Filesystem::open(Arc::new(volume), Options::default()).unwrap();
            (0..MANY).for_each(|file| assert_holds(&fs, &format!("common {file}"), file, 1000));
            (0..2 * MANY).for_each(|file| assert_holds(&fs, &format!("1 1 {file}"), file, 1000));
        }
    }
    // Each of the devices is whole alone.
    assert_as_first(&open_alone(&devices[0]), &commits);
}

/// Uses each device alone for so many commits, and asserts that they are not joined after that.
fn use_apart(devices: [&Arc<OverlayDevice>; 2], commits: [u64; 2], what: &str) {
    for (device, commits) in devices.into_iter().zip(commits) {
        let fs = open_alone(device);
        for commit in 0..commits {
            write(&fs, &format!("alone {commit}"), 4, 1000).unwrap();
            fs.durability().sync().unwrap();
        }
        fs.close().unwrap();
    }
    for [one, other] in [[0, 1], [1, 0]] {
        let both = vec![devices[one].clone() as Arc<dyn Device>, devices[other].clone()];
        match Volume::open(both, OpenOptions::default()) {
            Err(Error::Apart(_)) => {}
            Err(error) => panic!("{what}, {commits:?} commits: {error:?}"),
            Ok(_) => panic!("{what}, {commits:?} commits: they are joined"),
        }
    }
}

/// The numbers of commits that each of two devices has alone.
const COMMITS: [[u64; 2]; 4] = [[1, 1], [1, 4], [2, 3], [4, 1]];

/// A device that was left out for a moment is brought up, and power fails at any time. When each
/// device is used alone after that, they are not joined.
#[test]
fn a_device_that_was_about_to_return_is_not_joined_after_both_were_used_alone() {
    let made = volume(2, Profile::Raid1, Profile::Raid1);
    let recording: Vec<_> = RecordingDevice::together(&made).into_iter().map(Arc::new).collect();
    let faulty = Arc::new(FaultyDevice::new(recording[1].clone()));
    let fs = open(vec![recording[0].clone(), faulty.clone()]).unwrap();
    write(&fs, "before", 1, 1000).unwrap();
    fs.durability().sync().unwrap();
    faulty.fail(Operation::Write, 0, EIO, Lasting::Once);
    write(&fs, "missed", 2, 1000).unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    let first = recording[0].len();
    assert_eq!(fs.scrubber().catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
    write(&fs, "after", 3, 1000).unwrap();
    fs.close().unwrap();
    drop(fs);
    for event in first..=recording[0].len() {
        // The first device loses power a moment before the second.
        let mut fate = |write: &OpenWrite| if write.device == 0 { Fate::Lost } else { Fate::Whole };
        for commits in COMMITS {
            let crashed: Vec<_> = recording[0].crash_states(event, &mut fate).into_iter().map(Arc::new).collect();
            use_apart([&crashed[0], &crashed[1]], commits, &format!("event {event}"));
        }
    }
}

/// The same, but the other device fails, at any write, while the first one returns.
#[test]
fn devices_that_fail_one_after_the_other_are_not_joined_after_they_were_used_alone() {
    let (mut failed, mut returned) = (0, 0);
    for successes in (0..60).step_by(if soaks() { 1 } else { 3 }) {
        let devices: Vec<_> = volume(2, Profile::Raid1, Profile::Raid1).into_iter().map(Arc::new).collect();
        let faulty = [0, 1].map(|at: usize| Arc::new(FaultyDevice::new(devices[at].clone())));
        let fs = open(vec![faulty[0].clone(), faulty[1].clone()]).unwrap();
        write(&fs, "before", 1, 1000).unwrap();
        fs.durability().sync().unwrap();
        faulty[1].fail(Operation::Write, 0, EIO, Lasting::Once);
        write(&fs, "missed", 2, 1000).unwrap();
        fs.durability().sync().unwrap();
        faulty[0].fail(Operation::Write, successes, EIO, Lasting::Once);
        let caught_up = fs.scrubber().catch_up(&mut |_| true).is_ok_and(|caught_up| !caught_up.is_empty());
        returned += u64::from(caught_up);
        if write(&fs, "after", 3, 1000).and_then(|_| fs.durability().sync()).is_ok() {
            failed += u64::from(!fs.volume().devices().lagging().is_empty());
        }
        drop(fs);
        for commits in COMMITS {
            let forks = [0, 1].map(|at: usize| Arc::new(devices[at].fork()));
            use_apart([&forks[0], &forks[1]], commits, &format!("write {successes} fails"));
        }
    }
    assert!(failed > 2 && returned > 5, "{failed} {returned}");
}

/// The same for a new device that takes the place and the number of one that was left out.
#[test]
fn a_device_that_was_about_to_replace_another_is_not_joined_after_both_were_used_alone() {
    let mut made = volume(2, Profile::Raid1, Profile::Raid1);
    made.push(blank());
    let recording: Vec<_> = RecordingDevice::together(&made).into_iter().map(Arc::new).collect();
    let faulty = Arc::new(FaultyDevice::new(recording[1].clone()));
    let fs = open(vec![recording[0].clone(), faulty.clone()]).unwrap();
    faulty.fail(Operation::Write, 0, EIO, Lasting::Forever);
    write(&fs, "missed", 2, 1000).unwrap();
    fs.durability().sync().unwrap();
    assert_eq!(fs.volume().devices().lagging(), [DeviceId(2)]);
    let first = recording[0].len();
    fs.replacer().begin(DeviceId(2), recording[2].clone(), ReplaceOptions::default()).unwrap();
    fs.replacer().run(&mut |_| true).unwrap();
    write(&fs, "after", 3, 1000).unwrap();
    fs.close().unwrap();
    drop(fs);
    let mut tried = 0;
    for event in first..=recording[0].len() {
        let mut fate = |write: &OpenWrite| if write.device == 0 { Fate::Lost } else { Fate::Whole };
        for commits in COMMITS {
            let crashed: Vec<_> = recording[0].crash_states(event, &mut fate).into_iter().map(Arc::new).collect();
            if Volume::superblock_of(&*crashed[2]).is_some_and(|it| it.dev_item.devid == DeviceId(2)) {
                use_apart([&crashed[0], &crashed[2]], commits, &format!("event {event}"));
                tried += 1;
            }
        }
    }
    assert!(tried > 0);
}
