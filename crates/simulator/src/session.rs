//! A mounted volume under test: the engine, the model, the recording, and the promises made so far.

use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_volume::{Device, OpenOptions, RecordingDevice, Volume};

use crate::perform::{Tolerance, Worker};
use crate::{Model, Operation, Times};

/// What a commit promises.
#[derive(Clone, Debug)]
pub struct Promise {
    /// The commit.
    pub generation: u64,
    /// Events of the device before the operation began that made the commit.
    pub began: usize,
    /// Events when the commit had returned; `None` if it never did.
    pub returned: Option<usize>,
    /// The volume is in one of these states, entire. Mostly there is one: more where an operation of several steps had
    /// to commit between them.
    pub states: Vec<Model>,
}

/// A mounted volume under test.
pub struct Session {
    /// The engine and the model.
    pub worker: Worker,
    /// What happened to the device.
    pub recording: Arc<RecordingDevice>,
    /// What the commits promise, oldest first. The first is what the session began with.
    pub promises: Vec<Promise>,
    /// The operations, each with the number of events before it.
    pub log: Vec<(usize, Operation)>,
    device: Arc<dyn Device>,
    options: Options,
}

/// Opens the engine on a device.
pub(crate) fn open(device: Arc<dyn Device>, options: Options) -> Result<Arc<Filesystem>, String> {
    let read_only = options.read_only;
    let volume = Volume::open(vec![device], OpenOptions { read_only })
        .map_err(|error| format!("the volume does not open: {error}"))?;
    Filesystem::open(Arc::new(volume), options).map_err(|error| format!("the volume does not mount: {error}"))
}

impl Session {
    /// Mounts `device`, which passes on to `recording`. `model` is what the volume holds, orphans included; `None` for a
    /// new volume.
    pub fn open(
        recording: Arc<RecordingDevice>,
        device: Arc<dyn Device>,
        options: Options,
        model: Option<Model>,
        tolerance: Tolerance,
    ) -> Result<Self, String> {
        let fs = open(Arc::clone(&device), options.clone())?;
        let mut model = match model {
            Some(model) => model,
            None => empty(&fs)?,
        };
        let generation = fs.generation().0;
        let promise = Promise { generation, began: 0, returned: Some(0), states: vec![model.clone()] };
        model.drop_orphans();
        let worker = Worker::new(fs, model, tolerance, true);
        Ok(Self { worker, recording, promises: vec![promise], log: Vec::new(), device, options })
    }

    /// Does an operation on engine and model, and notes what its commits promise. A sentence if the two disagree.
    pub fn perform(&mut self, operation: &Operation) -> Result<(), String> {
        let before = self.worker.model.clone();
        let generation = self.worker.fs.generation().0;
        let began = self.recording.len();
        self.log.push((began, operation.clone()));
        let result = if *operation == Operation::Remount {
            let mounted = self.remount();
            self.note_commits(&before, Vec::new(), generation, began);
            mounted
        } else {
            let result = self.worker.perform(operation);
            let touched = result.as_ref().map(|touched| touched.keys().copied().collect()).unwrap_or_default();
            let between = if is_in_steps(operation) { self.states_between(&before, touched) } else { Vec::new() };
            self.note_commits(&before, between, generation, began);
            result.map(drop)
        };
        result.and_then(|()| self.check_durable(operation)).map_err(|what| format!("{operation:?}: {what}"))
    }

    /// Whether the engine has given up after an error.
    pub fn is_aborted(&self) -> bool {
        self.worker.fs.abort_reason().is_some()
    }

    /// States that a commit in the middle of an operation may hold.
    fn states_between(&self, before: &Model, touched: Vec<ubtrfs::InodeId>) -> Vec<Model> {
        let mut after = self.worker.model.clone();
        after.forget_times(touched.iter().copied());
        let mut without_capability = before.clone();
        for id in touched {
            if without_capability.nodes.contains_key(&id) {
                without_capability.node_mut(id).xattrs.remove(&b"security.capability"[..]);
                without_capability.node_mut(id).times = None;
            }
        }
        vec![after, without_capability]
    }

    fn note_commits(&mut self, before: &Model, between: Vec<Model>, generation: u64, began: usize) {
        let ended = self.recording.len();
        let mut states = vec![before.clone()];
        states.extend(between);
        let now = self.worker.fs.generation().0;
        for generation in generation + 1..=now {
            let returned = Some(ended);
            self.promises.push(Promise { generation, began, returned, states: states.clone() });
        }
        if self.is_aborted() && self.promises.last().is_none_or(|last| last.generation <= now) {
            // The one after it, if a crash had left a trace of a commit of that number.
            for generation in [now + 1, now + 2] {
                self.promises.push(Promise { generation, began, returned: None, states: states.clone() });
            }
        }
    }

    /// After a sync the last commit holds everything, after an fsync the file.
    fn check_durable(&self, operation: &Operation) -> Result<(), String> {
        let Some(last) = self.promises.last().filter(|_| !self.is_aborted()) else { return Ok(()) };
        let model = &self.worker.model;
        let held = |id| last.states.iter().any(|state| state.nodes.get(&id) == model.nodes.get(&id));
        let lost = match operation {
            Operation::Sync => model.nodes.keys().copied().find(|id| !held(*id)),
            Operation::Fsync { what } => self.worker.find(what).filter(|id| !held(*id)),
            _ => None,
        };
        lost.map_or(Ok(()), |id| Err(format!("returned, but no commit holds what changed in inode {}", id.ino)))
    }

    fn remount(&mut self) -> Result<(), String> {
        self.worker.fs.close().map_err(|error| format!("unmounting failed: {error}"))?;
        let fs = open(Arc::clone(&self.device), self.options.clone())?;
        self.worker.fs = fs;
        self.worker.handles.clear();
        self.worker.model.drop_orphans();
        Ok(())
    }
}

/// Whether an operation takes its space in several steps, so that it may commit between them.
fn is_in_steps(operation: &Operation) -> bool {
    match operation {
        Operation::Truncate { .. } => true,
        Operation::Attributes { uid, gid, .. } => uid.is_some() || gid.is_some(),
        Operation::Write { kill_privileges, .. } => *kill_privileges,
        _ => false,
    }
}

/// The model of a volume that holds nothing.
fn empty(fs: &Filesystem) -> Result<Model, String> {
    let root = fs.attributes(fs.root()).map_err(|error| format!("stat of the root: {error}"))?;
    Ok(Model::new(root.id, root.mode, Times { mtime: root.mtime, ctime: root.ctime, btime: root.btime }))
}
