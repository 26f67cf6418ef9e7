//! Crashes while a repair is written, and repairs that are undone.

use std::sync::Arc;

use ubtrfs_check::{Options as CheckOptions, Report, check};
use ubtrfs_damage::Image;
use ubtrfs_format::{ItemType, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock, TreeId};
use ubtrfs_repair::{Options, RepairPlan, undo};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{Device, DeviceWrite, Event, OverlayDevice, RecordingDevice, random_fates};

fn report(device: Arc<dyn Device>) -> Report {
    check(&[device], &CheckOptions::default()).unwrap()
}

/// Ways to damage a volume, the second of which takes two rounds.
const DAMAGES: [fn(&Image); 2] = [
    |image| image.remove(TreeId::FS, |key, _| key.item_type == ItemType::DIR_INDEX),
    |image| image.flip_all(image.leaves(TreeId::FS)[0].plus(900)),
];

/// Of invariant 57.
#[test]
fn a_crash_leaves_the_volume_as_it_was_or_repaired() {
    for damage in DAMAGES {
        let dir = scratch_dir();
        let image = Fixture::load("snapshots").unpack(dir.path()).remove(0);
        damage(&Image::open(&image));
        let bytes: Arc<[u8]> = std::fs::read(&image).unwrap().into();
        let before = report(Arc::new(OverlayDevice::new(Arc::clone(&bytes))));
        let device = Arc::new(RecordingDevice::new(bytes));
        let plan = RepairPlan::of(vec![device.clone()], &Options::default()).unwrap();
        assert!(device.is_empty(), "a plan has written something");
        plan.apply(None).unwrap();
        let after = report(Arc::new(device.current()));
        assert!(!before.is_clean() && after.is_clean());
        let flushes = device.events().iter().filter(|(_, event)| matches!(event, Event::Flush)).count();
        assert!(flushes >= 2, "superblocks are not ordered behind the rest");
        let (mut seen_before, mut seen_after) = (false, false);
        for end in 0..=device.len() {
            for seed in 0..4 {
                let state = device.crash_state(end, &mut random_fates(seed));
                let found = report(Arc::new(state));
                let (is_before, is_after) = (found.faults == before.faults, found.is_clean());
                let is_mixed = found.faults.iter().all(|fault| fault.to_string().contains("superblock copy"));
                assert!(is_before || is_after || is_mixed, "after {end} events: {:?}", found.faults);
                seen_before |= is_before;
                seen_after |= is_after;
            }
        }
        assert!(seen_before && seen_after);
    }
}

#[test]
fn an_undone_repair_leaves_every_byte_as_it_was() {
    for damage in DAMAGES {
        let dir = scratch_dir();
        let image = Fixture::load("snapshots").unpack(dir.path()).remove(0);
        damage(&Image::open(&image));
        let bytes: Arc<[u8]> = std::fs::read(&image).unwrap().into();
        let device = Arc::new(OverlayDevice::new(Arc::clone(&bytes)));
        let plan = RepairPlan::of(vec![device.clone()], &Options::default()).unwrap();
        let file = dir.path().join("undo");
        plan.apply(Some(&file)).unwrap();
        assert!(report(device.clone()).is_clean());
        assert!(undo(&file, &[device.clone() as Arc<dyn Device>]).unwrap() > 0);
        assert!(device.to_bytes() == bytes[..], "the volume is not as it was");
    }
}

#[test]
fn a_repair_of_which_one_device_lacks_the_superblock_is_undone() {
    let dir = scratch_dir();
    let images = Fixture::load("prof-raid1").unpack(dir.path());
    let damaged: Vec<Arc<[u8]>> = images
        .iter()
        .map(|image| {
            let mut bytes = std::fs::read(image).unwrap();
            let size = bytes.len();
            for at in SUPERBLOCK_COPIES.into_iter().filter(|at| (at.0 as usize) < size) {
                let place = at.0 as usize..at.0 as usize + SUPERBLOCK_SIZE;
                let mut superblock = Superblock::parse(&bytes[place.clone()], at).unwrap();
                superblock.bytes_used += 4096;
                bytes[place].copy_from_slice(&superblock.to_bytes().unwrap()[..]);
            }
            bytes.into()
        })
        .collect();
    let devices: Vec<_> = damaged.iter().map(|bytes| Arc::new(OverlayDevice::new(Arc::clone(bytes)))).collect();
    let views = || devices.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect::<Vec<_>>();
    let file = dir.path().join("undo");
    RepairPlan::of(views(), &Options::default()).unwrap().apply(Some(&file)).unwrap();
    assert!(check(&views(), &CheckOptions::default()).unwrap().is_clean());
    // As a crash leaves it that comes between the superblocks of the two.
    let primary = SUPERBLOCK_COPIES[0].0 as usize;
    let before = damaged[1][primary..primary + SUPERBLOCK_SIZE].to_vec();
    devices[1].submit(vec![DeviceWrite { at: SUPERBLOCK_COPIES[0], data: before.into() }]).wait().unwrap();
    undo(&file, &views()).unwrap();
    for (device, bytes) in devices.iter().zip(&damaged) {
        assert!(device.to_bytes() == bytes[..], "a device is not as it was");
    }
    assert!(undo(&file, &views()).is_err(), "there is nothing to undo");
}
