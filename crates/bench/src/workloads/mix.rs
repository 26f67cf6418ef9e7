//! A process that works in a directory, one operation after the other, each of which is timed.

use std::time::{Duration, Instant};

use crate::calls::{Calls, Handle};
use crate::cleanup;
use crate::failure::Result;
use crate::histogram::Histogram;
use crate::samples::{Better, Measured};

/// What is done, in this order.
pub const OPERATIONS: [&str; 6] = ["create", "write", "stat", "fsync", "rename", "unlink"];
/// Every so many files one is fsynced.
const FSYNC_EVERY: u64 = 5;

/// Times by operation.
pub type Times = [Histogram; OPERATIONS.len()];

/// One file: made, written, read, perhaps fsynced, renamed, removed. `time` runs each operation and
/// gets its index in [`OPERATIONS`].
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

/// Adds the main figures of such times, and the times, labelled with `when`.
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

/// Works in `dir` for so long; `time` as in [`step`].
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

/// Works in `dir` for so long, and measures it.
pub fn watch(calls: &Calls, dir: &Handle, length: Duration) -> Result<Times> {
    let mut times = Times::default();
    work(calls, dir, length, |operation, call| times[operation].time(call))?;
    Ok(times)
}
