//! Programs on a volume on a server with delayed answers: they unpack and check out files, use a
//! database and a file server, and read with cold caches.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::case::{Case, Scale};
use super::dbench;
use super::tree::{git, sources};
use crate::cleanup;
use crate::failure::{Failure, Result};
use crate::peers::Mounted;
use crate::process::{run, tool};
use crate::samples::{Better, Measured};

/// The steps that the table shows, in their order.
const STEPS: [&str; 8] =
    ["untar", "checkout", "sqlite", "dbench", "mount, cold", "ls -lR, cold", "git status, cold", "tar -c, cold"];
/// Transactions of the database.
const TRANSACTIONS: u32 = 100;
/// The limit of a step's time, after which it counts as hanging.
const LIMIT: Duration = Duration::from_secs(3600);

pub fn cases(scale: Scale) -> Vec<Case> {
    let delays: &[u64] = if scale == Scale::Tiny { &[1] } else { &[0, 1, 5, 20] };
    let directories = scale.pick(2, 50, 250, 250);
    let seconds = scale.pick(2, 4, 8, 8);
    delays
        .iter()
        .map(|&millis| {
            let run =
                move |mounted: &mut Mounted, measured: &mut Measured| measure(mounted, measured, directories, seconds);
            let title = format!("a server with a delay of {millis} ms");
            let case = Case::new("network", format!("network-{millis}"), title, "time", run);
            case.programs(&["nbdkit", "nbdfuse", "tar", "git", "sqlite3", "dbench", "sh", "ls", "wc"])
                .on_server(Duration::from_millis(millis), &STEPS)
        })
        .collect()
}

fn measure(mounted: &mut Mounted, measured: &mut Measured, directories: u32, seconds: u32) -> Result<()> {
    let yard = mounted.directory().parent().unwrap_or(Path::new("/")).to_owned();
    let (archive, repository) = sources(&yard, directories)?;
    let place = mounted.directory().to_owned();
    let clone = place.join("clone");

    step(measured, "untar", || {
        run(tool("tar")?.arg("-xf").arg(&archive).arg("-C").arg(&place), LIMIT)?;
        mounted.sync()
    })?;
    step(measured, "checkout", || {
        run(git().args(["clone", "--quiet"]).arg(&repository).arg(&clone), LIMIT)?;
        mounted.sync()
    })?;
    step(measured, "sqlite", || {
        let insert = |number| format!("INSERT INTO t VALUES ({number});");
        let script: String = (0..TRANSACTIONS).map(insert).collect();
        let script = format!("PRAGMA journal_mode=WAL; CREATE TABLE t (x); {script}");
        run(tool("sqlite3")?.arg(place.join("database")).arg(script), LIMIT).map(drop)
    })?;
    let throughput = dbench::throughput(&place, seconds)?;
    measured.add("dbench", throughput, "MB/s", Better::Higher);

    again(mounted)?;
    measured.add("mount, cold", mounted.mount_took().as_secs_f64() * 1e3, "ms", Better::Lower);
    step(measured, "ls -lR, cold", || run(tool("ls")?.arg("-lR").arg(place.join("tree")), LIMIT).map(drop))?;
    again(mounted)?;
    step(measured, "git status, cold", || {
        let printed = run(git().env("GIT_OPTIONAL_LOCKS", "0").arg("-C").arg(&clone).args(["status", "-s"]), LIMIT)?;
        if printed.is_empty() { Ok(()) } else { Err(Failure::new(format!("the clone has changed: {printed}"))) }
    })?;
    again(mounted)?;
    let mut bytes = 0;
    step(measured, "tar -c, cold", || {
        // tar does not read files when it writes to /dev/null, so it writes to a pipe.
        let pipe = "tar -c -C \"$1\" tree | wc -c";
        let printed = run(Command::new("sh").args(["-c", pipe, "sh"]).arg(&place), LIMIT)?;
        bytes = printed.trim().parse().map_err(|error| Failure::about("wc", &error))?;
        Ok(())
    })?;
    let expected = std::fs::metadata(&archive)?.len();
    if bytes != expected {
        return Err(Failure::new(format!("the tree is an archive of {bytes} bytes, not {expected}")));
    }
    let timed = STEPS.iter().filter_map(|name| measured.metrics.get(*name)).filter(|metric| metric.unit == "ms");
    let time = timed.map(|metric| metric.value).sum();
    measured.add("time", time, "ms", Better::Lower);
    Ok(())
}

fn step(measured: &mut Measured, name: &str, action: impl FnOnce() -> Result<()>) -> Result<()> {
    cleanup::check()?;
    let start = Instant::now();
    action()?;
    measured.add(name, start.elapsed().as_secs_f64() * 1e3, "ms", Better::Lower);
    Ok(())
}

/// Mounts again, so that everything is on the server, and nothing in memory here.
fn again(mounted: &mut Mounted) -> Result<()> {
    mounted.unmount()?;
    mounted.mount()
}
