//! Several threads work during fsyncs, syncs and commits; then crashes are examined.
//!
//! Each thread works below a directory of its own, with a model of its own; or all threads work on
//! the same files. In that case operations that change something are done one after the other, so
//! that the versions have one order; calls that make something durable run concurrently with them
//! and with each other.

use std::sync::Arc;
use std::time::Duration;
use std::{io, slice};

use ubtrfs::{Errno, Filesystem, NewInode, Options};
use ubtrfs_format::Physical;
use ubtrfs_threads::Rank;
use ubtrfs_threads::atomic::{AtomicBool, Ordering};
use ubtrfs_threads::{Mutex, thread};
use ubtrfs_volume::{Device, DeviceCounters, DeviceTicket, DeviceWrite, OverlayDevice, RecordingDevice};

use crate::examine::{check, shown_when_mounted};
use crate::mounting::{frees_in_steps, mount, open, open_volume};
use crate::perform::{Tolerance, Worker, make_durable};
use crate::session::{clones_between, empty, states_between};
use crate::trace::{Promise, Trace};
use crate::version::Version;
use crate::window::Window;
use crate::{Crashes, Failure, Generator, Habits, History, Judge, Model, Operation, Survey, look, make_volume};

/// What the threads share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// Each thread has a directory of its own.
    Nothing,
    /// They share all files and directories.
    Files,
}

/// A part of the volume, and its history.
pub(crate) struct Part {
    worker: Worker,
    trace: Trace,
    /// The last commit at some points in time, and the newest version then.
    sightings: Vec<(u64, usize)>,
    operations: Vec<(usize, Operation)>,
    /// Whether files are truncated in steps.
    steps: bool,
    /// Whether an operation in steps has failed, so that the number of its completed steps is
    /// unknown.
    uncertain: bool,
    /// Whether a thread has moved the content of a block group.
    moves: Arc<AtomicBool>,
}

impl Part {
    /// Returns the oldest version that this commit may have. It began when the commit before it had
    /// been published, so it has everything from the time of older commits. A commit that moves the
    /// content of a block group has no more than the one before it.
    fn least(&self, generation: u64) -> usize {
        let commits = if self.moves.load(Ordering::Relaxed) { 3 } else { 2 };
        let before = |(seen, _): &&(u64, usize)| seen + commits <= generation;
        self.sightings.iter().filter(before).map(|(_, version)| *version).max().unwrap_or(0)
    }
}

/// A device that is slow, so that much happens while a commit waits for it.
#[derive(Debug)]
struct SlowDevice(Arc<dyn Device>);

const PAUSE: Duration = Duration::from_micros(300);

impl Device for SlowDevice {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn read_at(&self, at: Physical, buf: &mut [u8]) -> io::Result<()> {
        self.0.read_at(at, buf)
    }

    fn submit(&self, writes: Vec<DeviceWrite>) -> DeviceTicket {
        let ticket = self.0.submit(writes);
        thread::sleep(PAUSE);
        ticket
    }

