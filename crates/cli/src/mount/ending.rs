//! SIGTERM, SIGINT and SIGHUP end a mount; SIGUSR1 has it write its statistics to the log.
//!
//! They are waited for in a thread of their own, since umount(2) of `fuseblk` returns only when a serving thread has done
//! the last commit.

use std::io;
use std::process::exit;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use ubtrfs_fuse::mount::{Mount, Unmount};
use ubtrfs_server::Shared;

use super::log;
use crate::mount_table;

/// Whoever only looked in is given that many tenths of a second to leave.
const ATTEMPTS: u32 = 10;

/// Begins to wait for signals.
pub fn on_signals(mount: Arc<Mount>, server: Arc<Shared>) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                tell_statistics(&server);
                continue;
            }
            tracing::info!(signal, "ending");
            end(&mount, &server);
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

fn end(mount: &Mount, server: &Shared) {
    for attempt in 0..ATTEMPTS {
        match mount.unmount(Unmount::Now) {
            Ok(()) => return,
            Err(_) if !mount.is_mounted() => return,
            Err(error) if attempt + 1 == ATTEMPTS => tracing::warn!(%error, "programs use the mount: they lose it"),
            Err(_) => thread::sleep(Duration::from_millis(100)),
        }
    }
    if let Err(error) = server.engine().sync() {
        tracing::error!("the commit failed: {error}");
    }
    let connection = connection(mount);
    if let Err(error) = mount.unmount(Unmount::Lazy) {
        tracing::warn!(%error, "left mounted");
    }
    // With the connection cut no request comes any more; then the session ends and commits for the last time.
    let cut = connection
        .is_some_and(|number| std::fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), b"1").is_ok());
    if !cut {
        exit(i32::from(server.end().is_err()));
    }
}

/// The mount's number in the kernel's control file system.
fn connection(mount: &Mount) -> Option<u32> {
    let (major, minor) = mount_table::mounted_on(mount.path()).ok().flatten()?.device;
    Some(major << 20 | minor)
}
