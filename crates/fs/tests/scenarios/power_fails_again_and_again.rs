//! The power of a machine with several devices fails again and again, also while it recovers from
//! the last time. Each device loses any of the writes that it has not flushed. Nothing that was
//! acknowledged is lost, the volume can be written to, and the newest superblock, which counts for
//! the kernel, has all that it refers to (invariant 70).

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::OverlayDevice;
use ubtrfs_format::{SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock};
use ubtrfs_testkit::rng::Rng;
use ubtrfs_volume::{Buffer, Device, DeviceWrite, SharedBuffer};

use crate::common::power::{Power, PoweredDevice};
use crate::common::volumes::{assert_clean, assert_holds, open, volume, write};

const PROFILES: [(usize, Profile, Profile); 7] = [
    (2, Profile::Raid0, Profile::Raid1),
    (2, Profile::Single, Profile::Single),
    (2, Profile::Raid1, Profile::Raid1),
    (3, Profile::Raid1, Profile::Raid1),
    (3, Profile::Raid0, Profile::Raid0),
    (4, Profile::Raid10, Profile::Raid1c3),
    (4, Profile::Raid0, Profile::Raid10),
];
/// How often the power fails.
const CUTS: u64 = 5;

fn superblock(device: &dyn Device) -> Superblock {
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).unwrap();
    Superblock::parse(&bytes, SUPERBLOCK_COPIES[0]).unwrap()
}

/// The kernel reads all devices by the newest superblock that one of them has.
fn assert_kernel_can_mount(devices: &[OverlayDevice], what: &str) {
    let age = |it: &Superblock| (it.generation, it.log_root.0 != 0);
    let newest = devices.iter().map(|device| superblock(device)).max_by_key(age).unwrap();
    let as_seen = devices.iter().map(|device| {
        let seen = device.fork();
        let own = Superblock { dev_item: superblock(device).dev_item, ..newest.clone() };
        let data = SharedBuffer::from(Buffer::from(&own.to_bytes().unwrap()[..]));
        seen.submit(vec![DeviceWrite { at: SUPERBLOCK_COPIES[0], data }]).wait().unwrap();
        Arc::new(seen) as Arc<dyn Device>
    });
    assert_clean(&as_seen.collect::<Vec<_>>(), &format!("{what}, by generation {}", newest.generation.0));
}

fn story(seed: u64) {
    let mut rng = Rng::new(seed);
    let (number, data, metadata) = PROFILES[rng.below(PROFILES.len() as u64) as usize];
    let mut devices = volume(number, data, metadata);
    let mut acknowledged: BTreeMap<String, (u64, usize)> = BTreeMap::new();
    for cut in 0..=CUTS {
        let what = format!("seed {seed}, {number} devices, {data:?}, {metadata:?}, cut {cut}");
        let power = Power::endless();
        let powered: Vec<_> = devices.iter().map(|device| PoweredDevice::new(&power, device)).collect();
        let opened = open(powered.iter().map(|device| device.clone() as _).collect());
        let fs = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(fs.volume().devices().len(), number, "{what}");
        for (name, (seed, len)) in &acknowledged {
            assert_holds(&fs, name, *seed, *len);
        }
        if cut == CUTS {
            write(&fs, "last", seed, 1 << 20).unwrap();
            fs.close().unwrap();
            drop(fs);
            assert_clean(&powered.iter().map(|device| device.clone() as _).collect::<Vec<_>>(), &what);
            return;
        }
        power.end_after(1 + rng.below(80));
        for step in 0.. {
            let (name, content, len) = (format!("{cut}-{step}"), rng.below(1 << 32), 1 + rng.below(300_000) as usize);
            let fsyncs = rng.one_in(2);
            let made = write(&fs, &name, content, len);
            if made.and_then(|file| if fsyncs { fs.fsync(file) } else { fs.sync() }).is_ok() {
                acknowledged.insert(name, (content, len));
            }
            if power.has_ended() {
                break;
            }
        }
        drop(fs);
        // Whole caches are lost, or any of the writes in them.
        let by_device = rng.one_in(2);
        devices = powered
            .iter()
            .map(|device| {
                let whole = rng.one_in(2);
                device.after_cut(|| if by_device { whole } else { rng.one_in(2) })
            })
            .collect();
        assert_kernel_can_mount(&devices, &what);
    }
}

#[test]
fn power_that_fails_again_and_again_leaves_a_volume_to_write_to() {
    let count = std::env::var("UBTRFS_CUTS").ok().and_then(|count| count.parse().ok()).unwrap_or(60);
    (1..=count).for_each(story);
}
