//! Several threads at work while commits are under way, then crashes.
//!
//! Each thread works below a directory of its own, so that its model is its own too. A commit is one moment of the
//! volume: what a crash leaves of a thread's directory is the state after some number of its operations, at least those
//! that an fsync or sync of the thread covered, at most those that had begun.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use ubtrfs::{InodeId, NewInode, Options};
use ubtrfs_format::Physical;
use ubtrfs_volume::{Device, DeviceCounters, DeviceTicket, DeviceWrite, OverlayDevice, RecordingDevice};

use crate::examine::check;
use crate::perform::{Tolerance, Worker};
use crate::session::open;
use crate::{Compare, Crashes, Failure, Generator, Habits, History, Model, Operation, Times, compare, make_volume};

/// What one thread did.
struct Trace {
    /// The state after each operation, the first before any; with the events before that operation began.
    states: Vec<(usize, Model)>,
    /// Events when an fsync or sync had returned, and how many operations it covers.
    promises: Vec<(usize, usize)>,
}

/// A device that takes its time, so that much happens while a commit waits for it.
#[derive(Debug)]
pub(crate) struct SlowDevice(pub Arc<RecordingDevice>);

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
        std::thread::sleep(PAUSE);
        ticket
    }

    fn flush(&self) -> io::Result<()> {
        std::thread::sleep(PAUSE);
        self.0.flush()?;
        std::thread::sleep(PAUSE);
        Ok(())
    }

    fn discard(&self, at: Physical, len: u64) -> io::Result<()> {
        self.0.discard(at, len)
    }

    fn counters(&self) -> DeviceCounters {
        self.0.counters()
    }
}

/// Lets `threads` threads do `length` operations each, on the volume of this seed; then examines about `budget` crash
/// states and returns how many they were.
pub fn run(seed: u64, threads: u64, length: usize, budget: usize) -> Result<usize, Failure> {
    let fail = |what| Failure { seed, operations: Vec::new(), crash: None, what };
    let history = History::new(seed);
    let recording = Arc::new(RecordingDevice::new(make_volume(&history.plan.options)));
    let traces = work(&history, &recording, threads, length).map_err(fail)?;
    let mut states = 0;
    for (point, device) in Crashes::new(&recording, seed, budget) {
        judge(&history.options, &traces, &device, point.event)
            .map_err(|what| Failure { crash: Some(point), ..fail(what) })?;
        states += 1;
    }
    Ok(states)
}

fn work(
    history: &History,
    recording: &Arc<RecordingDevice>,
    threads: u64,
    length: usize,
) -> Result<Vec<Trace>, String> {
    // Every other seed with commits of the engine's own on top of those that the threads ask for.
    let options = Options {
        background_commits: history.seed.is_multiple_of(2),
        commit_interval: Duration::from_millis(3),
        ..history.options.clone()
    };
    let fs = open(Arc::new(SlowDevice(recording.clone())), options)?;
    let told = |error: ubtrfs::Error| error.to_string();
    let mut workers = Vec::new();
    for number in 0..threads {
        let new = NewInode { mode: 0o040_755, ..NewInode::default() };
        let dir = fs.create(fs.root(), format!("thread {number}").as_bytes(), &new).map_err(told)?;
        let found = fs.attributes(dir).map_err(told)?;
        let times = Times { mtime: found.mtime, ctime: found.ctime, btime: found.btime };
        let model = Model::new(dir, found.mode, times);
        let tolerance = Tolerance { no_space: history.plan.tight, faults: false };
        workers.push(Worker::new(fs.clone(), model, tolerance, true));
    }
    fs.sync().map_err(told)?;
    let handles: Vec<_> = workers
        .into_iter()
        .zip(0..)
        .map(|(worker, number)| {
            let seed = history.seed ^ (number + 1) << 40;
            let habits = Habits { remount: false, privileges: false, ..history.habits };
            let recording = recording.clone();
            std::thread::spawn(move || one_thread(worker, &recording, Generator::new(seed, habits), length))
        })
        .collect();
    let mut traces = Vec::new();
    for handle in handles {
        traces.push(handle.join().map_err(|_| "a thread panicked".to_owned())??);
    }
    fs.close().map_err(told)?;
    Ok(traces)
}

fn one_thread(
    mut worker: Worker,
    recording: &RecordingDevice,
    mut generator: Generator,
    length: usize,
) -> Result<Trace, String> {
    let begun = recording.len();
    let mut trace = Trace { states: vec![(begun, worker.model.clone())], promises: vec![(begun, 0)] };
    let mut last_change: BTreeMap<InodeId, usize> = BTreeMap::new();
    let mut log = Vec::new();
    for number in 1..=length {
        let operation = generator.next(&worker.model, worker.handles.len());
        let began = recording.len();
        log.push(operation.clone());
        let touched = worker.perform(&operation).map_err(|what| format!("{operation:?}: {what}\n{log:?}"))?;
        last_change.extend(touched.keys().map(|id| (*id, number)));
        match &operation {
            Operation::Sync => trace.promises.push((recording.len(), number)),
            Operation::Fsync { what, .. } => {
                let covered = worker.find(what).and_then(|id| last_change.get(&id)).copied().unwrap_or(0);
                trace.promises.push((recording.len(), covered));
            }
            _ => {}
        }
        trace.states.push((began, worker.model.clone()));
    }
    // Its last references go, and what they kept.
    for _ in 0..worker.handles.len() {
        worker.perform(&Operation::Close { handle: 0 })?;
    }
    Ok(trace)
}

fn judge(options: &Options, traces: &[Trace], device: &OverlayDevice, event: usize) -> Result<(), String> {
    check(device)?;
    let fs = open(Arc::new(device.fork()), Options { read_only: true, ..options.clone() })?;
    for (number, trace) in traces.iter().enumerate() {
        if event < trace.states[0].0 {
            continue;
        }
        let returned = trace.promises.iter().filter(|(returned, _)| *returned <= event);
        let least = returned.map(|(_, covered)| *covered).max().unwrap_or(0);
        let most = trace.states.iter().rposition(|(began, _)| *began <= event).unwrap_or(0);
        // In the middle of an operation times may have got no further than its first step.
        let how = Compare { times: false, nameless: false };
        let mut differences = Vec::new();
        let found = (least..=most).rev().any(|at| {
            let difference = compare(&fs, &trace.states[at].1, how).err();
            differences.extend(difference.iter().map(|what| format!("  {at}: {what}")));
            difference.is_none()
        });
        if !found {
            return Err(format!(
                "thread {number}: none of its states {least} to {most} is there:\n{}",
                differences.join("\n")
            ));
        }
    }
    Ok(())
}
