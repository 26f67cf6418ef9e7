//! Threads, each in a directory of its own: how throughput grows with their number, and whether
//! they work or wait.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::Instant;

use ubtrfs_random::Rng;

use super::case::{Case, Scale};
use crate::calls::{Calls, Handle};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::machine::{self, ThreadTimes};
use crate::meter::metered;
use crate::peers::Mounted;
use crate::samples::{Better, Measured};

const BLOCK: u64 = 4096;
/// Bytes of a file that is read or written.
const FILE: u64 = 16 << 20;
/// Names in each directory that are looked up.
const NAMES: usize = 1000;
/// Operations after which a thread checks whether the end is requested.
const OFTEN: usize = 256;

/// The operation of the threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    /// Makes and closes a file.
    Create,
    /// Renames a file.
    Rename,
    /// Removes a file.
    Unlink,
    /// Writes a block of a file, and makes it durable.
    Fsync,
    /// Looks up a name that was looked up before, and its attributes.
    Stat,
    /// Reads a block that is in memory.
    Read,
}

impl Operation {
    const ALL: [Self; 6] = [Self::Create, Self::Rename, Self::Unlink, Self::Fsync, Self::Stat, Self::Read];

    fn name(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
            Self::Fsync => "fsync",
            Self::Stat => "stat",
            Self::Read => "read",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Create => "create and close",
            Self::Rename => "rename",
            Self::Unlink => "unlink",
            Self::Fsync => "write 4 KiB, fsync",
            Self::Stat => "stat, cached",
            Self::Read => "random read of 4 KiB, cached",
        }
    }

    /// Returns how many operations all threads together perform.
    fn count(self, scale: Scale) -> usize {
        match self {
            Self::Create | Self::Rename | Self::Unlink => scale.pick(200, 20_000, 100_000, 200_000),
            Self::Fsync => scale.pick(16, 800, 4000, 20_000),
            Self::Stat | Self::Read => scale.pick(2000, 200_000, 1_000_000, 4_000_000),
        }
    }
}

/// Returns all cases.
pub fn cases(scale: Scale) -> Vec<Case> {
    let threads: &[usize] = scale.pick(&[1, 2], &[1, 2, 4, 8], &[1, 2, 4, 8], &[1, 2, 4, 8, 16]);
    let case = |operation: Operation, threads: usize| {
        let each = operation.count(scale) / threads;
        let run =
            move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, operation, threads, each);
        let name = format!("scaling-{}-{threads}", operation.name());
        let title = format!("{}, {threads} thread{}", operation.title(), if threads == 1 { "" } else { "s" });
        Case::new("scaling", name, title, "rate", run).in_process()
    };
    Operation::ALL.iter().flat_map(|operation| threads.iter().map(|threads| case(*operation, *threads))).collect()
}

/// The files and names of a thread.
struct Place {
    dir: Handle,
    file: Option<Handle>,
    names: Vec<String>,
    new_names: Vec<String>,
}

impl Place {
    fn prepare(calls: &Calls, root: &Handle, number: usize, operation: Operation, count: usize) -> Result<Self> {
        let dir = calls.mkdir(root, &format!("dir{number}"))?;
        let named = |prefix: &str, count: usize| (0..count).map(|number| format!("{prefix}{number}")).collect();
        let mut place = Self { dir, file: None, names: Vec::new(), new_names: Vec::new() };
        match operation {
            Operation::Create => place.new_names = named("new", count),
            Operation::Rename => {
                place.names = named("file", count);
                place.new_names = named("renamed", count);
            }
            Operation::Unlink => place.names = named("file", count),
            Operation::Stat => place.names = named("file", NAMES),
            Operation::Fsync | Operation::Read => {
                let file = calls.create(&place.dir, "file")?;
                let data = vec![number as u8; 1 << 20];
                (0..FILE >> 20).try_for_each(|piece| calls.write(&file, piece << 20, &data))?;
                place.file = Some(file);
            }
        }
        for (number, name) in place.names.iter().enumerate() {
            calls.close(calls.create(&place.dir, name)?);
            if number.is_multiple_of(OFTEN) {
                cleanup::check()?;
            }
        }
        Ok(place)
    }

