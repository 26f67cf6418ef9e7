//! A volume whose superblock has another number of devices than the chunk tree is mounted and
//! corrected, as by the kernel; a volume with missing devices is not mounted.

use std::sync::Arc;

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::OverlayDevice;
use ubtrfs_format::{Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock};
use ubtrfs_volume::{Device, DeviceWrite, SharedBuffer};

use crate::common::volumes::{assert_clean, assert_holds, open, volume, write};

fn count(device: &OverlayDevice) -> u64 {
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).unwrap();
    Superblock::parse(&bytes, SUPERBLOCK_COPIES[0]).unwrap().num_devices
}

/// Sets the number of devices in all superblocks of a device.
fn set_count(device: &OverlayDevice, count: u64) {
    for at in SUPERBLOCK_COPIES.into_iter().filter(|at| at.0 + (SUPERBLOCK_SIZE as u64) < device.size()) {
        let mut bytes = vec![0; SUPERBLOCK_SIZE];
        device.read_at(at, &mut bytes).unwrap();
        let superblock = Superblock { num_devices: count, ..Superblock::parse(&bytes, at).unwrap() };
        let data = SharedBuffer::from(superblock.to_bytes().unwrap().to_vec());
        device.submit(vec![DeviceWrite { at: Physical(at.0), data }]).wait().unwrap();
    }
}

#[test]
fn a_wrong_count_is_corrected_by_the_next_commit() {
    for (devices, wrong) in [(1, 2), (1, 7), (1, u64::MAX), (2, 3), (3, 2)] {
        let data = if devices == 1 { Profile::Single } else { Profile::Raid1 };
        let made: Vec<Arc<OverlayDevice>> = volume(devices, data, data).into_iter().map(Arc::new).collect();
        let all = || made.iter().map(|device| device.clone() as Arc<dyn Device>).collect::<Vec<_>>();
        let fs = open(all()).unwrap();
        write(&fs, "before", 1, 100_000).unwrap();
        fs.close().unwrap();
        drop(fs);
        for device in &made {
            set_count(device, wrong);
        }
        let fs = open(all()).unwrap_or_else(|error| panic!("{devices} devices, {wrong} counted: {error:?}"));
        assert_holds(&fs, "before", 1, 100_000);
        write(&fs, "after", 2, 100_000).unwrap();
        fs.close().unwrap();
        drop(fs);
        for device in &made {
            assert_eq!(count(device), devices as u64, "{devices} devices, {wrong} counted");
        }
        assert_clean(&all(), "corrected");
    }
}

#[test]
fn a_device_that_is_missing_is_no_wrong_count() {
    let made: Vec<Arc<OverlayDevice>> = volume(3, Profile::Raid1, Profile::Raid1).into_iter().map(Arc::new).collect();
    let error = open(made[..2].iter().map(|device| device.clone() as _).collect()).unwrap_err();
    assert!(error.chain().contains("missing"), "{}", error.chain());
}
