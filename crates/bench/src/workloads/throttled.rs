//! Random writers with fsyncs on a device with little bandwidth, which shows the value of the
//! choice between log and commit. It is the library on a volume in memory, so the figures depend on
//! nothing of the machine but its processors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use ubtrfs::{Filesystem, Options};
use ubtrfs_volume::{Rng, ThrottledDevice};

use super::case::{Case, Scale};
use crate::calls::{Calls, Handle};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::histogram::Histogram;
use crate::memory;
use crate::peers::Library;
use crate::samples::{Better, Measured};

/// Bytes per second.
const BANDWIDTH: u64 = 200_000_000;
/// Bytes of the volume.
const VOLUME: u64 = 4 << 30;
const WRITERS: u64 = 16;
const FSYNC_EVERY: u32 = 16;
const BLOCK: u64 = 4096;
/// Bytes of each writer's file.
const FILE: u64 = 64 << 20;

/// The way in which fsyncs become durable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Durable {
    /// By the log, or by a commit when that is cheaper.
    Choice,
    /// By the log; there is a commit only after each commit interval.
    Log,
    /// By a commit for each fsync.
    Commit,
}

/// Returns all cases.
pub fn cases(scale: Scale) -> Vec<Case> {
    let seconds = scale.pick(1, 5, 10, 30);
    let case = |(durable, name, how): (Durable, &str, &str)| {
        let title = format!("{WRITERS} random writers at {} MB/s, {how}", BANDWIDTH / 1_000_000);
        let run = move |_: &mut crate::peers::Mounted, measured: &mut Measured| measure(measured, durable, seconds);
        Case::new("throttled", format!("throttled-{name}"), title, "bandwidth", run).on_own_volume()
    };
    let all = [
        (Durable::Choice, "choice", "log or commit"),
        (Durable::Log, "log", "log only"),
        (Durable::Commit, "commit", "commits only"),
    ];
    all.into_iter().map(case).collect()
}

fn measure(measured: &mut Measured, durable: Durable, seconds: u64) -> Result<()> {
    let device = Arc::new(ThrottledDevice::new(Arc::new(memory::volume(VOLUME)?), BANDWIDTH));
    let usual = Options::default();
    let interval = usual.commit_interval;
    let options = match durable {
        Durable::Choice => usual,
        // Without the background thread, the log can't request a commit.
        Durable::Log => Options { background_commits: false, ..usual },
        Durable::Commit => Options { tree_log: false, ..usual },
    };
    let library = Library::open(vec![device], options)?;
    let engine = library.filesystem();
    let calls = Calls::Engine(Arc::clone(engine));
    let root = calls.root()?;
    let files: Vec<Handle> =
        (0..WRITERS).map(|number| calls.create(&root, &format!("file{number}"))).collect::<Result<_>>()?;
    engine.durability().sync()?;
    let (before, start) = (engine.stats(), Instant::now());
    let end = start + Duration::from_secs(seconds);
    let done = AtomicBool::new(false);
    let (written, fsyncs, took) = std::thread::scope(|scope| {
        let committer = (durable == Durable::Log).then(|| scope.spawn(|| commit_each(interval, engine, &done)));
        let writers: Vec<_> = (1..)
            .zip(&files)
            .map(|(seed, file)| (seed, file, &calls))
            .map(|(seed, file, calls)| scope.spawn(move || write(calls, file, seed, end)))
            .collect();
        let mut all = (0, Histogram::default(), 0.0);
        let mut result = Ok(());
        for writer in writers {
            match writer.join().unwrap_or_else(|_| Err(Failure::new("a thread panicked"))) {
                Ok((written, fsyncs)) => {
                    all.0 += written;
                    all.1.merge(&fsyncs);
                }
                Err(failure) => result = Err(failure),
            }
        }
        all.2 = start.elapsed().as_secs_f64();
        done.store(true, Ordering::Relaxed);
        if let Some(committer) = committer {
            committer.join().map_err(|_| Failure::new("a thread panicked"))??;
        }
        result.map(|()| all)
    })?;
    let after = engine.stats();
    measured.add("bandwidth", written as f64 / f64::from(1 << 20) / took, "MiB/s", Better::Higher);
    let device = after.volume.devices.written_bytes - before.volume.devices.written_bytes;
    measured.add("bytes to device", device as f64 / written.max(1) as f64, "per byte", Better::Lower);
    measured.add("device", device as f64 / 1e6 / took, "MB/s", Better::Higher);
    let per_second = |after: u64, before: u64| (after - before) as f64 / took;
    measured.add("commits", per_second(after.commits, before.commits), "/s", Better::Lower);
    let committing = (after.commit_micros - before.commit_micros) as f64 / 1e4 / took;
    measured.add("committing", committing.min(100.0), "%", Better::Lower);
    for (name, share) in [("fsync 50 %", 0.5), ("fsync 99 %", 0.99), ("fsync 99.9 %", 0.999)] {
        measured.add(name, fsyncs.percentile(share), "µs", Better::Lower);
    }
    measured.histograms.insert("fsync".into(), fsyncs);
    files.into_iter().chain([root]).for_each(|handle| calls.close(handle));
    drop(calls);
    library.close()
}

/// Commits after each interval, as the engine's own thread does.
fn commit_each(interval: Duration, engine: &Filesystem, done: &AtomicBool) -> Result<()> {
    let mut next = Instant::now() + interval;
    while !done.load(Ordering::Relaxed) {
        if Instant::now() >= next {
            engine.durability().sync()?;
            next = Instant::now() + interval;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Writes at random offsets of a file, with fsyncs. Returns how many bytes that were, and the times
/// of the fsyncs.
fn write(calls: &Calls, file: &Handle, seed: u64, end: Instant) -> Result<(u64, Histogram)> {
    let mut random = Rng::new(seed);
    let mut fsyncs = Histogram::default();
    let mut written = 0;
    while Instant::now() < end {
        cleanup::check()?;
        for _ in 0..FSYNC_EVERY {
            let at = random.below(FILE / BLOCK) * BLOCK;
            calls.write(file, at, &[written as u8; BLOCK as usize])?;
            written += BLOCK;
        }
        fsyncs.time(|| calls.fsync(file))?;
    }
    Ok((written, fsyncs))
}