    /// Performs the operation once.
    fn work(&self, calls: &Calls, operation: Operation, number: usize, random: &mut Rng) -> Result<()> {
        let file = || self.file.as_ref().ok_or_else(|| Failure::new("no file"));
        match operation {
            Operation::Create => calls.close(calls.create(&self.dir, &self.new_names[number])?),
            Operation::Rename => calls.rename(&self.dir, &self.names[number], &self.new_names[number])?,
            Operation::Unlink => calls.unlink(&self.dir, &self.names[number])?,
            Operation::Stat => calls.stat(&self.dir, &self.names[number % NAMES])?,
            Operation::Fsync => {
                calls.write(file()?, random.below(FILE / BLOCK) * BLOCK, &[number as u8; BLOCK as usize])?;
                calls.fsync(file()?)?;
            }
            Operation::Read => {
                calls.read(file()?, random.below(FILE / BLOCK) * BLOCK, &mut [0; BLOCK as usize])?;
            }
        }
        Ok(())
    }
}

fn measure(
    mounted: &mut Mounted,
    measured: &mut Measured,
    operation: Operation,
    threads: usize,
    each: usize,
) -> Result<()> {
    let calls = Calls::of(mounted);
    let root = calls.root()?;
    let places: Vec<Place> =
        (0..threads).map(|number| Place::prepare(&calls, &root, number, operation, each)).collect::<Result<_>>()?;
    mounted.sync()?;
    let before = engine_counters(mounted);
    let ready = Barrier::new(threads + 1);
    let ((wall, times), usage) = metered(mounted, || {
        std::thread::scope(|scope| {
            let working: Vec<_> = (1..)
                .zip(&places)
                .map(|(seed, place)| {
                    let (calls, ready) = (&calls, &ready);
                    scope.spawn(move || work(calls, place, operation, each, seed, ready))
                })
                .collect();
            ready.wait();
            let start = Instant::now();
            let times: Vec<ThreadTimes> = working
                .into_iter()
                .map(|thread| thread.join().map_err(|_| Failure::new("a thread panicked"))?)
                .collect::<Result<_>>()?;
            Ok((start.elapsed().as_secs_f64(), times))
        })
    })?;
    let total = (threads * each) as f64;
    measured.add("rate", total / wall, "/s", Better::Higher);
    measured.add("each", wall * threads as f64 * 1e6 / total, "µs", Better::Lower);
    add_times(measured, wall, &times, total);
    usage.per_operation(measured, total);
    for (name, after) in engine_counters(mounted) {
        let before = before.get(name).copied().unwrap_or_default();
        measured.add(name, after.saturating_sub(before) as f64 / total, "/op", Better::Lower);
    }
    for place in places {
        place.file.into_iter().chain([place.dir]).for_each(|handle| calls.close(handle));
    }
    calls.close(root);
    Ok(())
}

fn work(
    calls: &Calls,
    place: &Place,
    operation: Operation,
    each: usize,
    seed: u64,
    ready: &Barrier,
) -> Result<ThreadTimes> {
    let mut random = Rng::new(seed);
    ready.wait();
    let before = machine::thread_times()?;
    for number in 0..each {
        place.work(calls, operation, number, &mut random)?;
        if number.is_multiple_of(OFTEN) {
            cleanup::check()?;
        }
    }
    Ok(machine::thread_times()?.since(before))
}

/// Adds how the threads have spent their time: working, ready to run without a processor, or
/// asleep.
fn add_times(measured: &mut Measured, wall: f64, times: &[ThreadTimes], operations: f64) {
    let sum = |of: fn(&ThreadTimes) -> f64| times.iter().map(of).sum::<f64>();
    let (cpu, runnable) = (sum(|times| times.cpu), sum(|times| times.runnable));
    let processors = std::thread::available_parallelism().map_or(1, usize::from).min(times.len());
    let percent = |part: f64, whole: f64| (part / whole * 100.0).clamp(0.0, 100.0);
    measured.add("cpu threads", cpu * 1e6 / operations, "µs/op", Better::Lower);
    measured.add("of processors", percent(cpu, wall * processors as f64), "%", Better::Higher);
    let all = sum(|times| times.wall);
    measured.add("runnable", percent(runnable, all), "%", Better::Lower);
    measured.add("asleep", percent(all - cpu - runnable, all), "%", Better::Lower);
    measured.add("sleeps", sum(|times| times.sleeps as f64) / operations, "/op", Better::Lower);
}

/// Returns the counters of the engine whose growth per operation is shown.
fn engine_counters(mounted: &Mounted) -> BTreeMap<&'static str, u64> {
    let Some(engine) = mounted.library() else { return BTreeMap::new() };
    let stats = engine.stats();
    BTreeMap::from([("commits", stats.commits), ("log writes", stats.log_writes)])
}
