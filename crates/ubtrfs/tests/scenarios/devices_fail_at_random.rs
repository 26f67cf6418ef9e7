//! Programs work for long on volumes whose devices fail at random, one at a time. Meanwhile devices
//! are scrubbed, replaced, removed and added, and lose power one after the other. No program gets
//! an error, each reads what it wrote, and in the end the volume is whole (invariant 34).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ubtrfs::mkfs::Profile;
use ubtrfs::{Errno, Filesystem, InodeId, NewInode, Options, RenameFlags, ReplaceOptions, ScrubOptions};
use ubtrfs::{SetAttributes, WriteAt};
use ubtrfs_format::items::{BalanceArgs, BalanceFilters, BalanceFlags, BalanceItem};
use ubtrfs_format::{DeviceId, TreeId};
use ubtrfs_testkit::seeds::{seeds, soaks};
use ubtrfs_volume::{Device, OpenOptions, OverlayDevice, Rng, Volume};

use crate::common::failing::{FailingDevice, Health};
use crate::common::pattern;
use crate::common::volumes::{assert_clean, assert_holds, blank, root, volume, write};

const PROGRAMS: u64 = 3;
const MAX_FILES: u64 = 10;
const MAX_BYTES: u64 = 700_000;
/// How long a soak takes, unless `UBTRFS_MINUTES` says otherwise.
const MINUTES: u64 = 60;

/// Prints the story in which a test fails.
struct Story(String);

impl Drop for Story {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in this story: {}", self.0);
        }
    }
}

/// A program that works in a directory of its own, and knows the contents of its files.
struct Program {
    directory: String,
    random: Rng,
    files: BTreeMap<String, Vec<u8>>,
}

impl Program {
    fn new(number: u64, seed: u64) -> Self {
        let random = Rng::new(seed * 100 + number);
        Self { directory: format!("program {number}"), random, files: BTreeMap::new() }
    }

    fn directory(&self, fs: &Filesystem) -> InodeId {
        fs.directories().lookup(root(), self.directory.as_bytes()).unwrap_or_else(|_| {
            let new = NewInode { mode: 0o040_755, ..NewInode::default() };
            fs.directories().create(root(), self.directory.as_bytes(), &new).unwrap()
        })
    }

    fn some_file(&mut self) -> Option<String> {
        let place = self.random.below(self.files.len().max(1) as u64);
        self.files.keys().nth(place as usize).cloned()
    }

    /// Performs a random operation.
    fn work(&mut self, fs: &Filesystem) {
        let dir = self.directory(fs);
        let name = format!("file {}", self.random.below(MAX_FILES));
        match self.random.below(10) {
            0..=4 => self.write(fs, dir, &name),
            5 => {
                if let Some(name) = self.some_file() {
                    fs.directories().unlink(dir, name.as_bytes()).unwrap();
                    self.files.remove(&name);
                }
            }
            6 => {
                if let Some(old) = self.some_file().filter(|old| *old != name) {
                    fs.directories().rename(dir, old.as_bytes(), dir, name.as_bytes(), RenameFlags::default()).unwrap();
                    let content = self.files.remove(&old).unwrap();
                    self.files.insert(name, content);
                }
            }
            7 => self.truncate(fs, dir),
            8 => self.verify_one(fs, dir),
            _ => fs.durability().sync().unwrap(),
        }
        fs.references().forget(dir, 1);
    }

    fn write(&mut self, fs: &Filesystem, dir: InodeId, name: &str) {
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let (content, file) = match self.files.get_mut(name) {
            Some(content) => (content, fs.directories().lookup(dir, name.as_bytes()).unwrap()),
            None => (
                self.files.entry(name.to_owned()).or_default(),
                fs.directories().create(dir, name.as_bytes(), &new).unwrap(),
            ),
        };
        let at = self.random.below(MAX_BYTES);
        let most = if self.random.below(3) == 0 { MAX_BYTES } else { 5000 };
        let len = 1 + self.random.below(most);
        let end = (at + len).min(MAX_BYTES) as usize;
        let at = (at as usize).min(end - 1);
        let bytes = pattern(self.random.next_u64() >> 20, end - at);
        fs.files().write(file, WriteAt::Offset(at as u64), &bytes, false).unwrap();
        if content.len() < end {
            content.resize(end, 0);
        }
        content[at..end].copy_from_slice(&bytes);
        if self.random.below(2) == 0 {
            fs.durability().fsync(file).unwrap();
        }
        fs.references().forget(file, 1);
    }

