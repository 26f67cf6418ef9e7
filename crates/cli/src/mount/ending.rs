//! SIGTERM, SIGINT and SIGHUP end a mount; SIGUSR1 has it write its statistics to the log.
//!
//! They are waited for in a thread of their own, since umount(2) of `fuseblk` returns only when a
//! serving thread has done the last commit.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, exit};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use ubtrfs_fuse::mount::{Mount, Unmount};
use ubtrfs_server::Shared;

use super::log;
use crate::connection::Connection;
use crate::holders;
use crate::mount_table::{self, Mounted};

/// Transient users of the mount get that many tenths of a second to leave.
const ATTEMPTS: u32 = 10;

/// How long requests that are under way are waited for.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long the kernel may take to write what mappings have changed.
const PATIENCE_WITH_PAGES: Duration = Duration::from_secs(60);
/// How long the kernel may take to let go of a mount that nobody uses.
const TIME_TO_LET_GO: Duration = Duration::from_millis(200);

/// Begins to wait for signals.
pub fn on_signals(mount: Arc<Mount>, server: Arc<Shared>) -> io::Result<()> {
    // Once it is detached the table has it no more.
    let mounted = mount_table::mounted_on(mount.path()).ok().flatten();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                tell_statistics(&server);
                continue;
            }
            tracing::info!(signal, "ending");
            end(&mount, mounted.as_ref(), &server);
        }
    })?;
    Ok(())
}

/// Writes what `ubtrfs stats --json` shows, as one line, whatever level of messages is asked for.
fn tell_statistics(server: &Shared) {
    match serde_json::to_string(&server.report()) {
        Ok(report) => log::note(&format!("statistics: {report}")),
        Err(error) => tracing::warn!("statistics: {error}"),
    }
}

/// Ends the mount. Programs that use it lose it, but not what they have stored: the kernel writes
/// the pages that mappings have changed while there is still somebody to write them to.
fn end(mount: &Mount, mounted: Option<&Mounted>, server: &Shared) {
    for attempt in 0..ATTEMPTS {
        match mount.unmount(Unmount::Now) {
            Ok(()) => return,
            Err(_) if !mount.is_mounted() => break,
            Err(error) if attempt + 1 == ATTEMPTS => tracing::warn!(%error, "programs use the mount: they lose it"),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
    if server.is_ending() {
        return;
    }
    let connection = mounted.map(|mounted| Connection::of(mounted.device));
    let entrance = if mount.is_mounted() { File::open(mount.path()).ok() } else { None };
    let link: Option<PathBuf> =
        entrance.as_ref().map(|open| format!("/proc/{}/fd/{}", std::process::id(), open.as_raw_fd()).into());
    if let Some(link) = &link {
        write_pages(link);
    }
    if mount.is_mounted()
        && let Err(error) = mount.unmount(Unmount::Lazy)
    {
        tracing::warn!(%error, "left mounted");
    }
    // Nobody comes in any more. What programs have stored since is written, too.
    if let Some(link) = link.or_else(|| mounted.and_then(|mounted| link_of_another(mounted.device))) {
        write_pages(&link);
    }
    drop(entrance);
    if let Err(error) = server.engine().sync() {
        tracing::error!("the commit failed: {error}");
    }
    let Some(connection) = connection else { exit(i32::from(server.end().is_err())) };
    // What the kernel began to write is on its way; and if nobody uses the mount any more, the
    // kernel lets go by itself.
    connection.is_idle_within(TIMEOUT);
    let deadline = Instant::now() + TIME_TO_LET_GO;
    while Instant::now() < deadline && connection.is_there() && !server.is_ending() {
        thread::sleep(Duration::from_millis(5));
    }
    // With the connection cut no request comes any more; then the session ends and commits for the
    // last time.
    if !server.is_ending() && !connection.abort() {
        exit(i32::from(server.end().is_err()));
    }
}

/// A link of another process onto a mount that has no place any more but that some still use.
fn link_of_another(device: (u32, u32)) -> Option<PathBuf> {
    let mut holders = holders::of(device).into_iter();
    holders.find(|holder| !holder.is_this_process()).map(|holder| holder.link().to_owned())
}

/// Has the kernel write what it holds of changes, and commits. A process of its own waits for that:
/// if this one were killed meanwhile, a thread of it that waits for itself would never end.
fn write_pages(link: &Path) {
    let mut command = Command::new("/proc/self/exe");
    command.arg0("ubtrfs").args(["sync", "--"]).arg(link);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return tracing::warn!(%error, "what mappings have changed may be lost"),
    };
    let deadline = Instant::now() + PATIENCE_WITH_PAGES;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Ok(Some(status)) if status.success() => return,
            ended => return tracing::warn!(?ended, "what mappings have changed may be lost"),
        }
    }
}
