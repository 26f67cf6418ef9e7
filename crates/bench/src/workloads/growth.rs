//! How costs grow, by decades: with the size of a directory, a file or a volume, and with the
//! number of open files and of jobs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::case::{Case, Scale};
use super::unlinked::Held;
use crate::calls::{Calls, Handle};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::peers::Mounted;
use crate::samples::{Better, Measured};

/// Repetitions of a cheap operation for one point of a curve, and of one that waits for the device.
const OFTEN: u32 = 200;
const RARELY: u32 = 20;
/// Files of a directory of a large volume.
const FILES_EACH: u64 = 1000;

/// Makes a case with curves.
pub(super) fn case(
    workload: &str,
    name: &str,
    title: &str,
    headline: &str,
    run: impl Fn(&mut Mounted, &mut Measured) -> Result<()> + 'static,
) -> Case {
    let run = move |mounted: &mut Mounted, measured: &mut Measured| {
        run(mounted, measured)?;
        grown(measured);
        Ok(())
    };
    Case::new(workload, format!("{workload}-{name}"), title.into(), headline, run).in_process()
}

/// Returns all cases.
pub fn cases(scale: Scale) -> Vec<Case> {
    let files = scale.pick(100, 1000, 100_000, 1_000_000);
    let bytes = scale.pick(1 << 20, 10 << 20, 1 << 30, 4 << 30);
    let open = scale.pick(100, 1000, 100_000, 100_000);
    let jobs = scale.pick(2, 4, 64, 64);
    let time = Duration::from_millis(scale.pick(100, 300, 1000, 3000));
    vec![
        case("growth", "directory", "by names in a directory", "create grows", move |m, to| directory(m, to, files)),
        case("growth", "file", "by bytes of a file", "fsync grows", move |m, to| file(m, to, bytes)),
        case("growth", "open", "by unnamed files open", "close grows", move |m, to| open_files(m, to, open)),
        case("growth", "jobs", "by jobs", "fsync grows", move |m, to| many_jobs(m, to, jobs, time)),
    ]
}

/// Returns the cases of a volume with very many files.
pub fn volume_cases(scale: Scale) -> Vec<Case> {
    let files = scale.pick(1000, 10_000, 100_000, 1_000_000);
    let title = format!("a volume of {files} files");
    vec![case("volume", &files.to_string(), &title, "mount", move |m, to| volume(m, to, files))]
}

/// Returns the powers of ten from `first` to `last`.
pub(super) fn decades(first: u64, last: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(first), |size| size.checked_mul(10)).take_while(move |size| *size <= last)
}

/// Adds the factor by which each curve rises from its first point to its last.
fn grown(measured: &mut Measured) {
    let rises: Vec<(String, f64)> = measured
        .series
        .iter()
        .filter_map(|(name, series)| {
            let ((_, first), (_, last)) = (series.points.first()?, series.points.last()?);
            (*first > 0.0).then(|| (format!("{name} grows"), last / first))
        })
        .collect();
    for (name, rise) in rises {
        measured.add(name, rise, "times", Better::Lower);
    }
}

/// Mounts a volume again, if it keeps its content, and adds the time to the curve `mount`. Returns
/// that time.
pub(super) fn mount_again(
    mounted: &mut Mounted,
    measured: &mut Measured,
    along: &str,
    at: u64,
) -> Result<Option<Duration>> {
    if !mounted.keeps() {
        return Ok(None);
    }
    mounted.unmount()?;
    let start = Instant::now();
    mounted.mount()?;
    let took = start.elapsed();
    measured.point("mount", along, at as f64, took.as_secs_f64() * 1e6);
    Ok(Some(took))
}

/// Returns the mean time of `count` calls, in microseconds.
pub(super) fn each(count: u32, mut call: impl FnMut(u32) -> Result<()>) -> Result<f64> {
    cleanup::check()?;
    let start = Instant::now();
    (0..count).try_for_each(&mut call)?;
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}

