//! A session that edits a volume. The whole edit becomes durable by one write of the superblocks.

use std::cell::RefCell;
use std::sync::Arc;

use ubtrfs::volume::{DeferredSuperblocks, Device, OpenOptions, Volume};
use ubtrfs::{Errno, Filesystem, KeptCommit, Options};

use crate::error::{Error, Result};
use crate::footprint::Footprint;

/// How many bytes of a device may stay unallocated, besides the first MiB.
const SPARE: u64 = 8 << 20;
/// On a device with many unallocated bytes, the first attempt to shrink it leaves one in so many of
/// them.
const MIN_ROOM: u64 = 16;

/// A volume that is open for an edit, from its top level.
///
/// The engine may commit in between, when it needs memory or space. But it overwrites nothing that
/// the volume on the devices refers to, and its superblocks are not written before
/// [`Self::publish`]. A session that is dropped, or killed, has changed nothing. Only data that is
/// not copied on write (`chattr +C`, preallocated space) is overwritten in place.
#[derive(Debug)]
pub struct Session {
    fs: Arc<Filesystem>,
    deferred: Vec<Arc<DeferredSuperblocks>>,
    /// Keeps the space that the volume on the devices refers to.
    kept: RefCell<Option<KeptCommit>>,
    footprints: RefCell<Vec<Footprint>>,
}

impl Session {
    /// Opens the volume on these devices. A log tree is replayed first, in a commit of its own.
    pub fn open(devices: Vec<Arc<dyn Device>>) -> Result<Self> {
        Self::open_with(devices, Options::default())
    }

    /// Opens the volume with options, except for those that a session has to choose itself: the
    /// subvolume, and when commits happen.
    ///
    /// # Panics
    ///
    /// When opening the volume commits although nothing was left to do (invariant 3).
    pub fn open_with(devices: Vec<Arc<dyn Device>>, options: Options) -> Result<Self> {
        let options = Options { background_commits: false, subvolume_id: Some(0), no_atime: true, ..options };
        let at_rest = Options { begins_at_rest: true, ..options.clone() };
        if let Ok(session) = Self::begin(devices.clone(), at_rest) {
            session.fs.durability().write_again()?;
            return Ok(session);
        }
        // A mount does some work at once or soon: a log replay, the end of a kernel's balance, and
        // writing what a device has missed. It does so by commits, which have to be on the devices
        // before the space that they have freed is reused. Besides, a device that still lags would
        // not get this edit's superblock.
        let catch_up = Options { catches_up_first: true, ..options.clone() };
        Filesystem::open(open_volume(devices.clone())?, catch_up)?.close()?;
        Self::begin(devices, options)
    }

    fn begin(devices: Vec<Arc<dyn Device>>, options: Options) -> Result<Self> {
        let volume = open_volume(devices.clone())?;
        if volume.superblocks().current().log_root.0 == 0 {
            // This precedes keeping superblocks in memory, since no device may refer to space that
            // is overwritten.
            volume.superblocks().level().map_err(ubtrfs::Error::from)?;
        }
        drop(volume);
        let footprints = RefCell::new(devices.iter().map(Footprint::of).collect());
        let deferred: Vec<_> = devices.into_iter().map(|device| Arc::new(DeferredSuperblocks::new(device))).collect();
        let devices = deferred.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        let volume = open_volume(devices)?;
        let published = volume.superblocks().current().generation;
        let fs = Filesystem::open(volume, options)?;
        let kept = RefCell::new(Some(fs.keep_commit_alone()));
        let opened = fs.volume().superblocks().current().generation;
        assert_eq!(opened, published, "invariant 3: a commit was made before the one on the devices is kept");
        Ok(Self { fs, deferred, kept, footprints })
    }

    /// The file system, whose root is the top level of the volume.
    pub fn fs(&self) -> &Arc<Filesystem> {
        &self.fs
    }

    /// Makes the changes so far durable: an edit ends here and another one begins.
    pub fn checkpoint(&self) -> Result<()> {
        self.fs.durability().sync()?;
        // If writing one of several superblocks fails, others may have been written.
        self.footprints.borrow_mut().iter_mut().for_each(Footprint::forget);
        self.write_superblocks()?;
        // This keeps what the volume on the devices refers to now, and frees what only the commit
        // before had.
        drop(self.kept.replace(Some(self.fs.keep_commit_alone())));
        self.footprints.borrow_mut().iter_mut().for_each(Footprint::look_again);
        Ok(())
    }

