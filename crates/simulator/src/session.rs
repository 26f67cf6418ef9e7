//! A mounted volume under test: the engine, the model, the recording, and the trace of the promises
//! so far.

use std::mem;
use std::sync::Arc;

use ubtrfs::{Filesystem, Options};
use ubtrfs_volume::{Device, RecordingDevice};

use crate::look::look;
use crate::mounting::{forks, frees_in_steps, mount, open, open_volume, with_superblocks};
use crate::perform::{Tolerance, Worker};
use crate::trace::{Commit, Promise, Trace};
use crate::version::Version;
use crate::{Body, Judge, Model, Node, Operation, Times};

/// A mounted volume under test.
pub struct Session {
    /// The engine and the model.
    pub worker: Worker,
    /// The recording of the device.
    pub recording: Arc<RecordingDevice>,
    /// The operations so far, and their promises.
    pub trace: Trace,
    /// The operations, each with the number of events before it.
    pub operations: Vec<(usize, Operation)>,
    /// Whether files without names were open at an unmount: a later commit of the next mount frees
    /// them.
    left_orphans: bool,
    options: Options,
}

impl Session {
    /// Mounts `device`, which passes requests on to `recording`. `model` is the content of the
    /// volume, orphans included; `None` for a new volume.
    pub fn open(
        recording: Arc<RecordingDevice>,
        device: Arc<dyn Device>,
        options: Options,
        model: Option<Model>,
        tolerance: Tolerance,
    ) -> Result<Self, String> {
        Self::open_devices(recording, vec![device], options, model, tolerance)
    }

    /// Mounts a volume on several devices, whose common timeline is in `recording`. Some of the
    /// volume's devices may be missing. Devices without a superblock may be added to it.
    pub fn open_devices(
        recording: Arc<RecordingDevice>,
        devices: Vec<Arc<dyn Device>>,
        options: Options,
        model: Option<Model>,
        tolerance: Tolerance,
    ) -> Result<Self, String> {
        let volume = open_volume(with_superblocks(&devices), options.read_only)?;
        let generation = volume.superblocks().current().generation.0;
        let fs = mount(volume, options.clone())?;
        let mut model = match model {
            Some(model) => model,
            None => empty(&fs, fs.root())?,
        };
        let mut trace = Trace::new(model.clone(), generation);
        // A mount commits the content of a log.
        let returned = Some(recording.len());
        for generation in generation + 1..=fs.generation().0 {
            trace.commits.push(Commit { generation, began: 0, returned, versions: 0..1 });
        }
        model.drop_orphans();
        let mut worker = Worker::new(fs, model, tolerance, true);
        worker.devices = devices;
        Ok(Self { worker, recording, trace, operations: Vec::new(), left_orphans: false, options })
    }

    /// Performs an operation on engine and model, and notes what it makes durable. Returns a
    /// sentence if the two disagree.
    pub fn perform(&mut self, operation: &Operation) -> Result<(), String> {
        let generation = self.worker.fs.generation().0;
        let began = self.recording.len();
        let tolerated = self.worker.tolerated;
        self.operations.push((began, operation.clone()));
        let (result, between) = if *operation == Operation::Remount {
            (self.remount(), Vec::new())
        } else {
            let before = self.worker.model.clone();
            let result = self.worker.perform(operation);
            let written = self.worker.take_written_in_place().into_iter();
            self.trace.written_in_place.extend(written.map(|(id, content)| (began, id, content)));
            let mut touched: Vec<_> =
                result.as_ref().map(|touched| touched.keys().copied().collect()).unwrap_or_default();
            if let Operation::Truncate { what, .. } = operation
                && tolerated < self.worker.tolerated
            {
                // The operation may have failed after some of its steps.
                touched.extend(self.worker.find(what));
            }
            let steps = frees_in_steps(&self.options);
            let mut between = states_between(operation, &before, &self.worker.model, &touched, steps);
            if operation.is_durable() && tolerated < self.worker.tolerated && self.is_aborted() {
                between.extend(self.done_all_the_same(operation));
            }
            (result.map(drop), between)
        };
        let has_succeeded = result.is_ok() && tolerated == self.worker.tolerated && !self.is_aborted();
        if has_succeeded && !operation.is_durable() {
            self.note_promise(operation);
        }
        self.note_commits(between, generation, began);
        // An operation that was refused has made nothing durable.
        if has_succeeded && operation.is_durable() && self.worker.fs.generation().0 > generation {
            // The last commit has the operation, and those before it do not.
            let (now, last) = (self.trace.now(), self.worker.fs.generation().0);
            for commit in self.trace.commits.iter_mut().filter(|commit| commit.generation > generation) {
                commit.versions = if commit.generation == last { now..now + 1 } else { now - 1..now };
            }
            self.note_promise(operation);
        }
        // Inodes that wait to be freed, and trees that are being dropped, have inodes that the
        // model does not have.
        let deletes = match operation {
            Operation::DeleteSubvolume { .. } | Operation::ResetSubvolume { .. } => true,
            // The directory may be a subvolume.
            Operation::Rmdir { .. } => !self.worker.fs.subvolumes().deleted_subvolumes().is_empty(),
            _ => false,
        };
        let leaves_some = deletes || (matches!(operation, Operation::Snapshot { .. }) && self.worker.copies_orphans());
        self.left_orphans |= leaves_some;
        result.and_then(|()| self.check_durable(operation)).map_err(|what| format!("{operation:?}: {what}"))
    }