/// Creates, renames, fsyncs, searches and unlinks files in `dir`; `at` is the position on the
/// curves.
fn work(calls: &Calls, dir: &Handle, measured: &mut Measured, along: &str, at: u64) -> Result<()> {
    let mut files = Vec::new();
    let create = each(OFTEN, |number| {
        files.push(calls.create(dir, &format!("new{number}"))?);
        Ok(())
    })?;
    let fsync = each(RARELY, |number| {
        let file = &files[number as usize];
        calls.write(file, 0, &[1; 4096])?;
        calls.fsync(file)
    })?;
    for file in files {
        calls.close(file);
    }
    let rename = each(OFTEN, |number| calls.rename(dir, &format!("new{number}"), &format!("old{number}")))?;
    // These names have not been looked up yet, so no cache of the kernel has them.
    let absent = each(OFTEN, |number| match calls.stat(dir, &format!("absent{at}-{number}")) {
        Ok(()) => Err(Failure::new("a name that is not there was found")),
        Err(_) => Ok(()),
    })?;
    let unlink = each(OFTEN, |number| calls.unlink(dir, &format!("old{number}")))?;
    let all = [("create", create), ("fsync", fsync), ("rename", rename), ("lookup absent", absent), ("unlink", unlink)];
    for (name, micros) in all {
        measured.point(name, along, at as f64, micros);
    }
    Ok(())
}

fn fill(calls: &Calls, dir: &Handle, from: u64, to: u64) -> Result<()> {
    for number in from..to {
        calls.close(calls.create(dir, &format!("file{number}"))?);
        if number.is_multiple_of(100) {
            cleanup::check()?;
        }
    }
    Ok(())
}

fn directory(mounted: &mut Mounted, measured: &mut Measured, last: u64) -> Result<()> {
    const ALONG: &str = "names in the directory";
    let mut filled = 0;
    for size in decades(10, last) {
        let calls = Calls::of(mounted);
        let root = calls.root()?;
        let dir = if filled == 0 { calls.mkdir(&root, "dir")? } else { calls.open_dir(&root, "dir")? };
        fill(&calls, &dir, filled, size)?;
        filled = size;
        mounted.sync()?;
        work(&calls, &dir, measured, ALONG, size)?;
        calls.close(dir);
        calls.close(root);
        drop(calls);
        if mounted.keeps() {
            mounted.unmount()?;
            mounted.mount()?;
        }
        let calls = Calls::of(mounted);
        let root = calls.root()?;
        let dir = calls.open_dir(&root, "dir")?;
        let start = Instant::now();
        let count = calls.list(&dir)?;
        measured.point("list one", ALONG, size as f64, start.elapsed().as_secs_f64() * 1e6 / count.max(1) as f64);
        // Each name is looked up once, since the kernel would know it the second time.
        let count = OFTEN.min(size as u32);
        let stride = size / u64::from(count);
        let lookup = each(count, |number| calls.stat(&dir, &format!("file{}", u64::from(number) * stride)))?;
        measured.point("lookup after mount", ALONG, size as f64, lookup);
        calls.close(dir);
        calls.close(root);
    }
    Ok(())
}

fn file(mounted: &mut Mounted, measured: &mut Measured, last: u64) -> Result<()> {
    const PIECE: u64 = 1 << 20;
    let calls = Calls::of(mounted);
    let root = calls.root()?;
    let file = calls.create(&root, "file")?;
    let piece = vec![3; PIECE as usize];
    let mut size = 0;
    for wanted in decades(PIECE, last) {
        while size < wanted {
            calls.write(&file, size, &piece)?;
            size += PIECE;
            cleanup::check()?;
        }
        mounted.sync()?;
        let blocks = size / 4096;
        let fsync = each(RARELY * 2, |number| {
            let block = u64::from(number) * 7919 % blocks;
            calls.write(&file, block * 4096, &[4; 4096])?;
            calls.fsync(&file)
        })?;
        measured.point("fsync", "bytes of the file", size as f64, fsync);
    }
    calls.close(file);
    calls.close(root);
    Ok(())
}

