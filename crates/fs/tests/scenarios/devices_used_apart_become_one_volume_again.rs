//! Each of two mirrored devices was written without the other: the one that has fewer commits lags
//! behind the other one, whatever it has, until it has been brought up to it (invariant 34). Where
//! both have as many, nothing is written.

use std::sync::Arc;

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::OverlayDevice;
use ubtrfs::{Filesystem, Options, ScrubOptions};
use ubtrfs_format::items::{BalanceArgs, BalanceFilters, BalanceFlags, BalanceItem, BlockGroupFlags, SINGLE};
use ubtrfs_format::{DeviceId, Generation};
use ubtrfs_volume::{Device, Error, OpenOptions, Volume};

use crate::common::volumes::{assert_clean, assert_holds, open, volume, write};

/// As many small files as fill some leaves.
const MANY: u64 = 200;

fn open_alone(device: &Arc<OverlayDevice>) -> Arc<Filesystem> {
    let volume = Volume::open_degraded(vec![device.clone()], OpenOptions::default()).unwrap();
    Filesystem::open(Arc::new(volume), Options { background_commits: false, ..Options::default() }).unwrap()
}

/// Two mirrored devices, on each of which commits of so many files were made without the other.
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
            fs.sync().unwrap();
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

/// Writes to one of two mirrored devices without the other one, which is removed from the volume
/// then, and goes on up to a commit of this generation.
fn without_the_other(device: &Arc<OverlayDevice>, other: DeviceId, name: &str, last: Generation) {
    let fs = open_alone(device);
    let to = |target| BalanceArgs { target, filters: BalanceFilters::CONVERT, ..BalanceArgs::default() };
    let flags = BalanceFlags::DATA | BalanceFlags::METADATA | BalanceFlags::SYSTEM | BalanceFlags::FORCE;
    let (data, metadata, system) = (to(SINGLE), to(BlockGroupFlags::DUP.0), to(BlockGroupFlags::DUP.0));
    fs.start_balance(&BalanceItem { flags, data, metadata, system }, &|_| true).unwrap();
    fs.remove_device(other, &|_| true).unwrap();
    write(&fs, name, 5, 1 << 20).unwrap();
    let commits = last.0 - fs.volume().superblock().generation.0;
    (0..commits).for_each(|commit| {
        write(&fs, &format!("{name} {commit}"), commit, 1000).unwrap();
        fs.sync().unwrap();
    });
    assert_eq!(fs.volume().superblock().generation, last);
    fs.close().unwrap();
}

/// By each of them the other one has been removed. Neither history is taken for the volume's, as
/// that of a volume is that was about to get an empty device.
#[test]
fn devices_that_were_each_left_alone_are_only_read_together() {
    let devices = apart([&[], &[]]);
    without_the_other(&devices[0], DeviceId(2), "first", Generation(100));
    without_the_other(&devices[1], DeviceId(1), "second", Generation(100));
    let before = devices.each_ref().map(|device| device.to_bytes());
    for order in [[0, 1], [1, 0]] {
        let both: Vec<Arc<dyn Device>> = order.iter().map(|at| devices[*at].clone() as _).collect();
        for open in [Volume::open, Volume::open_degraded] {
            let error = open(both.clone(), OpenOptions::default()).unwrap_err();
            assert!(matches!(error, Error::Apart(..) | Error::MissingDevices { .. }), "{error}");
        }
    }
    assert!(devices.each_ref().map(|device| device.to_bytes()) == before);
    for (device, name) in devices.iter().zip(["first", "second"]) {
        assert_holds(&open(vec![device.clone()]).unwrap(), name, 5, 1 << 20);
    }
}

/// Some of its blocks are newer than those of the other one at the same address.
#[test]
fn a_scrub_brings_up_a_device_that_has_newer_blocks_of_another_history() {
    let commits = [MANY, MANY, 1, 1, 1, 1, 1, 1, 1];
    let devices = apart([&commits, &[1, 1, 1, 3 * MANY]]);
    let both: Vec<Arc<dyn Device>> = devices.iter().map(|device| device.clone() as _).collect();
    let fs = open(both.clone()).unwrap();
    assert_eq!(fs.volume().lagging_devices(), [DeviceId(2)]);
    let found = fs.scrub(ScrubOptions::default(), &mut |_| true).unwrap();
    assert!(found.trees.corrected > 0 && found.uncorrectable() == 0, "{found:?}");
    assert_eq!(fs.volume().lagging_devices(), []);
    assert_as_first(&fs, &commits);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&both, "together");
    // The device that lagged has all of it.
    assert_as_first(&open_alone(&devices[1]), &commits);
}

/// The same was done on both, and what it wrote lies at the same addresses. Only the contents
/// differ.
#[test]
fn a_device_whose_commits_look_like_those_of_the_other_is_brought_up_as_well() {
    let commits = [3, 3, 1];
    let devices = apart([&commits, &[3, 3]]);
    let both: Vec<Arc<dyn Device>> = devices.iter().map(|device| device.clone() as _).collect();
    let fs = open(both.clone()).unwrap();
    assert_eq!(fs.volume().lagging_devices(), [DeviceId(2)]);
    assert_eq!(fs.catch_up(&mut |_| true).unwrap(), [DeviceId(2)]);
    fs.close().unwrap();
    drop(fs);
    assert_clean(&both, "together");
    assert_as_first(&open_alone(&devices[1]), &commits);
}

#[test]
fn devices_with_as_many_commits_are_only_read_together() {
    let commits = [MANY, 1];
    let devices = apart([&commits, &[1, 2 * MANY]]);
    let before = devices.each_ref().map(|device| device.to_bytes());
    for order in [[0, 1], [1, 0]] {
        let both: Vec<Arc<dyn Device>> = order.iter().map(|at| devices[*at].clone() as _).collect();
        for open in [Volume::open, Volume::open_degraded] {
            let error = open(both.clone(), OpenOptions::default()).unwrap_err();
            assert!(matches!(error, Error::Apart(DeviceId(2), DeviceId(1))), "{error}");
            let volume = open(both.clone(), OpenOptions { read_only: true }).unwrap();
            assert_eq!(volume.lagging_devices(), [DeviceId(1)]);
            let fs = Filesystem::open(Arc::new(volume), Options::default()).unwrap();
            (0..MANY).for_each(|file| assert_holds(&fs, &format!("common {file}"), file, 1000));
            (0..2 * MANY).for_each(|file| assert_holds(&fs, &format!("1 1 {file}"), file, 1000));
        }
    }
    assert!(devices.each_ref().map(|device| device.to_bytes()) == before);
    // Each of them is whole.
    assert_as_first(&open_alone(&devices[0]), &commits);
}
