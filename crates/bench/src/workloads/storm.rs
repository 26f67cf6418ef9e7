//! The rename storm: there is a directory of files, and a log tree since another file was fsynced;
//! then all files are renamed.

use std::time::{Duration, Instant};

use super::case::{Case, Scale};
use crate::calls::{Calls, Handle};
use crate::cleanup;
use crate::failure::Result;
use crate::meter::metered;
use crate::peers::Mounted;
use crate::process::{run, tool};
use crate::samples::{Better, Measured};

fn counts(scale: Scale) -> &'static [u32] {
    scale.pick(&[100], &[2000], &[1000, 10_000], &[1000, 2000, 5000, 10_000])
}

/// Returns the cases with all renames in one process.
pub fn cases(scale: Scale) -> Vec<Case> {
    let case = |&count: &u32| {
        let run = move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, count);
        let title = format!("{count} renames by one process");
        Case::new("storm", format!("storm-{count}"), title, "time", run).in_process()
    };
    counts(scale).iter().map(case).collect()
}

/// Returns the cases with one `mv` for each rename.
pub fn cases_mv(scale: Scale) -> Vec<Case> {
    let case = |&count: &u32| {
        let run = move |mounted: &mut Mounted, measured: &mut Measured| measure_mv(mounted, measured, count);
        let title = format!("{count} renames by one mv each");
        Case::new("storm-mv", format!("storm-mv-{count}"), title, "time", run).programs(&["bash", "mv"])
    };
    counts(scale).iter().map(case).collect()
}

/// Does everything before the renames. Returns the directory.
fn prepare(mounted: &Mounted, calls: &Calls, count: u32) -> Result<Handle> {
    let root = calls.root()?;
    let dir = calls.mkdir(&root, "testdir")?;
    for number in 1..=count {
        calls.close(calls.create(&dir, &format!("file_{number}"))?);
    }
    mounted.sync()?;
    let other = calls.create(&root, "foo")?;
    calls.write(&other, 0, &[1; 4096])?;
    calls.fsync(&other)?;
    calls.close(other);
    calls.close(calls.create(&dir, &format!("file_{}", count + 1))?);
    calls.close(root);
    Ok(dir)
}

fn measure(mounted: &mut Mounted, measured: &mut Measured, count: u32) -> Result<()> {
    let calls = Calls::of(mounted);
    let dir = prepare(mounted, &calls, count)?;
    let names: Vec<(String, String)> =
        (1..=count).map(|number| (format!("file_{number}"), format!("file_{number}-RPMDELETE"))).collect();
    let mut longest = Duration::ZERO;
    let (seconds, usage) = metered(mounted, || {
        let start = Instant::now();
        for (from, to) in &names {
            let before = Instant::now();
            calls.rename(&dir, from, to)?;
            longest = longest.max(before.elapsed());
            cleanup::check()?;
        }
        Ok(start.elapsed().as_secs_f64())
    })?;
    calls.close(dir);
    record(measured, count, seconds);
    measured.add("longest", longest.as_secs_f64() * 1e6, "µs", Better::Lower);
    usage.per_operation(measured, f64::from(count));
    Ok(())
}

fn measure_mv(mounted: &mut Mounted, measured: &mut Measured, count: u32) -> Result<()> {
    let calls = Calls::of(mounted);
    let dir = prepare(mounted, &calls, count)?;
    calls.close(dir);
    let script = r#"for ((i = 1; i <= $1; i++)); do mv "$2/file_$i" "$2/file_$i-RPMDELETE"; done"#;
    let mut bash = tool("bash")?;
    bash.args(["-ec", script, "storm", &count.to_string()]).arg(mounted.directory().join("testdir"));
    let (seconds, usage) = metered(mounted, || {
        let start = Instant::now();
        run(&mut bash, Duration::from_secs(3600))?;
        Ok(start.elapsed().as_secs_f64())
    })?;
    record(measured, count, seconds);
    usage.per_operation(measured, f64::from(count));
    Ok(())
}

fn record(measured: &mut Measured, count: u32, seconds: f64) {
    measured.add("time", seconds * 1e3, "ms", Better::Lower);
    measured.add("each", seconds * 1e6 / f64::from(count), "µs", Better::Lower);
}
