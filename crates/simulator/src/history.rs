//! A history: one seed determines the volume, the options of its mount and the operations.

use std::sync::Arc;

use ubtrfs::{Compression, CompressionMode, FreeingLimits, Options, WriteAt};
use ubtrfs_format::TreeId;
use ubtrfs_volume::{Device, OverlayDevice, RecordingDevice};

use crate::generate::FILLER;
use crate::perform::Tolerance;
use crate::{
    CrashPoint, Failure, Generator, Habits, Judge, Operation, Path, Profiles, Random, Session, VolumePlan, What,
    make_devices,
};

/// A history before it runs.
#[derive(Clone, Debug)]
pub struct History {
    /// The seed, which determines everything.
    pub seed: u64,
    /// The volume.
    pub plan: VolumePlan,
    /// The options of its mount.
    pub options: Options,
    /// The kinds of operations.
    pub habits: Habits,
    /// The device may fail.
    pub faults: bool,
}

/// Operations of a usual history.
const LENGTH: usize = 70;
/// Operations of a history with many commits: enough for nodes and data to be written to space that
/// was used before.
const LONG: usize = 230;

/// A history that has run.
#[derive(Debug)]
pub struct Recorded {
    /// The seed.
    pub seed: u64,
    /// The first device, whose recording has the timeline of all devices.
    pub recording: Arc<RecordingDevice>,
    /// What was promised.
    pub judge: Judge,
    /// The operations, each with the number of events before it.
    pub operations: Vec<(usize, Operation)>,
    /// Why the engine turned read-only, if it did.
    pub aborted: Option<String>,
    /// Operations that failed because the volume was full or the device failed.
    pub tolerated: usize,
}

impl Recorded {
    /// Returns the failure of a crash at this point, with the operations before it.
    pub(crate) fn failure(&self, point: CrashPoint, what: String) -> Failure {
        let before = self.operations.iter().take_while(|(began, _)| *began <= point.event);
        Failure { seed: self.seed, operations: before.cloned().collect(), crash: Some(point), what }
    }
}

/// The layer between the engine and the recording device.
pub type Wrap<'a> = &'a (dyn Fn(Arc<RecordingDevice>) -> Arc<dyn Device> + Sync);

/// Returns how the volume of a seed is compressed; three quarters of all volumes are.
fn compression(seed: u64) -> Option<CompressionMode> {
    let mut random = Random::new(seed ^ 0xc0de);
    let algorithm = random.one_of([None, Some(Compression::Zlib), Some(Compression::Lzo), Some(Compression::Zstd)])?;
    Some(CompressionMode { algorithm, level: random.one_of([0, 1, 9]), force: random.one_in(2) })
}