    /// Returns the state of the volume if an operation on a subvolume has taken effect though it
    /// has failed.
    fn done_all_the_same(&self, operation: &Operation) -> Option<Model> {
        let options = Options { read_only: true, ..self.options.clone() };
        let found = open(forks(&self.recording.all_current()), options).and_then(|fs| look(&fs)).ok()?;
        self.worker.done_all_the_same(operation, &found)
    }

    /// Returns the judge of the states that a crash of this history may leave, given that of the
    /// `fresh` volume. It takes the trace, so the session can't perform operations after it.
    pub fn judge(&mut self, fresh: Judge) -> Judge {
        let unknown_orphans = fresh.unknown_orphans || self.left_orphans;
        Judge { trace: mem::take(&mut self.trace), unknown_orphans, ..fresh }
    }

    /// Returns whether the engine has turned read-only after an error.
    pub fn is_aborted(&self) -> bool {
        self.worker.fs.abort_reason().is_some()
    }

    /// Notes the promise of an operation that has succeeded, and that changed nothing in the model.
    fn note_promise(&mut self, operation: &Operation) {
        let (version, returned) = (self.trace.now(), self.recording.len());
        let base = self.trace.commits.last().map_or(0, |commit| commit.versions.start);
        let covers = match operation {
            Operation::Sync => self.trace.everything(version),
            operation if operation.is_durable() => self.trace.everything(version),
            Operation::Fsync { what, data_only } => {
                let Some(id) = self.worker.find(what) else { return };
                self.trace.covered(id, !data_only, base..=base, version)
            }
            _ => return,
        };
        self.trace.promises.push(Promise { returned, version, until: version, covers });
    }

    /// Notes the commits during an operation, and the version that it made.
    fn note_commits(&mut self, between: Vec<Model>, generation: u64, began: usize) {
        let ended = self.recording.len();
        let before = self.trace.now();
        self.trace.versions.extend(between.into_iter().map(|model| Version { began, model }));
        let versions = before..self.trace.now() + 1;
        let now = self.worker.fs.generation().0;
        let commits = &mut self.trace.commits;
        for generation in generation + 1..=now {
            commits.push(Commit { generation, began, returned: Some(ended), versions: versions.clone() });
        }
        if self.worker.fs.abort_reason().is_some() && commits.last().is_none_or(|last| last.generation <= now) {
            // The second one counts if a crash had left a part of a commit with the first number.
            for generation in [now + 1, now + 2] {
                commits.push(Commit { generation, began, returned: None, versions: versions.clone() });
            }
        }
        self.trace.versions.push(Version { began, model: self.worker.model.clone() });
    }

