//! The power of a machine with several devices fails again and again, also while it recovers from
//! the last time. Each device loses any of the writes that it has not flushed. Nothing that was
//! acknowledged is lost, the volume can be written to, and all blocks that the newest superblock
//! refers to, which the kernel uses, are there (invariant 54). This also holds while devices are
//! added, removed, replaced and resized.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs::mkfs::Profile;
use ubtrfs::testing::OverlayDevice;
use ubtrfs::{Errno, Filesystem, ReplaceOptions, VacateProgress};
use ubtrfs_format::items::{BalanceFlags, BalanceItem};
use ubtrfs_format::{SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock};
use ubtrfs_random::Rng;
use ubtrfs_testkit::seeds::many_seeds;
use ubtrfs_volume::{Buffer, Device, DeviceWrite, SharedBuffer};

use crate::common::power::{Power, PoweredDevice};
use crate::common::volumes::{SIZE, assert_clean, assert_holds, blank, open, volume, write};

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

/// Returns the superblock of a device, if it has one.
fn superblock(device: &dyn Device) -> Option<Superblock> {
    let mut bytes = vec![0; SUPERBLOCK_SIZE];
    device.read_at(SUPERBLOCK_COPIES[0], &mut bytes).unwrap();
    Superblock::parse(&bytes, SUPERBLOCK_COPIES[0]).ok()
}

/// Asserts that the volume can be mounted as by the kernel, which reads all devices by the newest
/// superblock that one of them has.
fn assert_kernel_can_mount(devices: &[OverlayDevice], what: &str) {
    let age = |it: &Superblock| (it.generation, it.log_root.0 != 0);
    let newest = devices.iter().filter_map(|device| superblock(device)).max_by_key(age).unwrap();
    let as_seen = devices.iter().map(|device| {
        let seen = device.fork();
        let own = Superblock { dev_item: superblock(device).unwrap().dev_item, ..newest.clone() };
        let data = SharedBuffer::from(Buffer::from(&own.to_bytes().unwrap()[..]));
        seen.submit(vec![DeviceWrite { at: SUPERBLOCK_COPIES[0], data }]).wait().unwrap();
        Arc::new(seen) as Arc<dyn Device>
    });
    assert_clean(&as_seen.collect::<Vec<_>>(), &format!("{what}, by generation {}", newest.generation.0));
}

/// A machine with devices, of which the volume has some.
struct Machine {
    what: String,
    rng: Rng,
    devices: Vec<OverlayDevice>,
    /// Content and length of the acknowledged files, by name.
    acknowledged: BTreeMap<String, (u64, usize)>,
    names: u64,
}

impl Machine {
    fn new(seed: u64, blank_ones: usize) -> Self {
        let mut rng = Rng::new(seed);
        let (number, data, metadata) = PROFILES[rng.below(PROFILES.len() as u64) as usize];
        let mut devices = volume(number, data, metadata);
        devices.extend((0..blank_ones).map(|_| blank()));
        let what = format!("seed {seed}, {number} devices, {data:?}, {metadata:?}");
        Self { what, rng, devices, acknowledged: BTreeMap::new(), names: 0 }
    }

    /// Returns all devices with power, and those of them that have a superblock of the volume.
    fn start(&self, power: &Arc<Power>) -> (Vec<Arc<PoweredDevice>>, Vec<Arc<dyn Device>>) {
        let powered: Vec<_> = self.devices.iter().map(|device| PoweredDevice::new(power, device)).collect();
        let found = powered.iter().filter(|device| superblock(&***device).is_some());
        let found = found.map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        (powered, found)
    }

    fn open(&self, found: &[Arc<dyn Device>]) -> Arc<Filesystem> {
        let fs = open(found.to_vec()).unwrap_or_else(|error| panic!("{}: {error:?}", self.what));
        for (name, (content, len)) in &self.acknowledged {
            assert_holds(&fs, name, *content, *len);
        }
        fs
    }

    /// Writes a file. Returns whether that was acknowledged.
    fn write(&mut self, fs: &Filesystem) -> bool {
        self.names += 1;
        let (name, content) = (format!("file {}", self.names), self.rng.below(1 << 32));
        let (len, fsyncs) = (1 + self.rng.below(300_000) as usize, self.rng.one_in(2));
        let made = write(fs, &name, content, len);
        let is_done =
            made.and_then(|file| if fsyncs { fs.durability().fsync(file) } else { fs.durability().sync() }).is_ok();
        if is_done {
            self.acknowledged.insert(name, (content, len));
        }
        is_done
    }

