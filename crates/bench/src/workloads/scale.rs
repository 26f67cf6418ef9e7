//! How costs grow with the space that a volume has allocated, and how long it takes to free all of
//! it. No data is written, so the image stays sparse.

use std::time::{Duration, Instant};

use super::case::{Case, Scale};
use super::growth::{case, decades, each, mount_again};
use crate::calls::{Calls, Handle};
use crate::cleanup;
use crate::failure::Result;
use crate::peers::Mounted;
use crate::samples::{Better, Measured};

const GIB: u64 = 1 << 30;
/// Bytes of an extent: a volume of 100,000 GiB has a million of them.
const EXTENT: u64 = 100 << 20;
/// Extents of a file.
const EXTENTS_EACH: u64 = 1000;
/// Repetitions of a cheap operation for one point of a curve, and of one that waits for the device.
const OFTEN: u32 = 500;
const RARELY: u32 = 20;
/// Files that are created while space is being freed.
const BESIDE: u32 = 2000;
const ALONG: &str = "GiB allocated";

pub fn cases(scale: Scale) -> Vec<Case> {
    let last = scale.pick(10, 1000, 10_000, 100_000);
    let title = format!("a volume with up to {last} GiB allocated");
    let run = move |mounted: &mut Mounted, measured: &mut Measured| grow(mounted, measured, last);
    vec![case("scale", &last.to_string(), &title, "create grows", run).with_volume((last + last / 8 + 8) * GIB)]
}

fn grow(mounted: &mut Mounted, measured: &mut Measured, last: u64) -> Result<()> {
    let (mut allocated, mut files) = (0, 0);
    let mut filling = Duration::ZERO;
    for wanted in decades(10, last) {
        let calls = Calls::of(mounted);
        let root = calls.root()?;
        let start = Instant::now();
        while allocated < wanted * GIB {
            let file = calls.create(&root, &format!("space{files}"))?;
            files += 1;
            let extents = (wanted * GIB - allocated).div_ceil(EXTENT).min(EXTENTS_EACH);
            for number in 0..extents {
                calls.allocate(&file, number * EXTENT, EXTENT)?;
            }
            allocated += extents * EXTENT;
            calls.close(file);
            cleanup::check()?;
        }
        mounted.sync()?;
        filling += start.elapsed();
        let dir = calls.mkdir(&root, &format!("work{wanted}"))?;
        work(mounted, &calls, &dir, measured, wanted)?;
        calls.close(dir);
        calls.close(root);
        drop(calls);
        mount_again(mounted, measured, ALONG, wanted)?;
    }
    measured.add("allocate each", filling.as_secs_f64() * 1e6 / (allocated / EXTENT) as f64, "µs", Better::Lower);
    free_all(mounted, measured, files)
}

/// Measures operations at a point of the curves, at which so many GiB are allocated.
fn work(mounted: &Mounted, calls: &Calls, dir: &Handle, measured: &mut Measured, at: u64) -> Result<()> {
    let mut files = Vec::new();
    let create = each(OFTEN, |number| {
        files.push(calls.create(dir, &format!("new{number}"))?);
        Ok(())
    })?;
    let rename = each(OFTEN, |number| calls.rename(dir, &format!("new{number}"), &format!("old{number}")))?;
    let fsync = each(RARELY, |number| {
        let file = &files[number as usize];
        calls.write(file, 0, &[1; 4096])?;
        calls.fsync(file)
    })?;
    let commit = each(RARELY, |number| {
        calls.write(&files[number as usize], 4096, &[2; 4096])?;
        mounted.sync()
    })?;
    let statfs = each(OFTEN, |_| calls.statfs(dir))?;
    let gib = each(RARELY, |number| calls.allocate(&files[number as usize], GIB, GIB / 8))?;
    for file in files {
        calls.close(file);
    }
    let all = [
        ("create", create),
        ("rename", rename),
        ("fsync", fsync),
        ("commit", commit),
        ("statfs", statfs),
        ("allocate", gib),
    ];
    for (name, micros) in all {
        measured.point(name, ALONG, at as f64, micros);
    }
    Ok(())
}

/// Removes the files, and creates others while their space is being freed.
fn free_all(mounted: &mut Mounted, measured: &mut Measured, files: u64) -> Result<()> {
    let calls = Calls::of(mounted);
    let root = calls.root()?;
    let start = Instant::now();
    (0..files).try_for_each(|number| calls.unlink(&root, &format!("space{number}")))?;
    let mut longest = Duration::ZERO;
    let create = each(BESIDE, |number| {
        let start = Instant::now();
        calls.close(calls.create(&root, &format!("beside{number}"))?);
        longest = longest.max(start.elapsed());
        Ok(())
    })?;
    measured.add("create while space is freed", create, "µs", Better::Lower);
    measured.add("longest create of these", longest.as_secs_f64() * 1e3, "ms", Better::Lower);
    mounted.sync()?;
    measured.add("all freed", start.elapsed().as_secs_f64() * 1e3, "ms", Better::Lower);
    calls.close(root);
    Ok(())
}
