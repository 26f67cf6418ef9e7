//! Makes a flame graph, by perf, of where the server spends its time.

use std::io::BufReader;
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use inferno::collapse::Collapse;
use inferno::collapse::perf::{Folder, Options as FoldOptions};
use inferno::flamegraph::{self, Options as GraphOptions};
use rustix::process::{Signal, kill_process};

use crate::args::Profile;
use crate::cleanup::{self, Yard};
use crate::failure::{Failure, Result};
use crate::peers::{Conditions, Peer};
use crate::process::{SOON, pid, tool};
use crate::samples::Measured;
use crate::table::short;
use crate::workloads::{self, Scale};

/// Samples per second: not a round number, so that it does not coincide with periodic events.
const FREQUENCY: &str = "997";

/// Runs the first case of a workload once while perf records the server, and draws the result.
pub fn run(what: &Profile) -> Result<()> {
    let cases = workloads::named(&what.workload, Scale::Quick)?;
    let case = cases.first().ok_or_else(|| Failure::new("nothing to run"))?;
    let peer = Peer::named(&what.peer)?;
    if let Some(why) = peer.missing() {
        return Err(Failure::Impossible(format!("{}: {why}", peer.name)));
    }
    let yard = Yard::new(&what.dir)?;
    cleanup::listen(yard.path())?;
    let mut mounted = peer.begin(yard.path(), Scale::Quick.volume(), Conditions::default())?;
    let daemon = mounted.daemon().ok_or_else(|| Failure::new(format!("{} has no server to look at", peer.name)))?;
    let data = yard.path().join("perf.data");
    let mut perf = tool("perf")?;
    perf.args([
        "record",
        "--quiet",
        "--freq",
        FREQUENCY,
        "--call-graph",
        "fp",
        "--pid",
        &daemon.to_string(),
        "--output",
    ]);
    let mut recorder = perf.arg(&data).stdin(Stdio::null()).process_group(0).spawn()?;
    // Waits until perf has found the server's threads, before they work.
    std::thread::sleep(Duration::from_millis(500));
    let mut measured = Measured::default();
    let done = (case.run)(&mut mounted, &mut measured);
    let _ = kill_process(pid(&recorder), Signal::INT);
    let ended = recorder.wait();
    mounted.unmount()?;
    done?;
    ended?;
    draw(&data, what, &case.facts.title)?;
    if let Some(metric) = measured.metrics.get(&case.facts.headline) {
        println!("{}: {} {}, while perf looked on", case.facts.title, short(metric.value), metric.unit);
    }
    println!("{}", what.out.display());
    Ok(())
}

/// Draws the flame graph of what perf recorded.
fn draw(data: &std::path::Path, what: &Profile, title: &str) -> Result<()> {
    let mut script = tool("perf")?;
    script.args(["script", "--force", "--input"]).arg(data).stdin(Stdio::null()).stderr(Stdio::null());
    let mut script = script.stdout(Stdio::piped()).process_group(0).spawn()?;
    let _watched = cleanup::watch(pid(&script), SOON);
    let output = script.stdout.take().ok_or_else(|| Failure::new("no pipe"))?;
    let mut folded = Vec::new();
    let folding = Folder::from(FoldOptions::default()).collapse(BufReader::new(output), &mut folded);
    let status = script.wait()?;
    cleanup::check()?;
    folding.map_err(|error| Failure::about("perf script", &error))?;
    if !status.success() || folded.is_empty() {
        return Err(Failure::new("perf saw nothing (may it look? see /proc/sys/kernel/perf_event_paranoid)"));
    }
    let mut options = GraphOptions::default();
    options.title = format!("{} serving: {title}", what.peer);
    let file = std::fs::File::create(&what.out).map_err(|error| Failure::about(what.out.display(), &error))?;
    flamegraph::from_reader(&mut options, folded.as_slice(), file)
        .map_err(|error| Failure::about("flame graph", &error))
}