    /// Cuts the power: devices lose either their whole caches, or any of the writes in them.
    fn lose_power(&mut self, powered: &[Arc<PoweredDevice>]) {
        let by_device = self.rng.one_in(2);
        let rng = &mut self.rng;
        let left = |device: &Arc<PoweredDevice>| {
            let whole = rng.one_in(2);
            device.after_cut(|| if by_device { whole } else { rng.one_in(2) })
        };
        self.devices = powered.iter().map(left).collect();
    }

    /// Asserts in the end that everything is there, and sound.
    fn finish(mut self) {
        let (_, found) = self.start(&Power::endless());
        let fs = self.open(&found);
        if fs.volume().replacement().state().is_some() {
            fs.replacer().run(&mut |_| true).unwrap_or_else(|error| panic!("{}: {error:?}", self.what));
        }
        assert!(self.write(&fs), "{}", self.what);
        let members: Vec<_> = fs.volume().devices().items().iter().map(|item| (item.devid, item.uuid)).collect();
        fs.close().unwrap();
        drop(fs);
        let is_member = |device: &&Arc<dyn Device>| {
            let own = superblock(&***device).map(|own| own.dev_item);
            own.is_some_and(|own| members.contains(&(own.devid, own.uuid)))
        };
        assert_clean(&found.iter().filter(is_member).cloned().collect::<Vec<_>>(), &self.what);
    }

    /// Changes the devices of the volume, or the chunks on them. Only the power may prevent that,
    /// or a lack of space or devices.
    fn maintain(&mut self, fs: &Filesystem, powered: &[Arc<PoweredDevice>]) {
        let members = fs.volume().devices().items();
        let some = members[self.rng.below(members.len() as u64) as usize].devid;
        let blank = powered.iter().find(|device| superblock(&***device).is_none()).cloned();
        let goes_on = |_: &VacateProgress| true;
        let done = match (self.rng.below(5), blank) {
            (0, Some(blank)) => fs.add_device(blank).map(drop),
            (1, _) => fs.relocator().remove_device(some, &goes_on),
            (2, Some(blank)) => fs
                .replacer()
                .begin(some, blank, ReplaceOptions::default())
                .and_then(|()| fs.replacer().run(&mut |_| true)),
            (3, _) => fs.relocator().resize_device(some, SIZE - self.rng.below(3) * (16 << 20), &goes_on),
            _ => {
                let balance = BalanceItem { flags: BalanceFlags::DATA, ..BalanceItem::default() };
                fs.balancer().start(&balance, &|_| true).map(drop)
            }
        };
        if let Err(error) = done {
            let allowed = [
                Errno::IO,
                Errno::ROFS,
                Errno::NOSPC,
                Errno::INVAL,
                Errno::FBIG,
                Errno::CANCELED,
                Errno::INPROGRESS,
                Errno::BUSY,
            ];
            assert!(allowed.contains(&error.errno()), "{}: {error:?}", self.what);
        }
    }
}

fn story(seed: u64) {
    let mut machine = Machine::new(seed, 0);
    for cut in 0..CUTS {
        let power = Power::endless();
        let (powered, found) = machine.start(&power);
        let fs = machine.open(&found);
        assert_eq!(fs.volume().devices().items().len(), powered.len(), "{}", machine.what);
        power.end_after(1 + machine.rng.below(80));
        while !power.has_ended() {
            machine.write(&fs);
        }
        drop(fs);
        machine.lose_power(&powered);
        assert_kernel_can_mount(&machine.devices, &format!("{}, cut {cut}", machine.what));
    }
    machine.finish();
}

fn story_of_devices(seed: u64) {
    let mut machine = Machine::new(seed, 2);
    for _ in 0..CUTS {
        let power = Power::endless();
        let (powered, found) = machine.start(&power);
        let fs = machine.open(&found);
        power.end_after(1 + machine.rng.below(300));
        if fs.volume().replacement().state().is_some() {
            let _ = if machine.rng.one_in(2) { fs.replacer().run(&mut |_| true) } else { fs.replacer().cancel() };
        }
        for _ in 0..6 {
            machine.write(&fs);
            if !power.has_ended() {
                machine.maintain(&fs, &powered);
            }
        }
        drop(fs);
        machine.lose_power(&powered);
    }
    machine.finish();
}

#[test]
fn power_that_fails_again_and_again_leaves_a_volume_to_write_to() {
    many_seeds(12, 10).into_iter().for_each(story);
}

#[test]
fn power_that_fails_while_devices_are_added_and_removed_leaves_a_volume_to_write_to() {
    many_seeds(12, 10).into_iter().for_each(story_of_devices);
}
