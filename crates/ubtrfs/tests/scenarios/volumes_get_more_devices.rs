//! A device is added to a volume: its files stay, new chunks are made on the device, and a crash at
//! any time leaves the volume with it or without it.

use std::sync::{Arc, LazyLock};

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::OverlayDevice;
use ubtrfs::{Errno, Filesystem};
use ubtrfs_format::DeviceId;
use ubtrfs_volume::Device;

use crate::common::power::{Power, PoweredDevice};
use crate::common::volumes::{SIZE, assert_clean, assert_holds, blank, open, volume, write};

#[test]
fn a_new_device_takes_what_the_others_have_no_room_for() {
    for (devices, data, metadata) in [
        (1, Profile::Single, Profile::Dup),
        (1, Profile::Dup, Profile::Single),
        (2, Profile::Raid0, Profile::Raid1),
        (2, Profile::Raid1, Profile::Raid1),
        (4, Profile::Raid10, Profile::Raid1c3),
    ] {
        let what = format!("{devices} devices, data {data:?}, metadata {metadata:?}");
        let mut all: Vec<Arc<dyn Device>> =
            volume(devices, data, metadata).into_iter().map(|device| Arc::new(device) as _).collect();
        let fs = open(all.clone()).unwrap();
        write(&fs, "before", 1, 5 << 20).unwrap();
        let bytes = fs.device_bytes();
        for _ in 0..devices {
            let new: Arc<dyn Device> = Arc::new(OverlayDevice::zeroed(2 * SIZE));
            all.push(new.clone());
            assert_eq!(fs.add_device(new).unwrap(), DeviceId(all.len() as u64), "{what}");
        }
        assert_eq!(fs.device_bytes(), bytes + 2 * SIZE * devices as u64, "{what}");
        let mut seed = 2;
        while fs.volume().devices().items().iter().any(|item| item.bytes_used == 0) {
            write(&fs, &format!("file {seed}"), seed, 8 << 20).unwrap_or_else(|error| panic!("{what}: {error:?}"));
            fs.durability().sync().unwrap();
            seed += 1;
        }
        fs.close().unwrap();
        drop(fs);
        assert_clean(&all, &what);
        let fs = open(all).unwrap();
        assert_holds(&fs, "before", 1, 5 << 20);
        (2..seed).for_each(|seed| assert_holds(&fs, &format!("file {seed}"), seed, 8 << 20));
    }
}

#[test]
fn a_device_that_is_too_small_is_refused_and_the_volume_stays_as_it_is() {
    let all: Vec<Arc<dyn Device>> =
        volume(1, Profile::Single, Profile::Dup).into_iter().map(|device| Arc::new(device) as _).collect();
    let fs = open(all.clone()).unwrap();
    let refused = fs.add_device(Arc::new(OverlayDevice::zeroed(8 << 20))).unwrap_err();
    assert_eq!(refused.errno(), Errno::INVAL);
    assert_eq!(fs.volume().devices().items().len(), 1);
    fs.close().unwrap();
    assert_clean(&all, "refused");
}

static BLANK: LazyLock<OverlayDevice> = LazyLock::new(blank);

/// Adds a device and fsyncs while the power ends after so many writes. Returns whether it has
/// ended. The devices with a bit in `lost` lose their caches.
fn crashes(old: &[OverlayDevice], after: u64, lost: u32) -> bool {
    let what = format!("of {} devices, power ends after {after} writes, caches {lost:b} are lost", old.len());
    let power = Power::endless();
    let start = old.iter().chain([&*BLANK]);
    let devices: Vec<Arc<PoweredDevice>> = start.map(|device| PoweredDevice::new(&power, device)).collect();
    let (new, old) = (&devices[old.len()], &devices[..old.len()]);
    let fs = open(old.iter().map(|device| device.clone() as _).collect()).unwrap();
    write(&fs, "durable", 1, 3 << 20).unwrap();
    fs.durability().sync().unwrap();
    power.end_after(after);
    let logged = |name: &str| -> ubtrfs::Result<()> {
        let file = write(&fs, name, 2, 1 << 20)?;
        fs.durability().fsync(file)
    };
    let before = logged("before").is_ok();
    let added = fs.add_device(new.clone()).is_ok();
    let later = added && logged("later").is_ok() && fs.durability().sync().is_ok();
    let has_ended = power.has_ended();
    drop(fs);
    let left = || -> Vec<Arc<dyn Device>> {
        devices.iter().enumerate().map(|(at, device)| device.after_crash(lost & 1 << at == 0) as _).collect()
    };
    let use_it = |devices: &[Arc<dyn Device>], fs: Arc<Filesystem>, how: &str| {
        let what = format!("{what}, {how}");
        assert_holds(&fs, "durable", 1, 3 << 20);
        if before {
            assert_holds(&fs, "before", 2, 1 << 20);
        }
        if later {
            assert_holds(&fs, "later", 2, 1 << 20);
        }
        let number = fs.volume().devices().items().len();
        assert!(number == devices.len() || !added, "{what}");
        write(&fs, how, 3, 1 << 20).unwrap();
        fs.close().unwrap();
        drop(fs);
        assert_clean(&devices[..number], &what);
        number
    };
    // Returns the number of devices that the volume has.
    let open_all = |devices: &[Arc<dyn Device>], how: &str| {
        let fs = open(devices.to_vec()).unwrap_or_else(|error| panic!("{what}, {how}: {error:?}"));
        use_it(devices, fs, how)
    };
    // The volume is mounted with all devices, unless nothing is on the new one yet …
    let with = left();
    let is_blank =
        matches!(open(vec![with[old.len()].clone()]), Err(ubtrfs::Error::Volume(ubtrfs_volume::Error::NotBtrfs)));
    if !is_blank {
        // A device that is left out belongs to no volume any more (invariant 54).
        let number = open_all(&with, "with the new device");
        open_all(&with[..number], "once more");
    }
    // … or without the new device, which comes back later.
    let without = left();
    match open(without[..old.len()].to_vec()) {
        Ok(fs) if !added => {
            use_it(&without, fs, "without the new device");
            if !is_blank {
                let _ = open_all(&without, "with the device that came back");
            }
        }
        opened => assert!(opened.is_err() && !is_blank, "{what}"),
    }
    has_ended
}

#[test]
fn a_crash_leaves_the_volume_with_the_device_or_without_it() {
    for (number, data) in [(2, Profile::Single), (2, Profile::Raid1), (3, Profile::Raid1)] {
        let old = volume(number, data, Profile::Raid1);
        for lost in [0, 0b1111, 0b011, 0b100, 0b001] {
            let mut after = 0;
            while crashes(&old, after, lost) {
                after += if matches!(lost, 0 | 0b1111) { 3 } else { 8 };
            }
            assert!(after > 20, "{after}");
        }
    }
}
