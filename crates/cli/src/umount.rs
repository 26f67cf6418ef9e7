//! `ubtrfs umount`: returns when the last commit is durable and the device is free.

use std::path::Path;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use ubtrfs_fuse::mount::{MountError, Unmount, is_dead, unmount};
use ubtrfs_tree::sentence;

use crate::args;
use crate::connection::Connection;
use crate::control;
use crate::failure::{Failure, Result};
use crate::holders::users;
use crate::mount_table::{self, Mounted};
use crate::server_process::Servers;
use crate::trust::is_trusted;

/// The time for transient users of the mount to leave. A process that forks while a file is open
/// here passes a copy of the descriptor to its child, which uses the mount until it executes its
/// program; so a mount may be busy briefly after its last user has closed everything.
const TIME_TO_LEAVE: Duration = Duration::from_secs(2);
/// After this time the user gets a message about the wait.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may take to note that it is ended by force.
const TIME_TO_NOTE: Duration = Duration::from_secs(1);
/// And to end then: it gives up devices that are away after five seconds.
const TIMEOUT_OF_FORCE: Duration = Duration::from_secs(65);
/// The longest time that a server of ours is waited for: as good as no limit.
const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// `ubtrfs umount`
pub fn run(arguments: &args::Umount) -> Result<()> {
    let path = mount_table::resolve(&arguments.directory)?;
    let shown = path.display();
    let mounted = match mount_table::mounted_on(&path)? {
        None if arguments.dead => return Ok(()),
        None => return Err(Failure::new(format!("nothing is mounted on {shown}"))),
        Some(mounted) if !mounted.is_ours() => {
            return Err(Failure::new(format!("what is mounted on {shown} is not ubtrfs")));
        }
        Some(mounted) => mounted,
    };
    if arguments.force && !arguments.dead {
        return force(&path, &mounted);
    }
    let report = control::report(&path);
    if matches!(report, Err(Errno::NOTCONN | Errno::CONNABORTED)) || is_dead(&path) {
        return clear(&path, &mounted);
    }
    if arguments.dead {
        return Ok(());
    }
    // Before the mount has ended, since then its server is not found.
    let servers = Servers::of(&mounted, report.as_ref().ok().map(|report| report.pid));
    let aborted = report.ok().and_then(|report| report.aborted);
    let synced = control::sync_mount(&path);
    unmount_with_retries(&path).map_err(|error| failure(&path, mounted.device, &error))?;
    // The server ends with the last mount of the volume.
    if !mount_table::is_mounted_anywhere(mounted.device)? {
        wait(&path, &servers, if is_trusted(&mounted) { A_DAY } else { control::TIMEOUT_OF_OTHERS })?;
    }
    match (aborted, synced) {
        (Some(reason), _) => {
            Err(Failure::new(format!("{shown} is unmounted, but had turned read-only after an error: {reason}")))
        }
        (None, Err(errno)) if !mounted.read_only && !matches!(errno, Errno::ACCESS | Errno::PERM) => {
            Err(Failure::new(format!(
                "{shown} is unmounted, but the last changes could not be made durable: {}",
                sentence(&std::io::Error::from(errno))
            )))
        }
        _ => Ok(()),
    }
}

/// Takes a mount whose server has died out of the tree. The server holds nothing back; processes
/// inside get errors anyway.
fn clear(path: &Path, mounted: &Mounted) -> Result<()> {
    unmount(path, Unmount::Lazy).map_err(|error| failure(path, mounted.device, &error))?;
    eprintln!("ubtrfs: the server of {} had died: what was neither synced nor committed is lost", path.display());
    Ok(())
}

/// Ends a mount that is in use or not: requests fail, and the server commits what it has, or, if it
/// can't reach a device, does not wait for it. No process is signalled: the server gets a request
/// before, and nobody waits for one that does not answer (invariant 53).
///
/// Other mounts of the volume stay, and keep the server: this one is detached only.
fn force(path: &Path, mounted: &Mounted) -> Result<()> {
    if mount_table::points_of(mounted.device)?.len() > 1 {
        unmount(path, Unmount::Lazy).map_err(|error| failure(path, mounted.device, &error))?;
        eprintln!("ubtrfs: the volume is still mounted elsewhere; programs that use {} go on", path.display());
        return Ok(());
    }
    let (sender, receiver) = channel();
    let place = path.to_owned();
    // If it hangs, the abort ends it.
    let telling = thread::Builder::new().spawn(move || sender.send(control::expect_force(&place)));
    let noted = telling.ok().and_then(|_| receiver.recv_timeout(TIME_TO_NOTE).ok());
    if matches!(noted, Some(Err(Errno::NOTCONN | Errno::CONNABORTED))) {
        return clear(path, mounted);
    }
    let servers = Servers::of(mounted, None);
    let is_aborted = Connection::of(mounted.device).abort();
    unmount(path, Unmount::Lazy).map_err(|error| failure(path, mounted.device, &error))?;
    if !servers.have_ended(Instant::now() + TIMEOUT_OF_FORCE)? {
        let why = if is_aborted { "" } else { " (its connection could not be aborted)" };
        return Err(Failure::new(format!("{} is unmounted, but its server has not ended{why}", path.display())));
    }
    Ok(())
}

/// Waits for the end of the servers.
fn wait(path: &Path, servers: &Servers, limit: Duration) -> Result<()> {
    let now = Instant::now();
    if servers.have_ended(now + TIMEOUT.min(limit))? {
        return Ok(());
    }
    if limit > TIMEOUT {
        eprintln!(
            "ubtrfs: waiting for the server of {} to end (it may still be writing, or be mounted elsewhere)",
            path.display()
        );
        if servers.have_ended(now + limit)? {
            return Ok(());
        }
    }
    Err(Failure::new(format!("{} is unmounted, but its server has not ended", path.display())))
}

fn unmount_with_retries(path: &Path) -> std::result::Result<(), MountError> {
    let deadline = Instant::now() + TIME_TO_LEAVE;
    loop {
        match unmount(path, Unmount::Now) {
            Err(error) if is_busy(&error) && Instant::now() < deadline => thread::sleep(Duration::from_millis(20)),
            done => return done,
        }
    }
}

fn is_busy(error: &MountError) -> bool {
    match error {
        MountError::Unmount(_, source) => Errno::from_io_error(source) == Some(Errno::BUSY),
        MountError::Fusermount(said) => said.contains("busy"),
        _ => false,
    }
}

fn failure(path: &Path, device: (u32, u32), error: &MountError) -> Failure {
    if is_busy(error) {
        return Failure::new(format!("{} is busy: {}", path.display(), users(device)));
    }
    Failure::of(error)
}