    /// Checks that after a sync the last commit has everything.
    fn check_durable(&self, operation: &Operation) -> Result<(), String> {
        if *operation != Operation::Sync || self.is_aborted() {
            return Ok(());
        }
        let Some(last) = self.trace.commits.last() else { return Ok(()) };
        let model = &self.worker.model;
        let mut states = self.trace.versions[last.versions.clone()].iter().map(|version| &version.model);
        let is_lost = |(id, node): &(&ubtrfs::InodeId, &Arc<Node>), state: &Model| {
            state.nodes.get(id).is_none_or(|committed| !committed.is_like(node))
        };
        let lost = |state: &Model| model.nodes.iter().find(|found| is_lost(found, state)).map(|(id, _)| *id);
        match states.try_fold(None, |_, state| lost(state).map(Some)).flatten() {
            Some(id) => Err(format!("returned, but no commit holds what changed in inode {}", id.ino)),
            None => Ok(()),
        }
    }

    fn remount(&mut self) -> Result<(), String> {
        self.worker.fs.close().map_err(|error| format!("unmounting failed: {}", error.chain()))?;
        let fs = open(with_superblocks(&self.worker.devices), self.options.clone())?;
        self.worker.follow_remount(fs);
        self.left_orphans |= !self.worker.model.orphans().is_empty();
        self.worker.model.drop_orphans();
        Ok(())
    }
}

/// Returns the states that a crash in the middle of an operation may leave, if the operation takes
/// space in several steps, between which it may commit; or, with `steps`, if it truncates a file in
/// steps.
pub(crate) fn states_between(
    operation: &Operation,
    before: &Model,
    after: &Model,
    touched: &[ubtrfs::InodeId],
    steps: bool,
) -> Vec<Model> {
    if !is_in_steps(operation) {
        return Vec::new();
    }
    let (mut before_it, mut after) = (before.clone(), after.clone());
    for state in [&mut before_it, &mut after] {
        state.forget_times(touched.iter().copied());
    }
    let mut states = vec![before_it, after];
    if let Operation::Truncate { size, .. } = operation
        && steps
    {
        states.extend(truncations(before, *size, touched));
    }
    states
}

/// Returns the states of a file while it is truncated in steps: each ends where an extent or a hole
/// began.
fn truncations(before: &Model, size: u64, touched: &[ubtrfs::InodeId]) -> Vec<Model> {
    let mut states = Vec::new();
    for id in touched {
        let Some(Body::File(content)) = before.nodes.get(id).map(|node| &node.body) else { continue };
        let mut left = content.clone();
        for end in content.ends_beyond(size).into_iter().rev() {
            left.resize(end);
            let mut state = before.clone();
            let node = state.node_mut(*id);
            (node.times, node.body) = (None, Body::File(left.clone()));
            states.push(state);
        }
    }
    states
}

/// Returns the states that a crash may leave in the middle of a clone while other threads work:
/// beginnings of the shared range, since data that another thread writes back meanwhile divides it
/// into more pieces.
pub(crate) fn clones_between(
    operation: &Operation,
    before: &Model,
    after: &Model,
    touched: &[ubtrfs::InodeId],
) -> Vec<Model> {
    const PAGE: u64 = 4096;
    let Operation::Clone { to_offset, len, .. } = operation else { return Vec::new() };
    let mut states = Vec::new();
    for id in touched {
        let content = |model: &Model| match model.nodes.get(id).map(|node| &node.body) {
            Some(Body::File(content)) => Some(content.clone()),
            _ => None,
        };
        let (Some(mut part), Some(whole)) = (content(before), content(after)) else { continue };
        let mut at = *to_offset;
        while at < whole.size().min(to_offset.saturating_add(*len)) {
            let page = whole.read(at, PAGE as usize);
            let is_new = at >= part.size() || part.read(at, PAGE as usize) != page;
            part.write(at, &page);
            at += PAGE;
            if is_new {
                let mut state = before.clone();
                let node = state.node_mut(*id);
                (node.times, node.body) = (None, Body::File(part.clone()));
                states.push(state);
            }
        }
    }
    states
}

/// Returns whether an operation takes space in several steps, between which it may commit.
fn is_in_steps(operation: &Operation) -> bool {
    matches!(operation, Operation::Truncate { .. } | Operation::Allocate { .. })
}

/// Returns the model of an empty directory.
pub(crate) fn empty(fs: &Filesystem, dir: ubtrfs::InodeId) -> Result<Model, String> {
    let found = fs.inodes().attributes(dir).map_err(|error| format!("stat of inode {}: {}", dir.ino, error.chain()))?;
    Ok(Model::new(dir, found.mode, Times { mtime: found.mtime, ctime: found.ctime, btime: found.btime }))
}