    fn flush(&self) -> io::Result<()> {
        thread::sleep(PAUSE);
        self.0.flush()?;
        thread::sleep(PAUSE);
        Ok(())
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.0.discard(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

/// Lets `threads` threads do `length` operations each on the volume of this seed. Then examines
/// about `budget` crash states.
pub fn run(seed: u64, threads: u64, sharing: Sharing, length: usize, budget: usize) -> Result<Survey, Failure> {
    let history = History::new(seed);
    let recording = Arc::new(RecordingDevice::new(make_volume(&history.plan.options)));
    let fail = |what| Failure { seed, operations: Vec::new(), crash: None, what };
    let judge = Judge::new(history.options.clone(), &recording).map_err(fail)?;
    let parts = work(&history, &recording, recording.clone(), &Setting { threads, sharing, length, fault: None })?;
    survey_parts(&judge, &parts, &recording, seed, budget)
}

/// Examines the states that crashes may leave of the threads' work.
pub(crate) fn survey_parts(
    judge: &Judge,
    parts: &[Part],
    recording: &Arc<RecordingDevice>,
    seed: u64,
    budget: usize,
) -> Result<Survey, Failure> {
    let fail = |what| Failure { seed, operations: Vec::new(), crash: None, what };
    let mut survey = Survey::default();
    for (point, device) in Crashes::new(recording, seed, budget) {
        let found = find(judge, &device).map_err(|what| Failure { crash: Some(point), ..fail(what) })?;
        for part in parts {
            let begun = |(began, _): &&(usize, Operation)| *began <= point.event;
            let operations = || part.operations.iter().take_while(begun).cloned().collect();
            let fail = |what| Failure { operations: operations(), crash: Some(point), ..fail(what) };
            judge_part(part, &found, point.event).map_err(fail)?;
        }
        survey.states += 1;
        survey.with_log += usize::from(found.has_log);
    }
    Ok(survey)
}

struct Found {
    model: Model,
    generation: u64,
    has_log: bool,
}

fn find(judge: &Judge, device: &OverlayDevice) -> Result<Found, String> {
    check(slice::from_ref(device))?;
    let volume = open_volume(vec![Arc::new(device.fork())], true)?;
    let superblock = volume.superblocks().current();
    let fs = mount(volume, Options { read_only: true, ..judge.options.clone() })?;
    let model = look(&fs)?;
    let has_log = superblock.log_root.0 != 0;
    if has_log && let Some(difference) = model.difference(&shown_when_mounted(judge, slice::from_ref(device))?) {
        return Err(format!("a mount for writing shows something else than one for reading: {difference}"));
    }
    Ok(Found { model, generation: superblock.generation.0, has_log })
}

fn judge_part(part: &Part, found: &Found, event: usize) -> Result<(), String> {
    let trace = &part.trace;
    let top = part.worker.model.root;
    let there = found.model.below(top);
    if there.nodes.is_empty() {
        // The directory is made before the history of this part begins.
        return if event < trace.versions[0].began { Ok(()) } else { Err(format!("inode {} is missing", top.ino)) };
    }
    let window = Window::new(trace, part.least(found.generation), event);
    let complaints = window.complaints(&there);
    if !complaints.is_empty() {
        return Err(format!("not as promised:\n  {}", complaints.join("\n  ")));
    }
    let mut versions = trace.versions[window.base..=window.last].iter().rev();
    if found.has_log || versions.any(|version| there.difference_except_nodatacow(&version.model).is_none()) {
        return Ok(());
    }
    Err(format!("there is no log, but it is as in none of the versions {} to {}", window.base, window.last))
}

/// The work of the threads.
pub(crate) struct Setting<'a> {
    pub(crate) threads: u64,
    pub(crate) sharing: Sharing,
    /// Operations of each thread.
    pub(crate) length: usize,
    /// Makes the device fail at some time after the threads' directories have been made.
    pub(crate) fault: Option<&'a (dyn Fn() + Sync)>,
}

/// Lets the threads work on `device`, which passes requests on to `recording`.
pub(crate) fn work(
    history: &History,
    recording: &Arc<RecordingDevice>,
    device: Arc<dyn Device>,
    &Setting { threads, sharing, length, fault }: &Setting<'_>,
) -> Result<Vec<Part>, Failure> {
    let seed = history.seed;
    let fail = |what| Failure { seed, operations: Vec::new(), crash: None, what };
    // With every other seed, the engine makes commits of its own in addition to those of the
    // threads.
    let options = Options {
        background_commits: fault.is_some() || seed.is_multiple_of(2),
        commit_interval: Duration::from_millis(3),
        ..history.options.clone()
    };
    let fs = open(vec![Arc::new(SlowDevice(device))], options).map_err(fail)?;
    let tolerance = Tolerance { no_space: history.plan.tight, faults: fault.is_some() };
    let tops = match sharing {
        Sharing::Files => vec![fs.root()],
        Sharing::Nothing => {
            let new = NewInode { mode: 0o040_755, ..NewInode::default() };
            let make = |number| fs.directories().create(fs.root(), format!("thread {number}").as_bytes(), &new);
            (0..threads).map(make).collect::<ubtrfs::Result<Vec<_>>>().map_err(|error| fail(error.chain()))?
        }
    };
    fs.durability().sync().map_err(|error| fail(error.chain()))?;
    let steps = frees_in_steps(&history.options);
    let (mut parts, moves) = (Vec::new(), Arc::<AtomicBool>::default());
    for top in tops {
        let model = empty(&fs, top).map_err(fail)?;
        let mut trace = Trace::new(model.clone(), fs.generation().0);
        trace.versions[0].began = recording.len();
        let worker = Worker::new(fs.clone(), model, tolerance, true);
        parts.push(Mutex::new(
            Rank::Part,
            Part {
                worker,
                trace,
                sightings: Vec::new(),
                operations: Vec::new(),
                steps,
                uncertain: false,
                moves: moves.clone(),
            },
        ));
    }
    if let Some(fault) = fault {
        fault();
    }
    let habits = Habits { remount: false, privileges: false, ..history.habits };
    let results: Vec<Result<(), String>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads as usize)
            .map(|number| {
                let generator = Generator::new(seed ^ (number as u64 + 1) << 40, habits);
                let (part, fs) = (&parts[number % parts.len()], &fs);
                scope.spawn(move || one_thread(part, fs, recording, generator, length))
            })
            .collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|result| result.unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    let mut parts: Vec<Part> = parts.into_iter().map(Mutex::into_inner).collect();
    let operations = || parts.iter().flat_map(|part| part.operations.clone()).collect();
    results
        .into_iter()
        .collect::<Result<(), String>>()
        .map_err(|what| Failure { operations: operations(), ..fail(what) })?;
    // Drops the last references, and the inodes that they kept.
    for id in parts.iter_mut().flat_map(|part| part.worker.handles.drain(..)) {
        fs.references().forget(id, 1);
    }
    match fs.close() {
        Err(error) if fault.is_none() => Err(fail(error.chain())),
        _ => Ok(parts),
    }
}

fn one_thread(
    part: &Mutex<Part>,
    fs: &Filesystem,
    recording: &RecordingDevice,
    mut generator: Generator,
    length: usize,
) -> Result<(), String> {
    for _ in 0..length {
        let mut guard = part.lock();
        if guard.worker.tolerance.faults && (guard.uncertain || fs.abort_reason().is_some()) {
            return Ok(());
        }
        let Part { worker, trace, sightings, operations, steps, uncertain, moves } = &mut *guard;
        sightings.push((fs.generation().0, trace.now()));
        let operation = generator.next(&worker.model, worker.handles.len());
        let began = recording.len();
        operations.push((began, operation.clone()));
        if matches!(operation, Operation::EmptyBlockGroup { .. }) {
            moves.store(true, Ordering::Relaxed);
        }
        if !matches!(operation, Operation::Sync | Operation::Fsync { .. }) {
            let (before, tolerated) = (worker.model.clone(), worker.tolerated);
            let touched = worker.perform(&operation).map_err(|what| format!("{operation:?}: {what}"))?;
            let mut touched: Vec<_> = touched.keys().copied().collect();
            if let Operation::Truncate { what, .. } = &operation
                && worker.tolerated > tolerated
            {
                touched.extend(worker.find(what));
                *uncertain = *steps;
            }
            let mut states = states_between(&operation, &before, &worker.model, &touched, *steps);
            states.extend(clones_between(&operation, &before, &worker.model, &touched));
            states.push(worker.model.clone());
            trace.versions.extend(states.into_iter().map(|model| Version { began, model }));
            continue;
        }
        drop(guard);
        make_promise(part, fs, recording, &operation).map_err(|what| format!("{operation:?}: {what}"))?;
    }
    Ok(())
}

/// Does an fsync or sync concurrently with other operations, and records its promise.
fn make_promise(
    part: &Mutex<Part>,
    fs: &Filesystem,
    recording: &RecordingDevice,
    operation: &Operation,
) -> Result<(), String> {
    let guard = part.lock();
    let may_fail = guard.worker.tolerance.faults;
    // An error reports the failure of the device, and only these errors do.
    let succeeds = |result: ubtrfs::Result<()>| match result {
        Err(error) if may_fail && matches!(error.errno(), Errno::IO | Errno::ROFS | Errno::NOSPC) => Ok(false),
        result => result.map(|()| true).map_err(|error| error.chain()),
    };
    let version = guard.trace.now();
    let since = guard.least(fs.generation().0);
    let Operation::Fsync { what, data_only } = operation else {
        drop(guard);
        if !succeeds(fs.durability().sync())? {
            return Ok(());
        }
        let (returned, mut guard) = (recording.len(), part.lock());
        if guard.uncertain {
            return Ok(());
        }
        let (until, covers) = (guard.trace.now(), guard.trace.everything(version));
        guard.trace.promises.push(Promise { returned, version, until, covers });
        return Ok(());
    };
    let Some(id) = guard.worker.find(what) else { return Ok(()) };
    fs.references().reference(id);
    drop(guard);
    let is_promised = succeeds(make_durable(fs, id, *data_only))?;
    let (returned, mut guard) = (recording.len(), part.lock());
    if !is_promised || guard.uncertain {
        fs.references().forget(id, 1);
        return Ok(());
    }
    let until = guard.trace.now();
    // It is not known for certain which commit was the last: it may be any up to this version.
    let covered = |at| guard.trace.covered(id, !data_only, since..=at, at);
    let mut covers = covered(version);
    // A name that a directory lost during the call may have been none of its entries at the time
    // that counts; and a name that the inode lost during the call may have been none of its names.
    for later in version + 1..=until {
        let then = covered(later);
        covers.exist.retain(|id| then.exist.contains(id));
        covers.names.retain(|place| then.names.contains(place));
    }
    guard.trace.promises.push(Promise { returned, version, until, covers });
    fs.references().forget(id, 1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use ubtrfs_volume::conformance::{Subject, assert_conforms};

    use super::*;

    #[test]
    fn slow_devices_conform() {
        let recording = Arc::new(RecordingDevice::new(vec![0; 2 << 20].into()));
        assert_conforms(Subject::new(Arc::new(SlowDevice(recording))));
    }
}