fn open_files(mounted: &mut Mounted, measured: &mut Measured, last: u64) -> Result<()> {
    let calls = Calls::of(mounted);
    for open in decades(100, last) {
        let mut held = Held::open(&calls, open as usize)?;
        let time = held.close(50)?;
        measured.point("close", "unnamed files open", open as f64, time.as_secs_f64() * 1e6 / 50.0);
    }
    Ok(())
}

fn many_jobs(mounted: &mut Mounted, measured: &mut Measured, last: u32, time: Duration) -> Result<()> {
    let calls = Calls::of(mounted);
    let root = calls.root()?;
    let mut jobs = 1;
    while jobs <= last {
        cleanup::check()?;
        let done = AtomicU64::new(0);
        let start = Instant::now();
        std::thread::scope(|scope| -> Result<()> {
            let threads: Vec<_> = (0..jobs)
                .map(|number| {
                    let (calls, root, done) = (&calls, &root, &done);
                    scope.spawn(move || -> Result<()> {
                        let file = calls.create(root, &format!("job{jobs}-{number}"))?;
                        for block in 0.. {
                            if start.elapsed() > time {
                                break;
                            }
                            calls.write(&file, block * 4096, &[5; 4096])?;
                            calls.fsync(&file)?;
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        calls.close(file);
                        Ok(())
                    })
                })
                .collect();
            threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| Failure::new("a thread panicked"))?)
        })?;
        let count = done.load(Ordering::Relaxed).max(1);
        measured.point("fsync", "jobs", f64::from(jobs), start.elapsed().as_secs_f64() * 1e6 / count as f64);
        jobs *= 2;
    }
    calls.close(root);
    Ok(())
}

fn volume(mounted: &mut Mounted, measured: &mut Measured, last: u64) -> Result<()> {
    const ALONG: &str = "files in the volume";
    let mut filled = 0;
    for size in decades(FILES_EACH, last) {
        let calls = Calls::of(mounted);
        let root = calls.root()?;
        while filled < size {
            let dir = calls.mkdir(&root, &format!("dir{}", filled / FILES_EACH))?;
            fill(&calls, &dir, 0, FILES_EACH)?;
            calls.close(dir);
            filled += FILES_EACH;
        }
        mounted.sync()?;
        let dir = calls.mkdir(&root, &format!("work{size}"))?;
        work(&calls, &dir, measured, ALONG, size)?;
        calls.close(dir);
        calls.close(root);
        drop(calls);
        if let Some(took) = mount_again(mounted, measured, ALONG, size)? {
            measured.add("mount", took.as_secs_f64() * 1e3, "ms", Better::Lower);
        }
    }
    let memory = |measured: &mut Measured, name: &str, which: fn((u64, u64)) -> u64| {
        if let Some(found) = mounted.daemon().and_then(machine::process_memory) {
            measured.add(name, which(found) as f64 / f64::from(1 << 20), "MiB", Better::Lower);
        }
    };
    memory(measured, "memory after mount", |(now, _)| now);
    let calls = Calls::of(mounted);
    let root = calls.root()?;
    let start = Instant::now();
    for number in 0..filled / FILES_EACH {
        let dir = calls.open_dir(&root, &format!("dir{number}"))?;
        for file in 0..FILES_EACH {
            calls.stat(&dir, &format!("file{file}"))?;
        }
        calls.close(dir);
        cleanup::check()?;
    }
    measured.add("stat each", start.elapsed().as_secs_f64() * 1e6 / filled.max(1) as f64, "µs", Better::Lower);
    memory(measured, "memory after stat", |(now, _)| now);
    memory(measured, "memory at most", |(_, most)| most);
    calls.close(root);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decades_end_in_time_and_rises_are_reported() {
        assert_eq!(decades(10, 10_000).collect::<Vec<_>>(), [10, 100, 1000, 10_000]);
        let mut measured = Measured::default();
        measured.point("fsync", "files", 10.0, 2.0);
        measured.point("fsync", "files", 100.0, 3.0);
        grown(&mut measured);
        assert!((measured.metrics["fsync grows"].value - 1.5).abs() < 1e-9);
    }
}