    fn truncate(&mut self, fs: &Filesystem, dir: InodeId) {
        let Some(name) = self.some_file() else { return };
        let size = self.random.below(MAX_BYTES);
        let file = fs.directories().lookup(dir, name.as_bytes()).unwrap();
        fs.inodes().set_attributes(file, &SetAttributes { size: Some(size), ..SetAttributes::default() }).unwrap();
        self.files.get_mut(&name).unwrap().resize(size as usize, 0);
        fs.references().forget(file, 1);
    }

    fn verify_one(&mut self, fs: &Filesystem, dir: InodeId) {
        if let Some(name) = self.some_file() {
            self.verify(fs, dir, &name);
        }
    }

    fn verify(&self, fs: &Filesystem, dir: InodeId, name: &str) {
        let file = fs.directories().lookup(dir, name.as_bytes()).unwrap();
        assert!(
            fs.files().read(file, 0, MAX_BYTES as usize + 1).unwrap() == self.files[name],
            "{}/{name}",
            self.directory
        );
        fs.references().forget(file, 1);
    }

    fn verify_all(&self, fs: &Filesystem) {
        let dir = self.directory(fs);
        self.files.keys().for_each(|name| self.verify(fs, dir, name));
        fs.references().forget(dir, 1);
    }
}

/// A volume, the programs that use it, and the maintenance of its devices.
struct Machine {
    random: Rng,
    devices: Vec<Arc<FailingDevice>>,
    programs: Vec<Program>,
    fs: Option<Arc<Filesystem>>,
    snapshots: u64,
    cuts: u64,
    /// The number of devices that a chunk needs.
    needs: usize,
}

fn shared(devices: &[Arc<FailingDevice>]) -> Vec<Arc<dyn Device>> {
    devices.iter().map(|device| device.clone() as _).collect()
}

impl Machine {
    fn new(seed: u64) -> (Self, String) {
        let mut random = Rng::new(seed);
        let layouts = [
            (2, Profile::Raid1, Profile::Raid1, 2),
            (3, Profile::Raid1, Profile::Raid1, 2),
            (4, Profile::Raid10, Profile::Raid1c3, 3),
            (4, Profile::Raid1c3, Profile::Raid1c4, 4),
            (4, Profile::Raid1, Profile::Raid10, 2),
        ];
        let (count, data, metadata, needs) = layouts[random.below(layouts.len() as u64) as usize];
        let devices = volume(count, data, metadata).into_iter();
        let devices = devices.map(|device| FailingDevice::new(device, random.next_u64())).collect();
        let programs = (1..=PROGRAMS).map(|number| Program::new(number, seed)).collect();
        let mut machine = Self { random, devices, programs, fs: None, snapshots: 0, cuts: 0, needs };
        machine.mount();
        (machine, format!("seed {seed}: {count} devices, data {data:?}, metadata {metadata:?}"))
    }

    fn fs(&self) -> &Arc<Filesystem> {
        self.fs.as_ref().unwrap()
    }

    fn mount(&mut self) {
        let alive: Vec<_> = self.devices.iter().filter(|device| device.health() != Health::Dead).cloned().collect();
        let open = if alive.len() < self.devices.len() { Volume::open_degraded } else { Volume::open };
        let volume = open(shared(&alive), OpenOptions::default()).or_else(|_| {
            // A superblock could not be read, so the volume is opened without the devices that are
            // not well.
            let well: Vec<_> = alive.iter().filter(|device| device.health() == Health::Well).cloned().collect();
            Volume::open_degraded(shared(&well), OpenOptions::default())
        });
        let options = Options { memory: 4 << 20, commit_interval: Duration::from_millis(200), ..Options::default() };
        self.fs = Some(Filesystem::open(Arc::new(volume.unwrap()), options).unwrap());
    }

