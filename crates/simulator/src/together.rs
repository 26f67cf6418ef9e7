//! Several threads at work on the same files and directories, while fsyncs, syncs and commits of each go on.
//!
//! Operations that change something are done one after the other, so that there is one model and one order of versions;
//! calls that make something durable run beside them and beside each other, and promise what the volume held when they began.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ubtrfs::{Filesystem, Options};
use ubtrfs_volume::RecordingDevice;

use crate::chronicle::{Chronicle, Promise, Version};
use crate::examine::{check, shown_when_mounted};
use crate::overlap::SlowDevice;
use crate::perform::{Tolerance, Worker, make_durable};
use crate::session::{empty, mount, open, open_volume, states_between};
use crate::window::Window;
use crate::{Crashes, Failure, Generator, Habits, History, Judge, Operation, Survey, look, make_volume};

/// What all threads share.
struct Shared {
    worker: Worker,
    chronicle: Chronicle,
    /// What was the last commit at some moments, and what the newest version was then.
    sightings: Vec<(u64, usize)>,
    log: Vec<(usize, Operation)>,
}

impl Shared {
    /// A version that this commit holds at the least: it was begun when the one before it had been published, so it
    /// holds all that was there while an older one was the last.
    fn least(&self, generation: u64) -> usize {
        let before = |(seen, _): &&(u64, usize)| seen + 2 <= generation;
        self.sightings.iter().filter(before).map(|(_, version)| *version).max().unwrap_or(0)
    }
}

/// Lets `threads` threads do `length` operations each, on the volume of this seed; then examines about `budget` crash
/// states.
pub fn run(seed: u64, threads: u64, length: usize, budget: usize) -> Result<Survey, Failure> {
    let history = History::new(seed);
    let recording = Arc::new(RecordingDevice::new(make_volume(&history.plan.options)));
    let fail = |what| Failure { seed, operations: Vec::new(), crash: None, what };
    let fresh = Judge::new(history.options.clone(), &recording).map_err(fail)?;
    let shared = work(&history, &recording, threads, length)?;
    let judge = Judge { chronicle: shared.chronicle.clone(), ..fresh };
    let mut survey = Survey::default();
    for (point, device) in Crashes::new(&recording, seed, budget) {
        let examined = (|| {
            check(&device)?;
            let volume = open_volume(Arc::new(device.fork()), true)?;
            let superblock = volume.superblock();
            let fs = mount(volume, Options { read_only: true, ..history.options.clone() })?;
            let found = look(&fs)?;
            let base = shared.least(superblock.generation.0);
            let complaints = Window::new(&judge.chronicle, base, point.event).complaints(&found);
            if !complaints.is_empty() {
                return Err(format!("not as promised:\n  {}", complaints.join("\n  ")));
            }
            let has_log = superblock.log_root.0 != 0;
            if has_log && let Some(difference) = found.difference(&shown_when_mounted(&judge, &device)?) {
                return Err(format!("a mount for writing shows something else: {difference}"));
            }
            Ok(has_log)
        })();
        let operations = || shared.log.iter().take_while(|(began, _)| *began <= point.event).cloned().collect();
        let has_log =
            examined.map_err(|what| Failure { operations: operations(), crash: Some(point), ..fail(what) })?;
        survey.states += 1;
        survey.with_log += usize::from(has_log);
    }
    Ok(survey)
}

fn work(history: &History, recording: &Arc<RecordingDevice>, threads: u64, length: usize) -> Result<Shared, Failure> {
    let seed = history.seed;
    let fail = |what| Failure { seed, operations: Vec::new(), crash: None, what };
    // Every other seed with commits of the engine's own.
    let options = Options {
        background_commits: seed.is_multiple_of(2),
        commit_interval: Duration::from_millis(5),
        ..history.options.clone()
    };
    let fs = open(Arc::new(SlowDevice(recording.clone())), options).map_err(fail)?;
    let model = empty(&fs).map_err(fail)?;
    let generation = fs.generation().0;
    let tolerance = Tolerance { no_space: history.plan.tight, faults: false };
    let shared = Mutex::new(Shared {
        chronicle: Chronicle::new(model.clone(), generation),
        worker: Worker::new(fs.clone(), model, tolerance, true),
        sightings: Vec::new(),
        log: Vec::new(),
    });
    let habits = Habits { remount: false, privileges: false, ..history.habits };
    let results: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=threads)
            .map(|number| {
                let generator = Generator::new(seed ^ number << 40, habits);
                let (shared, fs) = (&shared, &fs);
                scope.spawn(move || one_thread(shared, fs, recording, generator, length))
            })
            .collect();
        let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined.map(|result| result.unwrap_or_else(|_| Err("a thread panicked".into()))).collect()
    });
    let mut shared = shared.into_inner();
    let failed = |what| Failure { operations: shared.log.clone(), ..fail(what) };
    results.into_iter().collect::<Result<(), String>>().map_err(failed)?;
    for id in shared.worker.handles.drain(..) {
        fs.forget(id, 1);
    }
    fs.close().map_err(|error| fail(error.to_string()))?;
    Ok(shared)
}

fn one_thread(
    shared: &Mutex<Shared>,
    fs: &Filesystem,
    recording: &RecordingDevice,
    mut generator: Generator,
    length: usize,
) -> Result<(), String> {
    for _ in 0..length {
        let mut guard = shared.lock();
        let Shared { worker, chronicle, sightings, log } = &mut *guard;
        sightings.push((fs.generation().0, chronicle.now()));
        let operation = generator.next(&worker.model, worker.handles.len());
        let began = recording.len();
        log.push((began, operation.clone()));
        let id = match &operation {
            Operation::Sync => None,
            Operation::Fsync { what, .. } => match worker.find(what) {
                Some(id) => Some(id),
                None => continue,
            },
            _ => {
                let before = worker.model.clone();
                let touched = worker.perform(&operation).map_err(|what| format!("{operation:?}: {what}"))?;
                let touched = touched.keys().copied().collect();
                let mut states = states_between(&operation, &before, &worker.model, touched);
                states.push(worker.model.clone());
                chronicle.versions.extend(states.into_iter().map(|model| Version { began, model }));
                continue;
            }
        };
        let version = chronicle.now();
        let data_only = matches!(operation, Operation::Fsync { data_only: true, .. });
        if let Some(id) = id {
            fs.reference(id);
        }
        let since = guard.least(fs.generation().0);
        drop(guard);
        let result = id.map_or_else(|| fs.sync(), |id| make_durable(fs, id, data_only));
        let returned = recording.len();
        result.map_err(|error| format!("{operation:?}: {error}"))?;
        let mut guard = shared.lock();
        let until = guard.chronicle.now();
        let mut covers = match id {
            // Which commit was the last is not known for certain: any up to this version.
            Some(id) => guard.chronicle.covered(id, !data_only, since..=version, version),
            None => guard.chronicle.everything(version),
        };
        if let Some(id) = id {
            // What left a directory during the call may have been none of its entries at the moment that counts.
            for version in version + 1..=until {
                let later = guard.chronicle.covered(id, !data_only, since..=version, version).exist;
                covers.exist.retain(|id| later.contains(id));
            }
        }
        guard.chronicle.promises.push(Promise { returned, version, until, covers });
        if let Some(id) = id {
            fs.forget(id, 1);
        }
    }
    Ok(())
}
