//! Runs the server in the background. The server is this program, started again with another
//! argument: threads and rings don't survive a fork, so nothing is opened before. It reports over
//! its standard output that the mount is ready. Until then it has our standard error stream, and
//! its exit status becomes ours.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ubtrfs_fuse::mount::{MountError, Point, Unmount, is_dead};

use super::log;
use super::serve::Job;
use crate::failure::{Failure, Result};
use crate::mount_table::mounted_on;
use crate::process;

const READY: &str = "ready";
/// The environment variable with the delay, in milliseconds, after which the allocator returns
/// freed memory to the system. Without a delay each fsync would fault its pages in again; with the
/// allocator's default of a second, memory that a commit freed would stay in an idle server for
/// days.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";

/// How long a failed mount waits until a process for the unmount can be started.
const TIME_FOR_A_PROCESS: Duration = Duration::from_secs(30);

/// Starts the server, and returns when the mount is ready.
pub fn start(options: &[String], job: &Job) -> Result<()> {
    let failed = |error: io::Error| Failure::about("the server can't be started", &error);
    process::keep_descriptors();
    // The mount table tells, since a server that is mounted there already might never answer.
    let mounted = || mounted_on(&job.directory).ok().flatten().map(|mounted| mounted.device);
    let before = mounted();
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ubtrfs").args(["mount", "--server"]);
    for list in options {
        command.arg(format!("--options={list}"));
    }
    if let Some(process) = job.tied_to {
        command.arg(format!("--tied-to={process}"));
    }
    for device in &job.request.given_up {
        command.arg(format!("--discard-device={device}"));
    }
    command.args(&job.devices).arg(&job.directory);
    if std::env::var_os(PURGE_DELAY).is_none() {
        command.env(PURGE_DELAY, "10");
    }
    let mut server = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    let mut line = String::new();
    if let Some(output) = server.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(failed)?;
    }
    if line.trim_end() == READY {
        return Ok(());
    }
    let status = server.wait().map_err(failed)?;
    let left = mounted();
    if left != before
        && let Ok(point) = Point::open(&job.directory)
        && point.device_number() == left
        && is_dead(&point.place())
        && let Err(error) = unmount_patiently(&point)
    {
        tracing::warn!(%error, "the mount of a server that has failed is left");
    }
    match status.code() {
        Some(code) if code != 0 => Err(Failure::Said(u8::try_from(code).unwrap_or(1))),
        Some(_) => Err(Failure::new("the volume was unmounted at once")),
        None => Err(Failure::new(format!("the server ended before the mount was ready: {status}"))),
    }
}

/// Unmounts what a server has left. If the limit of the user's processes is reached, waits for one
/// to end.
fn unmount_patiently(point: &Point) -> std::result::Result<(), MountError> {
    let deadline = Instant::now() + TIME_FOR_A_PROCESS;
    loop {
        match point.unmount(Unmount::Lazy) {
            Err(MountError::NoFusermount(error))
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < deadline => {}
            result => return result,
        }
    }
}

/// Leaves the process group and the working directory of the process that started this one: signals
/// that a terminal sends to its foreground processes are not for the server.
///
/// The session stays the same. Linux groups processes by sessions for scheduling (autogroup). If a
/// server is in another group than its clients, Linux moves the clients to another processor with
/// each answer: on virtual machines a request then takes 36 µs instead of 11.
pub fn detach() -> Result<()> {
    // The program was started through its link in `/proc`, whose name is "exe".
    let _ = rustix::thread::set_name(c"ubtrfs");
    let failed = |error: rustix::io::Errno| Failure::about("the server can't detach", &io::Error::from(error));
    rustix::process::setpgid(None, None).map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)
}

/// Reports that the mount is ready, and detaches from the terminal.
pub fn ready() -> Result<()> {
    let failed = |error: io::Error| Failure::about("the server can't report", &error);
    let null: File = OpenOptions::new().read(true).write(true).open("/dev/null").map_err(failed)?;
    log::leave_terminal();
    // The process that waits for the report may have ended; the mount stays.
    let mut out = io::stdout();
    let _ = writeln!(out, "{READY}").and_then(|()| out.flush());
    let failed = |error: rustix::io::Errno| failed(error.into());
    rustix::stdio::dup2_stdin(&null).map_err(failed)?;
    rustix::stdio::dup2_stdout(&null).map_err(failed)?;
    rustix::stdio::dup2_stderr(&null).map_err(failed)
}
