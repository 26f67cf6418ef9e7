//! A small committed volume on which sequences of operations are tried.

use std::slice;
use std::sync::{Arc, LazyLock};

use ubtrfs::Options;
use ubtrfs_mkfs::{MkfsOptions, Profile};
use ubtrfs_volume::{OverlayDevice, RecordingDevice};

use crate::enumerate::{operations, persistence};
use crate::examine::check;
use crate::mounting::{mount as mount_volume, open_volume};
use crate::perform::Tolerance;
use crate::trace::Trace;
use crate::{
    Crashes, Failure, Found, Generator, Habits, Judge, Model, Operation, Random, Session, Wrap, examine, look,
    make_volume,
};

/// A crash state that was found to be as promised.
#[derive(Debug)]
pub struct Examined<'a> {
    /// What was promised.
    pub judge: &'a Judge,
    /// The device after the crash.
    pub device: &'a OverlayDevice,
    /// Events before the crash.
    pub event: usize,
    /// What the volume was found to have.
    pub found: Found,
}

/// A committed volume on which many sequences begin.
pub struct Stage {
    device: OverlayDevice,
    /// Its content.
    pub model: Model,
    judge: Judge,
    /// The layer between the engine and the recording device.
    wrap: Wrap<'static>,
}

impl Stage {
    /// Makes a small volume on which these operations were performed and committed.
    pub fn new(committed: &[Operation]) -> Result<Self, String> {
        static EMPTY: LazyLock<Arc<[u8]>> = LazyLock::new(|| {
            let mut options = MkfsOptions::new(46 << 20);
            options.metadata_profile = Some(Profile::Single);
            make_volume(&options)
        });
        let recording = Arc::new(RecordingDevice::new(EMPTY.clone()));
        let mount = Options { background_commits: false, ..Options::default() };
        let judge = Judge::new(mount, &recording)?;
        let wrap: Wrap<'static> = &|device| device;
        let mut session = open(&recording, &judge, None, wrap)?;
        for operation in committed.iter().chain([&Operation::Sync]) {
            session.perform(operation)?;
        }
        session.worker.fs.close().map_err(|error| error.chain())?;
        let device = recording.current();
        check(slice::from_ref(&device))?;
        Ok(Self { device, model: session.worker.model, judge, wrap })
    }

    /// Takes a volume that another program made, given its bytes.
    pub fn found(bytes: Arc<[u8]>) -> Result<Self, String> {
        let recording = Arc::new(RecordingDevice::new(bytes));
        let mount = Options { background_commits: false, ..Options::default() };
        let device = recording.current();
        let inodes = check(slice::from_ref(&device))?;
        let fs = mount_volume(open_volume(vec![recording], true)?, Options { read_only: true, ..mount.clone() })?;
        let model = look(&fs)?;
        let own_inodes = inodes - model.nodes.len() as u64;
        let judge = Judge { trace: Trace::default(), options: mount, own_inodes, unknown_orphans: false };
        Ok(Self { device, model, judge, wrap: &|device| device })
    }

    /// Returns the stage with other mount options.
    #[must_use]
    pub fn with_options(mut self, change: impl FnOnce(&mut Options)) -> Self {
        change(&mut self.judge.options);
        self
    }

    /// Returns the stage on another device.
    #[must_use]
    pub fn with_device(mut self, wrap: Wrap<'static>) -> Self {
        self.wrap = wrap;
        self
    }

    /// Mounts the volume in its initial state.
    pub fn mount(&self) -> Result<Session, String> {
        let recording = Arc::new(RecordingDevice::on(&self.device));
        open(&recording, &self.judge, Some(self.model.clone()), self.wrap)
    }

    /// Returns a random sequence of so many steps that begins with `open` and ends with a call that
    /// makes something durable. Half of the steps are followed by such a call.
    pub fn wander(&self, open: &[Operation], random: &mut Random, steps: usize) -> Result<Vec<Operation>, String> {
        let mut session = self.mount()?;
        let mut done = open.to_vec();
        open.iter().try_for_each(|operation| session.perform(operation))?;
        for step in 1..=steps {
            let mut next = random.pick(&operations(&session.worker.model)).cloned().unwrap_or_default();
            next.iter().try_for_each(|operation| session.perform(operation))?;
            if step == steps || random.one_in(2) {
                let durable = random.pick(&persistence(&session.worker.model)).cloned();
                durable.iter().try_for_each(|operation| session.perform(operation))?;
                next.extend(durable);
            }
            done.extend(next);
        }
        Ok(done)
    }

    /// Returns so many random operations, of the kinds that histories have, and a sync.
    pub fn improvise(&self, seed: u64, habits: Habits, length: usize) -> Result<Vec<Operation>, String> {
        let mut generator = Generator::new(seed, habits);
        let mut session = self.mount()?;
        let mut done = Vec::with_capacity(length + 1);
        for _ in 0..length {
            let next = generator.next(&session.worker.model, session.worker.handles.len());
            session.perform(&next.numbered(done.len() as u64))?;
            done.push(next);
        }
        done.push(Operation::Sync);
        Ok(done)
    }

    /// Performs these operations, and examines about `budget` of the states that crashes leave,
    /// including the one at the end. Returns how many there were.
    pub fn run(&self, operations: &[Operation], seed: u64, budget: usize) -> Result<usize, Failure> {
        let mut states = 0;
        self.run_with(operations, seed, budget, &mut |_| {
            states += 1;
            Ok(())
        })?;
        Ok(states)
    }

    /// Performs these operations, and examines crash states, each of them also by `more`.
    pub fn run_with(
        &self,
        operations: &[Operation],
        seed: u64,
        budget: usize,
        more: &mut dyn FnMut(&Examined<'_>) -> Result<(), String>,
    ) -> Result<(), Failure> {
        let fail = |what| Failure { seed, operations: Vec::new(), crash: None, what };
        let mut session = self.mount().map_err(fail)?;
        for (number, operation) in operations.iter().enumerate() {
            let result = session.perform(&operation.numbered(number as u64));
            let what = match (result, session.worker.fs.abort_reason()) {
                (Ok(()), None) => continue,
                (Err(what), _) => what,
                (_, Some(reason)) => format!("the engine gave up: {reason}"),
            };
            return Err(Failure { operations: session.operations, ..fail(what) });
        }
        let judge = session.judge(self.judge.clone());
        for (point, device) in Crashes::new(&session.recording, seed, budget) {
            let result = examine(&judge, &device, point.event)
                .and_then(|found| more(&Examined { judge: &judge, device: &device, event: point.event, found }));
            let fail = |what| Failure { operations: session.operations.clone(), crash: Some(point), ..fail(what) };
            result.map_err(fail)?;
        }
        Ok(())
    }
}

fn open(
    recording: &Arc<RecordingDevice>,
    judge: &Judge,
    model: Option<Model>,
    wrap: Wrap<'static>,
) -> Result<Session, String> {
    Session::open(recording.clone(), wrap(recording.clone()), judge.options.clone(), model, Tolerance::default())
}