impl History {
    /// Returns the history of this seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let plan = VolumePlan::random(&mut random);
        let options = Options {
            memory: random.one_of([256 << 10, 1 << 20, 64 << 20]),
            no_atime: random.one_in(2),
            max_inline: random.one_of([0, 2048, 2048]),
            background_commits: false,
            // Mounts this subvolume, whatever the default is.
            subvolume_id: Some(TreeId::FS.0),
            ..Options::default()
        };
        let (huge, eager) = (random.one_in(3), random.one_in(3));
        // An operation of several steps that is refused for lack of space may have done the first
        // step.
        let privileges = !plan.tight;
        let fsyncs = !eager && random.one_in(2);
        let freeing = if random.one_in(4) {
            // Unlinked files are freed in small steps.
            let (at_once, per_transaction) = (4096 * random.below(3), 1 + random.below(4));
            FreeingLimits { at_once, per_transaction, at_the_end: per_transaction, queue: 4 }
        } else {
            FreeingLimits::default()
        };
        let options = Options { freeing, discard: random.one_in(3), compression: compression(seed), ..options };
        let habits = Habits {
            remount: true,
            privileges,
            large: plan.tight,
            huge,
            eager,
            fsyncs,
            shares: seed % 4 == 2,
            subvolumes: false,
            devices: false,
        };
        Self { seed, plan, options, habits, faults: false }
    }

    /// Returns the history of this seed on a volume with several devices.
    pub fn on_devices(seed: u64, profiles: Profiles) -> Self {
        let mut history = Self::new(seed);
        history.plan = history.plan.with_profiles(profiles);
        history.habits.large = false;
        history.habits.privileges = true;
        history
    }

    /// Returns the history of this seed on a volume whose devices are added, removed and resized,
    /// while subvolumes are deleted.
    pub fn of_changing_devices(seed: u64, profiles: Profiles) -> Self {
        let mut history = Self::on_devices(seed, profiles);
        // An operation that is refused for lack of space has to have done nothing.
        (history.habits.privileges, history.habits.huge) = (false, false);
        (history.habits.devices, history.habits.subvolumes) = (true, true);
        if seed.is_multiple_of(2) {
            history.options.freeing = FreeingLimits { at_once: 4096, per_transaction: 2, at_the_end: 2, queue: 4 };
        }
        history
    }

    /// Returns how many operations the history has by default.
    pub fn length(&self) -> usize {
        if self.habits.eager { LONG } else { LENGTH }
    }

    /// Runs `length` operations, the last of them a sync.
    pub fn run(&self, length: usize) -> Result<Recorded, Failure> {
        self.run_on(length, &|recording| recording)
    }

    /// Runs the history on devices that `wrap` makes.
    pub fn run_on(&self, length: usize, wrap: Wrap<'_>) -> Result<Recorded, Failure> {
        self.run_with(length, wrap, &mut |_| ())
    }

    /// Runs the history on devices that `wrap` makes, and calls `before` before each operation with
    /// its number.
    pub fn run_with(&self, length: usize, wrap: Wrap<'_>, before: &mut dyn FnMut(usize)) -> Result<Recorded, Failure> {
        let mut generator = Generator::new(self.seed ^ 0x5eed, self.habits);
        let mut done = 0;
        let mut filler = self.plan.tight.then(Filler::default);
        self.drive(wrap, &mut |session| {
            if let Some(operation) = filler.as_mut().and_then(|filler| filler.next(session.worker.tolerated)) {
                return Some(operation);
            }
            filler = None;
            done += 1;
            before(done);
            match done {
                _ if done < length => Some(generator.next(&session.worker.model, session.worker.handles.len())),
                _ if done == length => Some(Operation::Look),
                _ => (done == length + 1).then_some(Operation::Sync),
            }
        })
    }

    /// Runs exactly these operations, without those that no longer fit.
    pub fn replay(&self, operations: &[Operation], wrap: Wrap<'_>) -> Result<Recorded, Failure> {
        let mut operations = operations.iter();
        self.drive(wrap, &mut |_| operations.next().cloned())
    }

    fn drive(&self, wrap: Wrap<'_>, next: &mut dyn FnMut(&Session) -> Option<Operation>) -> Result<Recorded, Failure> {
        let fail = |operations: &[(usize, Operation)], what| Failure {
            seed: self.seed,
            operations: operations.to_vec(),
            crash: None,
            what: format!("{what}\nvolume: {:?}\nmount: {:?}", self.plan, self.options),
        };
        let mut images = make_devices(&self.plan.options);
        if self.habits.devices {
            images.push(OverlayDevice::zeroed(self.plan.options.total_bytes));
        }
        let recordings = RecordingDevice::together(&images);
        let recordings: Vec<_> = recordings.into_iter().map(Arc::new).collect();
        let recording = Arc::clone(&recordings[0]);
        let tolerance = Tolerance { no_space: self.plan.tight || self.habits.devices, faults: self.faults };
        let fresh = Judge::new(self.options.clone(), &recording).map_err(|what| fail(&[], what))?;
        let devices = recordings.into_iter().map(wrap).collect();
        let mut session = Session::open_devices(Arc::clone(&recording), devices, self.options.clone(), None, tolerance)
            .map_err(|what| fail(&[], what))?;
        while let Some(operation) = next(&session) {
            session.perform(&operation).map_err(|what| fail(&session.operations, what))?;
            if session.is_aborted() {
                if !self.faults {
                    let reason = session.worker.fs.abort_reason().unwrap_or_default();
                    return Err(fail(&session.operations, format!("the engine gave up: {reason}")));
                }
                break;
            }
        }
        let aborted = session.worker.fs.abort_reason();
        let tolerated = session.worker.tolerated;
        let judge = session.judge(fresh);
        Ok(Recorded { seed: self.seed, recording, judge, operations: session.operations, aborted, tolerated })
    }
}

/// Fills a volume except for a little space.
#[derive(Default)]
struct Filler {
    writes: u64,
    step: usize,
}

impl Filler {
    const STEP: usize = 256 << 10;
    const ROOM: u64 = 64 << 10;

    /// Returns the next operation; `refused` operations so far found the volume full.
    fn next(&mut self, refused: usize) -> Option<Operation> {
        let path = Path(FILLER.to_vec());
        let what = What::At(path.clone());
        self.step += usize::from(self.step == 0 || refused > 0);
        match self.step {
            1 => {
                self.step = 2;
                let target = Path::default();
                let (mode, owner) = (0o100_644, (0, 0));
                Some(Operation::Create { path, mode, owner, rdev: 0, target, xattr: false, open: false })
            }
            2 => {
                self.writes += 1;
                let fill = self.writes;
                Some(Operation::Write { what, at: WriteAt::End, len: Self::STEP, fill, kill_privileges: false })
            }
            3 => {
                let written = self.writes.saturating_sub(1) * Self::STEP as u64;
                Some(Operation::Truncate { what, size: written.saturating_sub(Self::ROOM) })
            }
            _ => None,
        }
    }
}
