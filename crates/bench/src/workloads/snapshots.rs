//! The costs of snapshots: of each one as their number grows, for other operations while some are
//! made, and of their deletion.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::case::{Case, Scale};
use super::growth::{case, decades, each, mount_again};
use super::mix;
use crate::calls::{Calls, Handle};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::peers::Mounted;
use crate::samples::{Better, Measured};

/// Repetitions of an operation that waits for the device for one point of a curve.
const RARELY: u32 = 20;
/// After so many snapshots, a file of the source is changed.
const CHANGE_EVERY: u64 = 5;
const ALONG: &str = "snapshots";

/// Returns all cases.
pub fn cases(scale: Scale) -> Vec<Case> {
    let files = scale.pick(100, 1000, 2000, 2000);
    let last = scale.pick(10, 100, 1000, 10_000);
    let length = Duration::from_millis(scale.pick(300, 5000, 15_000, 60_000));
    let every = Duration::from_millis(scale.pick(100, 1000, 1000, 1000));
    let grow = move |mounted: &mut Mounted, measured: &mut Measured| number(mounted, measured, files, last);
    let beside = move |mounted: &mut Mounted, measured: &mut Measured| beside(mounted, measured, files, length, every);
    let title = "operations while a snapshot is made every second".into();
    vec![
        case("snapshots", "number", "by number of snapshots", "snapshot", grow).with_subvolumes(),
        Case::new("snapshots", "snapshots-beside".into(), title, "fsync 99.9 % beside snapshots", beside)
            .in_process()
            .with_subvolumes(),
    ]
}

/// Makes a subvolume with files.
fn source(calls: &Calls, root: &Handle, files: u64) -> Result<Handle> {
    let source = calls.create_subvolume(root, "source")?;
    for number in 0..files {
        let file = calls.create(&source, &format!("file{number}"))?;
        calls.write(&file, 0, &[9; 500])?;
        calls.close(file);
    }
    Ok(source)
}

fn number(mounted: &mut Mounted, measured: &mut Measured, files: u64, last: u64) -> Result<()> {
    let (mut made, mut time, mut bytes) = (0, Duration::ZERO, 0);
    {
        let calls = Calls::of(mounted);
        let root = calls.root()?;
        for dir in [source(&calls, &root, files)?, calls.mkdir(&root, "snapshots")?, root] {
            calls.close(dir);
        }
        mounted.sync()?;
    }
    for wanted in decades(10, last) {
        let calls = Calls::of(mounted);
        let root = calls.root()?;
        let (source, dir) = (calls.open_dir(&root, "source")?, calls.open_dir(&root, "snapshots")?);
        let file = calls.create(&source, &format!("changed{wanted}"))?;
        let (start, written, first) = (Instant::now(), mounted.device_written(), made);
        while made < wanted {
            if made.is_multiple_of(CHANGE_EVERY) {
                calls.write(&file, made * 4096 % (1 << 20), &[made as u8; 4096])?;
            }
            calls.snapshot(&source, &dir, &format!("snapshot{made}"))?;
            made += 1;
            cleanup::check()?;
        }
        let took = start.elapsed();
        time += took;
        bytes += mounted.device_written().zip(written).map_or(0, |(now, before)| now.saturating_sub(before));
        measured.point("snapshot", ALONG, made as f64, took.as_secs_f64() * 1e6 / (made - first) as f64);
        let fsync = each(RARELY, |number| {
            calls.write(&file, u64::from(number) * 4096, &[1; 4096])?;
            calls.fsync(&file)
        })?;
        measured.point("fsync", ALONG, made as f64, fsync);
        let commit = each(RARELY, |number| {
            calls.write(&file, u64::from(number) * 4096, &[2; 4096])?;
            mounted.sync()
        })?;
        measured.point("commit", ALONG, made as f64, commit);
        if mounted.library().is_none() {
            let start = Instant::now();
            mounted.command(&["subvolume", "list"])?;
            measured.point("list", ALONG, made as f64, start.elapsed().as_secs_f64() * 1e6);
        }
        for handle in [file, source, dir, root] {
            calls.close(handle);
        }
        drop(calls);
        mount_again(mounted, measured, ALONG, made)?;
    }
    measured.add("snapshot", time.as_secs_f64() * 1e6 / made as f64, "µs", Better::Lower);
    measured.add("written for each", bytes as f64 / made as f64 / 1024.0, "KiB", Better::Lower);
    delete_all(mounted, measured, made)
}

fn delete_all(mounted: &mut Mounted, measured: &mut Measured, made: u64) -> Result<()> {
    let calls = Calls::of(mounted);
    let root = calls.root()?;
    let dir = calls.open_dir(&root, "snapshots")?;
    let (start, written) = (Instant::now(), mounted.device_written());
    (0..made).try_for_each(|number| calls.delete_subvolume(&dir, &format!("snapshot{number}")))?;
    measured.add("delete", start.elapsed().as_secs_f64() * 1e6 / made as f64, "µs", Better::Lower);
    match mounted.library() {
        Some(engine) => {
            while !engine.subvolumes().deleted_subvolumes().is_empty() {
                engine.durability().sync()?;
                cleanup::check()?;
            }
        }
        None => mounted.command(&["subvolume", "sync"])?,
    }
    measured.add("all dropped", start.elapsed().as_secs_f64() * 1e3, "ms", Better::Lower);
    if let Some((now, before)) = mounted.device_written().zip(written) {
        let each = now.saturating_sub(before) as f64 / made as f64 / 1024.0;
        measured.add("written for each deletion", each, "KiB", Better::Lower);
    }
    calls.close(dir);
    calls.close(root);
    Ok(())
}

fn beside(mounted: &mut Mounted, measured: &mut Measured, files: u64, length: Duration, every: Duration) -> Result<()> {
    let calls = Calls::of(mounted);
    let root = calls.root()?;
    let source = source(&calls, &root, files)?;
    let dir = calls.mkdir(&source, "work")?;
    mounted.sync()?;
    mix::add(measured, mix::watch(&calls, &dir, length)?, "alone");
    let done = AtomicBool::new(false);
    let during = std::thread::scope(|scope| {
        let snapshots = scope.spawn(|| -> Result<()> {
            for number in 0_u32.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                calls.snapshot(&source, &root, &format!("snapshot{number}"))?;
                std::thread::sleep(every);
            }
            Ok(())
        });
        let during = mix::watch(&calls, &dir, length);
        done.store(true, Ordering::Relaxed);
        snapshots.join().map_err(|_| Failure::new("a thread panicked"))??;
        during
    })?;
    mix::add(measured, during, "beside snapshots");
    for handle in [dir, source, root] {
        calls.close(handle);
    }
    Ok(())
}
