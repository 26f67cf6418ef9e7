//! The cost of a commit for operations that don't wait for it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::case::{Case, Scale};
use super::mix::{self, Times};
use crate::calls::Calls;
use crate::failure::{Failure, Result};
use crate::peers::Mounted;
use crate::samples::Measured;

/// Files that each commit has to write, and bytes of each.
const FILES: u32 = 200;
const BYTES: usize = 64 << 10;

pub fn cases(scale: Scale) -> Vec<Case> {
    let seconds = scale.pick(1, 5, 15, 60);
    let run = move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, seconds);
    let title = "operations while commits run".into();
    vec![Case::new("latency", "latency".into(), title, "fsync 99.9 % during commits", run).in_process()]
}

fn measure(mounted: &mut Mounted, measured: &mut Measured, seconds: u64) -> Result<()> {
    let length = Duration::from_secs(seconds);
    let calls = Calls::of(mounted);
    let root = calls.root()?;
    let dir = calls.mkdir(&root, "work")?;
    mix::add(measured, mix::watch(&calls, &dir, length)?, "alone");

    let (done, committing) = (AtomicBool::new(false), AtomicBool::new(false));
    let mounted = &*mounted;
    let [during, between] = std::thread::scope(|scope| {
        let load = scope.spawn(|| commit_on_and_on(mounted, &calls, &done, &committing));
        let mut times = [Times::default(), Times::default()];
        let worked = mix::work(&calls, &dir, length, |operation, call| {
            let before = committing.load(Ordering::Relaxed);
            let begun = Instant::now();
            let result = call();
            let time = begun.elapsed();
            let overlaps = before || committing.load(Ordering::Relaxed);
            times[usize::from(!overlaps)][operation].add(time);
            result
        });
        done.store(true, Ordering::Relaxed);
        load.join().map_err(|_| Failure::new("a thread panicked"))??;
        worked.map(|()| times)
    })?;
    mix::add(measured, during, "during commits");
    mix::add(measured, between, "between commits");
    calls.close(dir);
    calls.close(root);
    Ok(())
}

/// Makes files and then syncs, again and again; `committing` is set during the syncs.
fn commit_on_and_on(mounted: &Mounted, calls: &Calls, done: &AtomicBool, committing: &AtomicBool) -> Result<()> {
    let root = calls.root()?;
    let data = vec![7; BYTES];
    for round in 0_u32.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let name = format!("load{round}");
        let dir = calls.mkdir(&root, &name)?;
        for number in 0..FILES {
            let file = calls.create(&dir, &number.to_string())?;
            calls.write(&file, 0, &data)?;
            calls.close(file);
        }
        committing.store(true, Ordering::Relaxed);
        let synced = mounted.sync();
        committing.store(false, Ordering::Relaxed);
        for number in 0..FILES {
            calls.unlink(&dir, &number.to_string())?;
        }
        calls.close(dir);
        synced?;
        std::thread::sleep(Duration::from_millis(100));
    }
    calls.close(root);
    Ok(())
}
