//! A run: the threads that work on the volume at the same time, as a seed chooses them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ubtrfs::testing::Faults;
use ubtrfs::{Filesystem, FreeingLimits, NewInode, Options};
use ubtrfs_mkfs::Profile;
use ubtrfs_server::Pool;
use ubtrfs_simulator::{Profiles, Random, VolumePlan, make_devices, mount, open_volume};
use ubtrfs_threads::atomic::{AtomicBool, AtomicUsize};
use ubtrfs_threads::scheduler::{SchedulePlan, Summary, run};
use ubtrfs_threads::thread;
use ubtrfs_volume::{Device, FaultyDevice, Lasting, Operation, OverlayDevice, RecordingDevice};

use crate::files::File;
use crate::jobs::Job;
use crate::stage::{Notes, Stage, done};
use crate::verdict;
use crate::writer::write;

/// The threads that work on a volume at the same time, and their conditions.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// The seed of all choices and of the schedule.
    pub seed: u64,
    /// Threads that write.
    pub writers: usize,
    /// Operations of each writer.
    pub operations: usize,
    /// Jobs that run beside the writers.
    pub jobs: Vec<Job>,
    /// The device fails at some time.
    pub fails: bool,
    /// The first device fails at times, while each of the others has a copy of everything.
    pub glitches: bool,
    /// Bytes of the volume, instead of what the seed says.
    pub bytes: Option<u64>,
    /// The profiles of a volume on several devices, to which one more device may be added; without
    /// them the volume is on one device, with one copy of everything.
    pub profiles: Option<Profiles>,
    /// Threads that lead fsyncs.
    pub leaders: usize,
    /// Faults that are put into the engine on purpose.
    pub faults: Faults,
    /// The number of crashes that are examined.
    pub crashes: usize,
}

impl Mixture {
    /// Bytes of a volume that is small enough for [`Job::Fill`] to fill it.
    pub const SMALL_VOLUME: u64 = 48 << 20;

