//! A process that works in a directory, one operation after the other, and measures the time of
//! each.

use std::time::{Duration, Instant};

use crate::calls::{Calls, Handle};
use crate::cleanup;
use crate::failure::Result;
use crate::histogram::Histogram;
use crate::samples::{Better, Measured};

/// The operations, in their order.
pub const OPERATIONS: [&str; 6] = ["create", "write", "stat", "fsync", "rename", "unlink"];
/// One in so many files is fsynced.
const FSYNC_EVERY: u64 = 5;

/// Times by operation.
pub type Times = [Histogram; OPERATIONS.len()];

/// Makes, writes, reads, perhaps fsyncs, renames and removes one file. `time` runs each operation,
/// and gets its index in [`OPERATIONS`].
fn step(
    calls: &Calls,
    dir: &Handle,
    number: u64,
    mut time: impl FnMut(usize, &mut dyn FnMut() -> Result<()>) -> Result<()>,
) -> Result<()> {
    let (name, other) = (format!("a{number}"), format!("b{number}"));
    let mut file = None;
    time(0, &mut || {
        file = Some(calls.create(dir, &name)?);
        Ok(())
    })?;
    if let Some(file) = file {
        time(1, &mut || calls.write(&file, 0, &[1; 4096]))?;
        time(2, &mut || calls.stat(dir, &name))?;
        if number.is_multiple_of(FSYNC_EVERY) {
            time(3, &mut || calls.fsync(&file))?;
        }
        calls.close(file);
    }
    time(4, &mut || calls.rename(dir, &name, &other))?;
    time(5, &mut || calls.unlink(dir, &other))
}

/// Adds the times and their main figures to a result, with names that end with `when`.
pub fn add(measured: &mut Measured, times: Times, when: &str) {
    for (operation, times) in OPERATIONS.iter().zip(times) {
        if times.count() > 0 {
            measured.add(format!("{operation} 50 % {when}"), times.percentile(0.5), "µs", Better::Lower);
            measured.add(format!("{operation} 99.9 % {when}"), times.percentile(0.999), "µs", Better::Lower);
            measured.add(format!("{operation} longest {when}"), times.max(), "µs", Better::Lower);
            measured.histograms.insert(format!("{operation} {when}"), times);
        }
    }
}

/// Works in `dir` for this time; `time` is called as by [`step`].
pub fn work(
    calls: &Calls,
    dir: &Handle,
    length: Duration,
    mut time: impl FnMut(usize, &mut dyn FnMut() -> Result<()>) -> Result<()>,
) -> Result<()> {
    let start = Instant::now();
    for number in 0.. {
        if start.elapsed() > length {
            break;
        }
        cleanup::check()?;
        step(calls, dir, number, &mut time)?;
    }
    Ok(())
}

/// Works in `dir` for this time, and returns the times of the operations.
pub fn watch(calls: &Calls, dir: &Handle, length: Duration) -> Result<Times> {
    let mut times = Times::default();
    work(calls, dir, length, |operation, call| times[operation].time(call))?;
    Ok(times)
}
