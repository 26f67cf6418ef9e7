//! `ubtrfs umount`: returns when the last commit is durable and the device is free.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use ubtrfs_fuse::mount::{MountError, Unmount, is_dead, unmount};
use ubtrfs_server::control::Report;
use ubtrfs_tree::sentence;

use crate::args;
use crate::connection::Connection;
use crate::control;
use crate::failure::{Failure, Result};
use crate::holders::users;
use crate::mount_table;
use crate::process;

/// The time for transient users of the mount to leave. A process that forks while a file is open
/// here passes a copy of the descriptor to its child, which uses the mount until it executes its
/// program; so a mount may be busy briefly after its last user has closed everything.
const TIME_TO_LEAVE: Duration = Duration::from_secs(2);
/// After this time the user gets a message about the wait.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long the last commit may take before a server that is ended by force is asked to hurry.
const TIME_TO_COMMIT: Duration = Duration::from_secs(5);
/// And how long it may take then.
const TIMEOUT_OF_FORCE: Duration = Duration::from_secs(60);

/// `ubtrfs umount`
pub fn run(arguments: &args::Umount) -> Result<()> {
    let path = mount_table::resolve(&arguments.directory)?;
    let shown = path.display();
    let (device, read_only, user) = match mount_table::mounted_on(&path)? {
        None if arguments.dead => return Ok(()),
        None => return Err(Failure::new(format!("nothing is mounted on {shown}"))),
        Some(mounted) if !mounted.is_ours() => {
            return Err(Failure::new(format!("what is mounted on {shown} is not ubtrfs")));
        }
        Some(mounted) => (mounted.device, mounted.read_only, mounted.user),
    };
    let report = control::report(&path);
    if matches!(report, Err(Errno::NOTCONN | Errno::CONNABORTED)) || is_dead(&path) {
        // A server that has died holds nothing back; processes inside will get errors anyway.
        unmount(&path, Unmount::Lazy).map_err(|error| failure(&path, device, &error))?;
        eprintln!("ubtrfs: the server of {shown} had died: what was neither synced nor committed is lost");
        return Ok(());
    }
    if arguments.dead {
        return Ok(());
    }
    // Before the mount has ended, since then there is no server to query.
    let server = report.as_ref().ok().and_then(process_of);
    if arguments.force {
        return force(&path, device, server.as_ref());
    }
    let aborted = report.ok().and_then(|report| report.aborted);
    let synced = control::sync_mount(&path);
    unmount_with_retries(&path).map_err(|error| failure(&path, device, &error))?;
    if let Some(server) = server {
        // Only the server reports its process. Another user's server may name any process.
        let is_ours = user.is_none_or(|user| user == 0 || user == rustix::process::getuid().as_raw());
        let deadline = (!is_ours).then(|| Instant::now() + control::TIMEOUT_OF_OTHERS);
        wait(&path, &server, deadline)?;
    }
    match (aborted, synced) {
        (Some(reason), _) => {
            Err(Failure::new(format!("{shown} is unmounted, but had turned read-only after an error: {reason}")))
        }
        (None, Err(errno)) if !read_only && !matches!(errno, Errno::ACCESS | Errno::PERM) => {
            Err(Failure::new(format!(
                "{shown} is unmounted, but the last changes could not be made durable: {}",
                sentence(&std::io::Error::from(errno))
            )))
        }
        _ => Ok(()),
    }
}

/// Ends a mount that is in use or not: requests fail, and the server commits what it has, or, if it
/// can't reach a device, does not wait for it.
fn force(path: &Path, device: (u32, u32), server: Option<&OwnedFd>) -> Result<()> {
    let is_aborted = Connection::of(device).abort();
    unmount(path, Unmount::Lazy).map_err(|error| failure(path, device, &error))?;
    let Some(server) = server else { return Ok(()) };
    if !has_ended(server, TIME_TO_COMMIT)? {
        // It does not know that nobody waits, if nobody did.
        let _ = pidfd_send_signal(server, Signal::TERM);
    }
    if !has_ended(server, TIMEOUT_OF_FORCE)? {
        let why = if is_aborted { "" } else { " (its connection could not be aborted)" };
        return Err(Failure::new(format!("{} is unmounted, but its server has not ended{why}", path.display())));
    }
    Ok(())
}

/// Whether a process ends within that time.
fn has_ended(server: &OwnedFd, within: Duration) -> Result<bool> {
    let deadline = Instant::now() + within;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&left)) {
            Ok(count) => return Ok(count > 0),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::about("waiting for the server", &std::io::Error::from(errno))),
        }
    }
}

/// The server's process, if it is visible from here and is the one that answered.
fn process_of(report: &Report) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(report.pid).ok()?)?;
    let process = pidfd_open(pid, PidfdFlags::empty()).ok()?;
    (process::started(&report.pid.to_string()) == Some(report.pid_started)).then_some(process)
}

fn wait(path: &Path, server: &OwnedFd, deadline: Option<Instant>) -> Result<()> {
    let mut reported = false;
    loop {
        let mut fds = [PollFd::new(server, PollFlags::IN)];
        let left = deadline.map_or(TIMEOUT, |deadline| deadline.saturating_duration_since(Instant::now()).min(TIMEOUT));
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut fds, Some(&left)) {
            Ok(0) if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                return Err(Failure::new(format!(
                    "{} is unmounted, but the process that says that it is its server has not ended",
                    path.display()
                )));
            }
            Ok(0) if !reported => {
                reported = true;
                eprintln!(
                    "ubtrfs: waiting for the server of {} to end (it may still be writing, or be mounted elsewhere)",
                    path.display()
                );
            }
            Ok(0) | Err(Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(errno) => return Err(Failure::about("waiting for the server", &std::io::Error::from(errno))),
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_another_user_has_named_is_not_waited_for_for_ever() {
        let own = pidfd_open(rustix::process::getpid(), PidfdFlags::empty()).unwrap();
        let deadline = Instant::now() + Duration::from_millis(100);
        let waited = wait(Path::new("/point"), &own, Some(deadline));
        assert!(matches!(waited, Err(Failure::Sentence(said, _)) if said.contains("has not ended")));
    }
}