    fn unmount(&mut self) {
        let fs = self.fs.take().unwrap();
        fs.close().unwrap();
        assert_eq!(fs.abort_reason(), None);
    }

    /// Lets the programs work during the maintenance of the volume.
    fn work_during(&mut self, steps: u64, maintenance: impl FnOnce(&Filesystem) + Send) {
        let fs = Arc::clone(self.fs());
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for program in &mut self.programs {
                let (fs, is_done) = (&fs, &is_done);
                scope.spawn(move || {
                    let mut done = 0;
                    while done < steps || !is_done.load(Ordering::Acquire) {
                        program.work(fs);
                        done += 1;
                    }
                });
            }
            maintenance(&fs);
            is_done.store(true, Ordering::Release);
        });
    }

    /// One round: a device begins to fail, maintenance takes place, the device is well again, and
    /// everything is checked.
    fn round(&mut self) -> String {
        let healths = [Health::Flaky, Health::Lying, Health::Dead, Health::Glitching];
        let (ill, health) =
            (self.random.below(self.devices.len() as u64) as usize, healths[self.random.below(4) as usize]);
        let care = self.random.below(7);
        let story = format!("device {} {health:?}, care {care}", ill + 1);
        let steps = 10 + self.random.below(30);
        self.devices[ill].become_so(health);
        match care {
            1 => self.replace(ill, steps),
            2 => self.snapshot(steps),
            3 => self.work_during(steps, balance),
            // Without the device there are enough devices for new chunks, which programs may need.
            4 if self.devices.len() > self.needs => {
                self.work_during(steps, |_| {});
                self.unmount();
                self.mount();
                self.work_during(steps, |_| {});
            }
            0 | 4 => self.work_during(steps, |_| {}),
            5 => self.work_during(steps, |fs| {
                // Data on the device can't be mended while the device fails.
                let _ = fs.scrubber().run(ScrubOptions::default(), &mut |_| true);
            }),
            _ => self.add_and_remove(ill, steps),
        }
        self.heal(ill);
        self.programs.iter().for_each(|program| program.verify_all(self.fs()));
        if self.random.below(3) > 0 {
            return story;
        }
        let first = self.random.below(self.devices.len() as u64) as usize;
        self.lose_power(first);
        self.programs.iter().for_each(|program| program.verify_all(self.fs()));
        format!("{story}, device {} loses power first", first + 1)
    }

    /// Cuts the power of one device, and that of the others some fsyncs later, which have
    /// succeeded.
    fn lose_power(&mut self, first: usize) {
        let fs = self.fs.take().unwrap();
        fs.durability().sync().unwrap();
        self.cuts += 1;
        let cuts = self.cuts;
        let file = |number: u64| (format!("cut {cuts}, file {number}"), cuts * 1000 + number);
        let (early, late) = (self.random.below(8), 8 + self.random.below(8));
        let mut cut: Vec<Option<OverlayDevice>> = self.devices.iter().map(|_| None).collect();
        for number in 0..late {
            if number == early {
                cut[first] = Some(self.devices[first].inner.fork());
            }
            let (name, seed) = file(number);
            let new = write(&fs, &name, seed, 20_000).unwrap();
            fs.durability().fsync(new).unwrap();
            fs.references().forget(new, 1);
        }
        let devices = self.devices.iter().zip(cut).map(|(device, cut)| cut.unwrap_or_else(|| device.inner.fork()));
        let devices: Vec<_> = devices.map(|device| FailingDevice::new(device, self.random.next_u64())).collect();
        fs.close().unwrap();
        self.devices = devices;
        self.mount();
        (0..late).map(file).for_each(|(name, seed)| assert_holds(self.fs(), &name, seed, 20_000));
        for (name, _) in (0..late).map(file) {
            self.fs().directories().unlink(root(), name.as_bytes()).unwrap();
        }
        self.fs().scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap();
        assert_eq!(self.fs().volume().devices().lagging(), []);
    }

    /// Makes the device well again, and brings it up to the others.
    fn heal(&mut self, ill: usize) {
        self.devices[ill].become_so(Health::Well);
        // The failures of the device are known when its writes in flight have been waited for.
        self.fs().durability().sync().unwrap();
        // A device that was left out takes part again from the next mount on.
        if self.random.below(2) == 0 || !self.fs().volume().devices().missing().is_empty() {
            self.unmount();
            self.mount();
        }
        self.fs().scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap();
        let found = self.fs().scrubber().run(ScrubOptions::default(), &mut |_| true).unwrap();
        assert_eq!(found.errors(), 0, "{found:?}");
        assert_eq!(self.fs().volume().devices().lagging(), []);
    }

    /// Replaces the ill device by a new one.
    fn replace(&mut self, ill: usize, steps: u64) {
        let Some(old) = self.number_of(ill) else { return self.work_during(steps, |_| {}) };
        let new = FailingDevice::new(blank(), self.random.next_u64());
        let target = Arc::clone(&new) as Arc<dyn Device>;
        self.work_during(steps, |fs| {
            fs.replacer().begin(old, target, ReplaceOptions::default()).unwrap();
            fs.replacer().run(&mut |_| true).unwrap();
        });
        self.devices[ill] = new;
    }

    /// Returns the number of a device, or `None` if the volume has been mounted without it.
    fn number_of(&self, place: usize) -> Option<DeviceId> {
        Volume::superblock_of(&*self.devices[place].inner).map(|superblock| superblock.dev_item.devid)
    }

    fn snapshot(&mut self, steps: u64) {
        self.snapshots += 1;
        let number = self.snapshots;
        self.work_during(steps, |fs| {
            fs.subvolumes().snapshot(TreeId::FS, root(), format!("snapshot {number}").as_bytes(), false).unwrap();
            if number > 2 {
                fs.subvolumes().delete_subvolume(root(), format!("snapshot {}", number - 2).as_bytes()).unwrap();
            }
        });
    }

    /// Adds a new device, and removes the ill one.
    fn add_and_remove(&mut self, ill: usize, steps: u64) {
        let Some(old) = self.number_of(ill) else { return self.work_during(steps, |_| {}) };
        let new = FailingDevice::new(blank(), self.random.next_u64());
        let added = Arc::clone(&new) as Arc<dyn Device>;
        let mut is_removed = false;
        self.work_during(steps, |fs| {
            fs.add_device(added).unwrap();
            is_removed = match fs.relocator().remove_device(old, &|_| true) {
                Ok(()) => true,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::NOSPC, "{error:?}");
                    false
                }
            };
        });
        if is_removed {
            self.devices[ill] = new;
        } else {
            self.devices.push(new);
        }
    }

    /// Checks that the volume is whole.
    fn check(&mut self, what: &str) {
        self.unmount();
        assert_clean(&shared(&self.devices), what);
        self.mount();
        self.programs.iter().for_each(|program| program.verify_all(self.fs()));
    }
}