    /// Returns the mixture of this seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6d69_7874);
        let mut jobs: Vec<Job> = Vec::new();
        for _ in 0..=random.below(4) {
            jobs.extend(random.pick(Job::ALL).copied().filter(|job| !jobs.contains(job)));
        }
        let writers = 1 + random.below(3) as usize;
        let operations = 6 + random.below(20) as usize;
        let fails = random.one_in(6);
        let leaders = 1 + random.below(3) as usize;
        let faults = Faults::default();
        Self {
            seed,
            writers,
            operations,
            jobs,
            fails,
            glitches: false,
            bytes: None,
            profiles: None,
            leaders,
            faults,
            crashes: 6,
        }
    }

    /// Returns the mixture of this seed on several devices, or on one with two copies. Chunks are
    /// vacated in every way, while snapshots are deleted.
    pub fn on_devices(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6465_7673);
        let mut mixture = Self { fails: false, profiles: random.pick(&Profiles::ALL).copied(), ..Self::new(seed) };
        mixture.jobs.truncate(1);
        let more = [Job::Drop, random.one_of([Job::Balance, Job::Resize, Job::Devices]), Job::Resize];
        for job in &more[..2 + usize::from(random.one_in(2))] {
            if !mixture.jobs.contains(job) {
                mixture.jobs.push(*job);
            }
        }
        mixture
    }

    /// Returns the mixture of this seed on devices that each have a copy of everything. One of them
    /// fails at times and is brought up to the others.
    pub fn on_mirrors(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x6d69_7272);
        let mirrors: Vec<Profiles> = Profiles::ALL.into_iter().filter(Profiles::are_on_each_device).collect();
        let mut mixture =
            Self { fails: false, glitches: true, profiles: random.pick(&mirrors).copied(), ..Self::new(seed) };
        // A read-only volume brings no device up to the others. A crash takes long to examine where
        // much was discarded.
        mixture.jobs.retain(|job| !matches!(job, Job::Remount | Job::Trim));
        mixture.jobs.truncate(1);
        for job in [Job::Glitch, random.one_of([Job::Balance, Job::Drop, Job::Scrub]), Job::Balance] {
            if !mixture.jobs.contains(&job) {
                mixture.jobs.push(job);
            }
        }
        mixture
    }

    /// Returns the mixture of this seed with snapshots that fill a small volume.
    pub fn on_full_volume(seed: u64) -> Self {
        let mut mixture = Self { fails: false, bytes: Some(Self::SMALL_VOLUME), crashes: 1, ..Self::new(seed) };
        mixture.jobs.push(Job::Fill);
        if seed.is_multiple_of(2) && !mixture.jobs.contains(&Job::Resize) {
            mixture.jobs.push(Job::Resize);
        }
        mixture
    }

    /// Runs the mixture. The message of a failure says what happened, and how to run it again.
    pub fn run(&self) -> Result<Summary, String> {
        let (this, notes) = (self.clone(), Arc::new(Mutex::new(Notes::default())));
        let shown = Arc::clone(&notes);
        let result = run(SchedulePlan::new(self.seed), move || {
            let of_run = Notes::default();
            *shown.lock().unwrap_or_else(PoisonError::into_inner) = of_run.clone();
            this.body(of_run);
        });
        result.map_err(|what| {
            let notes = notes.lock().unwrap_or_else(PoisonError::into_inner).last(60);
            format!("{self:?}\n{:?}\nthe last of what happened:\n  {notes}\n{what}", SchedulePlan::new(self.seed))
        })
    }

    fn options(&self, random: &mut Random) -> Options {
        let few = 1 + random.below(4);
        // A tree that is dropped within one commit is never found half dropped.
        let in_steps = random.one_in(2) || self.jobs.contains(&Job::Drop);
        let freeing = if in_steps {
            FreeingLimits { at_once: 4096, per_transaction: few, at_the_end: few, queue: 4 }
        } else {
            FreeingLimits::default()
        };
        Options {
            memory: random.one_of([256 << 10, 1 << 20, 64 << 20]),
            max_inline: random.one_of([0, 2048]),
            commit_interval: Duration::from_millis(random.one_of([1, 30, 5000])),
            compression: None,
            compression_threads: 2,
            discard: random.one_in(3),
            freeing,
            faults: self.faults.clone(),
            ..Options::default()
        }
    }

    fn body(&self, notes: Notes) {
        let mut random = Random::new(self.seed);
        let mut plan = VolumePlan::random(&mut random);
        plan.options.mixed = false;
        plan.options.metadata_profile = Some(Profile::Single);
        plan.options.node_size = plan.options.node_size.map(|size| size.min(16384));
        plan.options.total_bytes = self.bytes.unwrap_or((64 + random.below(64)) << 20);
        if let Some(profiles) = self.profiles {
            plan = plan.with_profiles(profiles);
        }
        let options = self.options(&mut random);
        let mut images = make_devices(&plan.options);
        let of_volume = images.len();
        images.extend(self.profiles.map(|_| OverlayDevice::zeroed(plan.options.total_bytes)));
        let recordings: Vec<_> = RecordingDevice::together(&images).into_iter().map(Arc::new).collect();
        let faulty = Arc::new(FaultyDevice::new(recordings[0].clone()));
        let others = recordings[1..of_volume].iter().map(|device| Arc::clone(device) as Arc<dyn Device>);
        let devices = std::iter::once(faulty.clone() as Arc<dyn Device>).chain(others).collect();
        let fs = done(mount(done(open_volume(devices, false)), options.clone()));
        let mut stage = self.set(&mut random, fs, recordings, notes);
        stage.glitching = self.glitches.then(|| Arc::clone(&faulty));
        let stage = Arc::new(stage);
        if self.fails {
            let operation = random.one_of([Operation::Write, Operation::Write, Operation::Flush]);
            let lasting = if random.one_in(2) { Lasting::Once } else { Lasting::Forever };
            faulty.fail(operation, random.below(60), libc::EIO, lasting);
        }
        let pool = Arc::new(Pool::new(self.leaders));
        let mut threads = Vec::new();
        for writer in 0..self.writers {
            let (stage, pool, seed, operations) = (stage.clone(), pool.clone(), self.seed, self.operations);
            let work = move || write(&stage, &pool, writer, seed, operations);
            threads.push(done(thread::Builder::new().name(format!("writer {writer}")).spawn(work)));
        }
        for (number, job) in self.jobs.iter().enumerate() {
            let (stage, pool, job, seed) = (stage.clone(), pool.clone(), *job, self.seed ^ (number as u64) << 50);
            let work = move || job.work(&stage, &pool, &mut Random::new(seed));
            threads.push(done(thread::Builder::new().name(format!("{job:?}")).spawn(work)));
        }
        for thread in threads {
            assert!(thread.join().is_ok(), "a thread panicked");
        }
        drop(pool);
        verdict::at_the_end(&stage, &options, self.seed, self.crashes);
    }

    /// Makes the files.
    fn set(&self, random: &mut Random, fs: Arc<Filesystem>, devices: Vec<Arc<RecordingDevice>>, notes: Notes) -> Stage {
        let (dir, recording) = (fs.root(), Arc::clone(&devices[0]));
        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let mut files = Vec::new();
        for writer in 0..self.writers {
            for number in 0..=random.below(3) as usize {
                let length = random.one_of([700, 5000, 20_000, 70_000, 300_000]);
                let file = File::new(writer, number, length, recording.len());
                files.push((done(fs.directories().create(dir, &file.name(), &new)), file));
            }
        }
        done(fs.durability().sync());
        Stage {
            fs,
            recording,
            devices,
            dir,
            files,
            fails: self.fails,
            is_tight: self.bytes.is_some() || self.glitches,
            glitching: None,
            is_remounted: AtomicBool::new(self.jobs.contains(&Job::Remount)),
            working: AtomicUsize::new(self.writers + self.jobs.iter().filter(|job| job.is_work()).count()),
            notes,
        }
    }
}