    /// Shrinks the devices of a new volume to its content. It has not been published before, so no
    /// earlier state has to be kept.
    pub fn shrink(&self) -> Result<()> {
        drop(self.kept.take());
        self.fs.shrink_devices()?;
        let devices: Vec<_> = self.fs.volume().devices().items().iter().map(|device| device.devid).collect();
        for devid in devices {
            // There are gaps of chunks that were removed; the last chunks move there.
            for part in [MIN_ROOM, 2] {
                let Some(device) =
                    self.fs.volume().devices().items().iter().find(|device| device.devid == devid).copied()
                else {
                    break;
                };
                let spare = device.total_bytes.saturating_sub(device.bytes_used);
                let least = device.bytes_used + (spare / part).max(SPARE);
                if device.total_bytes < least + SPARE {
                    break;
                }
                match self.fs.relocator().resize_device(devid, least.next_multiple_of(SPARE), &|_| true) {
                    // There is no gap that is large enough for what moves, or a device can't be so
                    // small.
                    Err(error) if matches!(error.errno(), Errno::NOSPC | Errno::INVAL) => {}
                    done => {
                        done?;
                        break;
                    }
                }
            }
        }
        Ok(self.fs.shrink_devices()?)
    }

    /// Ends an edit that failed. Punches the holes again that an image file had where the edit has
    /// written.
    pub fn abandon(self) {
        let Self { fs, deferred, kept, footprints } = self;
        drop((kept, fs, deferred));
        for footprint in footprints.into_inner() {
            // The edit has failed anyway, and the image is valid with or without the holes.
            let _ = footprint.restore();
        }
    }

    /// Makes the edit durable.
    pub fn publish(self) -> Result<()> {
        self.fs.close()?;
        self.write_superblocks()
    }

    fn write_superblocks(&self) -> Result<()> {
        DeferredSuperblocks::publish_all(&self.deferred).map_err(Error::Superblocks)
    }
}

fn open_volume(devices: Vec<Arc<dyn Device>>) -> Result<Arc<Volume>> {
    let volume = Volume::open(devices, OpenOptions { read_only: false });
    Ok(Arc::new(volume.map_err(ubtrfs::Error::from)?))
}

#[cfg(test)]
mod tests {
    use ubtrfs::Dir;
    use ubtrfs::format::Uuid;
    use ubtrfs::mkfs::{self, MkfsOptions, NewDevice, Profile};
    use ubtrfs::volume::{
        Exclusive, FaultyDevice, FileDevice, Lasting, MemoryDevice, OpenMode, Operation, RecordingDevice, random_fates,
    };

    use super::*;

    const FILES: u64 = 40;

    /// Every file of a volume, with its first byte.
    type Listing = Vec<(String, u8)>;

    fn session(device: &Arc<MemoryDevice>) -> Session {
        Session::open(vec![Arc::clone(device) as _]).unwrap()
    }

    fn seen(device: &Arc<MemoryDevice>) -> Listing {
        seen_on(Arc::new(MemoryDevice::from_bytes(device.to_bytes())))
    }

    fn seen_on(device: Arc<dyn Device>) -> Listing {
        seen_on_all(vec![device])
    }

    fn seen_on_all(devices: Vec<Arc<dyn Device>>) -> Listing {
        let fs = Filesystem::open_devices(devices, Options { read_only: true, ..Options::default() }).unwrap();
        let root = Dir::root(&fs);
        let mut all = Vec::new();
        for entry in root.read_dir("/").unwrap() {
            let name = entry.unwrap().file_name().to_str().unwrap().to_owned();
            let content = root.read(&name).unwrap();
            assert!(content.iter().all(|byte| *byte == content[0]), "{name}");
            all.push((name, content[0]));
        }
        all.sort();
        all
    }

    fn fill(session: &Session, byte: u8) -> ubtrfs::Result<()> {
        let root = Dir::root(session.fs());
        for number in 0..FILES {
            root.write(format!("file{number}"), vec![byte; 1 << 20])?;
        }
        Ok(())
    }