fn balance(fs: &Filesystem) {
    let args = BalanceArgs { usage: 60, filters: BalanceFilters::USAGE, ..BalanceArgs::default() };
    let flags = BalanceFlags::DATA | BalanceFlags::METADATA;
    let balance = BalanceItem { flags, data: args, metadata: args, ..BalanceItem::default() };
    if let Err(error) = fs.balancer().start(&balance, &|_| true) {
        assert_eq!(error.errno(), Errno::NOSPC, "{error:?}");
    }
}

fn story(seed: u64, rounds: u32) {
    let (mut machine, layout) = Machine::new(seed);
    let mut story = Story(layout);
    for round in 0..rounds {
        let events = machine.round();
        story.0 = format!("{}; {events}", story.0);
        if round % 3 == 2 {
            machine.check(&story.0);
        }
    }
    machine.check(&story.0);
    machine.unmount();
}

#[test]
fn no_error_reaches_a_program_and_nothing_is_lost() {
    if !soaks() {
        return seeds(6).into_iter().for_each(|seed| story(seed, 3));
    }
    let minutes = std::env::var("UBTRFS_MINUTES").map_or(MINUTES, |minutes| minutes.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(minutes * 60);
    let mut seed = 0;
    while Instant::now() < end {
        seed += 1;
        story(seed, 12);
    }
    eprintln!("{seed} stories");
}
