//! Crashes while a repair is written, and repairs that are undone.

use std::sync::Arc;

use ubtrfs_check::{Options as CheckOptions, Report, check};
use ubtrfs_damage::Image;
use ubtrfs_format::{ItemType, TreeId};
use ubtrfs_repair::{Options, RepairPlan, undo};
use ubtrfs_testkit::fixture::Fixture;
use ubtrfs_testkit::scratch::scratch_dir;
use ubtrfs_volume::{Device, Event, OverlayDevice, RecordingDevice, random_fates};

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