    #[test]
    fn commits_in_between_change_nothing_until_the_edit_is_published() {
        let device = Arc::new(MemoryDevice::new(256 << 20));
        mkfs::make(&[&*device], &MkfsOptions::new(256 << 20)).unwrap();
        let edit = session(&device);
        fill(&edit, 1).unwrap();
        assert!(seen(&device).is_empty());
        edit.publish().unwrap();
        let before = seen(&device);
        assert_eq!(before.len() as u64, FILES);
        let edit = session(&device);
        for byte in 2..5 {
            fill(&edit, byte).unwrap();
            edit.fs().durability().sync().unwrap();
            assert!(seen(&device) == before, "after commit {byte}");
        }
        // The space that the volume refers to is kept even when space is short.
        let more = |number: u64| Dir::root(edit.fs()).write(format!("more{number}"), vec![9; 4 << 20]);
        let full = (0..64).find_map(|number| more(number).err()).unwrap();
        assert_eq!(full.errno(), Errno::NOSPC);
        drop(edit);
        assert!(seen(&device) == before);
        let edit = session(&device);
        fill(&edit, 9).unwrap();
        edit.publish().unwrap();
        assert!(seen(&device).iter().all(|(_, byte)| *byte == 9));
    }

    #[test]
    fn an_edit_that_is_abandoned_leaves_an_image_file_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        for preallocated in [false, true] {
            let path = dir.path().join("image");
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(512 << 20).unwrap();
            if preallocated {
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 512 << 20).unwrap();
            }
            let open = || {
                let device = FileDevice::open(&path, OpenMode::ReadWrite, Exclusive::Yes).unwrap();
                Arc::new(device) as Arc<dyn Device>
            };
            mkfs::make(&[&*open()], &MkfsOptions::new(512 << 20)).unwrap();
            let edit = Session::open(vec![open()]).unwrap();
            fill(&edit, 1).unwrap();
            edit.publish().unwrap();
            let used = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap()) * 512;
            let before = used();
            let edit = Session::open(vec![open()]).unwrap();
            fill(&edit, 2).unwrap();
            edit.fs().durability().sync().unwrap();
            let at_most = used();
            edit.abandon();
            assert_eq!(used(), before, "{preallocated}, {at_most} meanwhile");
            assert!(preallocated || at_most > before);
            assert!(seen_on(open()).iter().all(|(_, byte)| *byte == 1));
        }
    }

    /// A mount writes what a device has missed; an edit keeps what the others have.
    #[test]
    fn an_edit_that_fails_leaves_a_volume_with_a_device_that_lags() {
        let new = || Arc::new(MemoryDevice::new(256 << 20));
        let [one, other] = [new(), new()];
        let second = NewDevice { total_bytes: 256 << 20, uuid: Uuid([7; 16]) };
        let (more_devices, data_profile) = (vec![second], Some(Profile::Raid1));
        let options = MkfsOptions { more_devices, data_profile, ..MkfsOptions::new(256 << 20) };
        mkfs::make(&[&*one, &*other], &options).unwrap();
        let seen = |devices: [&Arc<MemoryDevice>; 2]| {
            let copy = |device: &Arc<MemoryDevice>| Arc::new(MemoryDevice::from_bytes(device.to_bytes())) as _;
            seen_on_all(devices.map(copy).to_vec())
        };
        let edit = Session::open(vec![Arc::clone(&one) as _, Arc::clone(&other) as _]).unwrap();
        fill(&edit, 1).unwrap();
        edit.publish().unwrap();
        let late = Arc::new(MemoryDevice::from_bytes(other.to_bytes()));
        let edit = Session::open(vec![Arc::clone(&one) as _, Arc::clone(&other) as _]).unwrap();
        fill(&edit, 2).unwrap();
        edit.publish().unwrap();
        let before = seen([&one, &late]);
        assert!(before.iter().all(|(_, byte)| *byte == 2), "{before:?}");
        let edit = Session::open(vec![Arc::clone(&one) as _, Arc::clone(&late) as _]).unwrap();
        for byte in 3..9 {
            fill(&edit, byte).unwrap();
            edit.fs().durability().sync().unwrap();
        }
        drop(edit);
        assert!(seen([&one, &late]) == before);
        // The late device has everything by now, and gets the next edit, too (invariant 54).
        let alone = |device: &Arc<MemoryDevice>| {
            let copy = Arc::new(MemoryDevice::from_bytes(device.to_bytes()));
            let volume = Volume::open_degraded(vec![copy], OpenOptions { read_only: true }).unwrap();
            let fs = Filesystem::open(Arc::new(volume), Options { read_only: true, ..Options::default() }).unwrap();
            Dir::root(&fs).read("file0").unwrap()[0]
        };
        assert_eq!((alone(&one), alone(&late)), (2, 2));
        let edit = Session::open(vec![Arc::clone(&one) as _, Arc::clone(&late) as _]).unwrap();
        fill(&edit, 9).unwrap();
        edit.publish().unwrap();
        assert_eq!((alone(&one), alone(&late)), (9, 9));
    }

    /// After a later edit, the superblock of that device would no longer show that it lacks
    /// something.
    #[test]
    fn an_edit_is_refused_where_a_device_stays_behind() {
        let [one, other] = [(); 2].map(|()| Arc::new(MemoryDevice::new(128 << 20)));
        let second = NewDevice { total_bytes: 128 << 20, uuid: Uuid([7; 16]) };
        let (more_devices, data_profile) = (vec![second], Some(Profile::Raid1));
        let options = MkfsOptions { more_devices, data_profile, ..MkfsOptions::new(128 << 20) };
        mkfs::make(&[&*one, &*other], &options).unwrap();
        let late = Arc::new(MemoryDevice::from_bytes(other.to_bytes()));
        for _ in 0..2 {
            let edit = Session::open(vec![Arc::clone(&one) as _, Arc::clone(&other) as _]).unwrap();
            fill(&edit, 1).unwrap();
            edit.publish().unwrap();
        }
        let failing = Arc::new(FaultyDevice::new(late));
        failing.fail(Operation::Write, 0, 5, Lasting::Forever);
        let refused = Session::open(vec![Arc::clone(&one) as _, failing]).unwrap_err();
        assert!(refused.to_string().contains("can't be brought up"), "{refused:?}");
        assert_eq!(seen_on_all(vec![one, other]).len() as u64, FILES);
    }

    /// The edit after a crash is durable on each device, whatever the crash left of the edit before
    /// on either (invariants 34 and 54).
    #[test]
    fn the_edit_after_a_crash_is_on_each_device() {
        edit_after_each_crash(Profile::Raid1, 1);
    }

    /// During an edit with several commits, the devices have the old or the new superblock, and all
    /// that both refer to.
    #[test]
    fn edits_of_several_commits_leave_no_device_behind() {
        for profile in [Profile::Single, Profile::Raid0, Profile::Raid1] {
            edit_after_each_crash(profile, 4);
        }
    }

    /// Tests crashes of an edit with so many commits, with the data in this profile.
    fn edit_after_each_crash(profile: Profile, commits: u8) {
        let pair = [(); 2].map(|()| Arc::new(MemoryDevice::new(128 << 20)));
        let second = NewDevice { total_bytes: 128 << 20, uuid: Uuid([7; 16]) };
        let (more_devices, data_profile) = (vec![second], Some(profile));
        let options = MkfsOptions { more_devices, data_profile, ..MkfsOptions::new(128 << 20) };
        mkfs::make(&[&*pair[0], &*pair[1]], &options).unwrap();
        let images = pair.map(|device| RecordingDevice::new(Arc::from(device.to_bytes())).current());
        let recording = RecordingDevice::together(&images).into_iter().map(Arc::new).collect::<Vec<_>>();
        let write = |devices: Vec<Arc<dyn Device>>, byte: u8| -> Result<()> {
            let session = Session::open(devices)?;
            for commit in 0..commits {
                let content = vec![if commit + 1 < commits { 99 } else { byte }; 100_000];
                Dir::root(session.fs()).write("file", content).map_err(crate::error::inside("/"))?;
                session.fs().durability().sync()?;
            }
            session.publish()
        };
        let devices = recording.iter().map(|device| Arc::clone(device) as Arc<dyn Device>).collect();
        write(devices, 1).unwrap();
        let mut lagged = 0;
        for event in 0..=recording[0].len() {
            for seed in 0..6 {
                let states = recording[0].crash_states(event, &mut random_fates(seed * 1000 + event as u64));
                let states: Vec<Arc<dyn Device>> = states.into_iter().map(|state| Arc::new(state) as _).collect();
                lagged += usize::from(!open_volume(states.clone()).unwrap().devices().lagging().is_empty());
                let after = format!("{profile:?}, {commits} commits, {event} events, seed {seed}");
                write(states.clone(), 2).unwrap_or_else(|error| panic!("{after}: {error:?}"));
                assert!(open_volume(states.clone()).unwrap().devices().lagging().is_empty(), "{after}");
                assert_eq!(seen_on_all(states.clone()), [("file".to_owned(), 2)], "{after}");
                for (number, device) in states.into_iter().enumerate().filter(|_| profile == Profile::Raid1) {
                    let volume = Volume::open_degraded(vec![device], OpenOptions { read_only: true }).unwrap();
                    let options = Options { read_only: true, ..Options::default() };
                    let fs = Filesystem::open(Arc::new(volume), options).unwrap();
                    let found = Dir::root(&fs).read("file").unwrap()[0];
                    assert_eq!(found, 2, "{after}: device {number}");
                }
            }
        }
        assert!(lagged > 0 || profile != Profile::Raid1, "no crash left a device behind");
    }

    /// The bytes of a volume with some files, and what it shows before and after [`edit`].
    fn volume() -> (Arc<[u8]>, [Listing; 2]) {
        let device = Arc::new(MemoryDevice::new(128 << 20));
        mkfs::make(&[&*device], &MkfsOptions::new(128 << 20)).unwrap();
        edit(Arc::clone(&device) as _, 1).unwrap();
        let (bytes, before) = (device.to_bytes(), seen(&device));
        edit(Arc::clone(&device) as _, 2).unwrap();
        (bytes.into(), [before, seen(&device)])
    }

    /// Writes the files again, with commits in between.
    fn edit(device: Arc<dyn Device>, byte: u8) -> Result<()> {
        let session = Session::open(vec![device])?;
        let root = Dir::root(session.fs());
        for number in 0..6 {
            root.write(format!("file{number}"), vec![byte; 100_000]).map_err(crate::error::inside("/"))?;
            if number % 2 == 1 {
                session.fs().durability().sync()?;
            }
        }
        session.publish()
    }

    #[test]
    fn a_device_that_fails_leaves_all_of_an_edit_or_nothing_and_success_means_all() {
        const EIO: i32 = 5;
        let (bytes, [before, after]) = volume();
        for operation in [Operation::Read, Operation::Write, Operation::Flush] {
            let counter = Arc::new(FaultyDevice::new(Arc::new(RecordingDevice::new(Arc::clone(&bytes)))));
            edit(counter.clone(), 2).unwrap();
            let total = counter.asked(operation);
            assert!(total > 3, "{operation:?}: {total}");
            let mut failed = 0;
            for successes in 0..total {
                for lasting in [Lasting::Once, Lasting::Forever] {
                    let recording = Arc::new(RecordingDevice::new(Arc::clone(&bytes)));
                    let faulty = Arc::new(FaultyDevice::new(recording.clone()));
                    faulty.fail(operation, successes, EIO, lasting);
                    let outcome = edit(faulty, 2);
                    let now = seen_on(Arc::new(recording.current()));
                    let what = format!("{operation:?} {successes} of {total} fails, {lasting:?}: {outcome:?}");
                    assert!(now == after || (outcome.is_err() && now == before), "{what}");
                    failed += u64::from(outcome.is_err());
                }
            }
            assert!(failed > 0, "{operation:?}");
        }
    }

    /// Writes the files again in three edits of one session.
    fn edit_in_parts(device: Arc<dyn Device>, byte: u8, mut after: impl FnMut()) -> Result<()> {
        let session = Session::open(vec![device])?;
        let root = Dir::root(session.fs());
        for number in 0..6 {
            root.write(format!("file{number}"), vec![byte; 100_000]).map_err(crate::error::inside("/"))?;
            if number % 2 == 1 {
                session.checkpoint()?;
                after();
            }
        }
        session.publish()
    }

    #[test]
    fn a_crash_leaves_what_the_last_checkpoint_made_durable_and_no_half_of_an_edit() {
        let (bytes, [before, _]) = volume();
        let recording = Arc::new(RecordingDevice::new(bytes));
        let mut durable = vec![0];
        edit_in_parts(recording.clone(), 2, || durable.push(recording.len())).unwrap();
        let edited = |parts: usize| {
            let mut listing = before.clone();
            listing.iter_mut().take(2 * parts).for_each(|(_, byte)| *byte = 2);
            listing
        };
        for event in 0..=recording.len() {
            for seed in 0..4 {
                let crashed = recording.crash_state(event, &mut random_fates(seed * 1000 + event as u64));
                let now = seen_on(Arc::new(crashed));
                let least = durable.iter().filter(|end| **end <= event).count() - 1;
                let is_one = (least..=3).any(|parts| now == edited(parts));
                assert!(is_one, "after {event} events, {least} checkpoints, seed {seed}: {now:?}");
            }
        }
        assert_eq!(durable.len(), 4);
    }

    #[test]
    fn a_checkpoint_frees_what_was_replaced_before_it() {
        let device = Arc::new(MemoryDevice::new(192 << 20));
        mkfs::make(&[&*device], &MkfsOptions::new(192 << 20)).unwrap();
        let edit = session(&device);
        for byte in 1..8 {
            fill(&edit, byte).unwrap();
            edit.checkpoint().unwrap();
            assert!(seen(&device).iter().all(|(_, seen)| *seen == byte), "{byte}");
        }
    }

    #[test]
    fn what_an_edit_wrote_and_replaced_again_is_free_before_its_end() {
        let device = Arc::new(MemoryDevice::new(192 << 20));
        mkfs::make(&[&*device], &MkfsOptions::new(192 << 20)).unwrap();
        let edit = session(&device);
        fill(&edit, 1).unwrap();
        edit.publish().unwrap();
        let before = seen(&device);
        let edit = session(&device);
        // Together these writes are many times as large as the device.
        for byte in 2..22 {
            fill(&edit, byte).unwrap();
            edit.fs().durability().sync().unwrap();
            assert!(seen(&device) == before, "after commit {byte}");
        }
        edit.publish().unwrap();
        assert!(seen(&device).iter().all(|(_, byte)| *byte == 21));
    }

    /// Writes the files again and again, so that later commits reuse the space of earlier ones.
    fn edit_often(device: Arc<dyn Device>, byte: u8) -> Result<()> {
        let session = Session::open(vec![device])?;
        let root = Dir::root(session.fs());
        for round in (0..10).rev() {
            for number in 0..6 {
                let content = vec![byte + round; 1 << 20];
                root.write(format!("file{number}"), content).map_err(crate::error::inside("/"))?;
            }
            session.fs().durability().sync()?;
        }
        session.publish()
    }

    #[test]
    fn a_crash_leaves_what_was_before_an_edit_though_it_used_space_twice() {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let options = MkfsOptions { mixed: true, ..MkfsOptions::new(64 << 20) };
        mkfs::make(&[&*device], &options).unwrap();
        edit(Arc::clone(&device) as _, 1).unwrap();
        let (bytes, before): (Arc<[u8]>, _) = (device.to_bytes().into(), seen(&device));
        edit_often(Arc::clone(&device) as _, 2).unwrap();
        let after = seen(&device);
        let recording = Arc::new(RecordingDevice::new(bytes));
        edit_often(recording.clone(), 2).unwrap();
        let events = recording.len();
        for event in (0..=events).step_by(7).chain([events]) {
            let crashed = recording.crash_state(event, &mut random_fates(event as u64));
            let now = seen_on(Arc::new(crashed));
            assert!(now == after || (event < events && now == before), "after {event} of {events} events: {now:?}");
        }
    }

    #[test]
    fn a_crash_leaves_all_of_an_edit_or_nothing_and_all_once_it_is_published() {
        let (bytes, [before, after]) = volume();
        let recording = Arc::new(RecordingDevice::new(bytes));
        edit(recording.clone(), 2).unwrap();
        let events = recording.len();
        for event in 0..=events {
            for seed in 0..4 {
                let crashed = recording.crash_state(event, &mut random_fates(seed * 1000 + event as u64));
                let now = seen_on(Arc::new(crashed));
                let is_whole = now == after || (event < events && now == before);
                assert!(is_whole, "after {event} of {events} events, seed {seed}: {now:?}");
            }
        }
    }
}
