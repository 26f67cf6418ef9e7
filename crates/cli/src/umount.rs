//! `ubtrfs umount`: unmounts, and returns when the last commit is durable and the device is free.
//!
//! The server of another user's mount may delay its answer, and by then the path of the mount may
//! refer to something else. Only the mount that was found at first is asked and unmounted
//! (invariant 52).

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use ubtrfs_errors::sentence;
use ubtrfs_fuse::Connection;
use ubtrfs_fuse::mount::{MountError, Point, Unmount, is_dead};

use crate::args;
use crate::control;
use crate::failure::{Failure, Result};
use crate::holders::users;
use crate::mount_table::{self, Mounted};
use crate::output::note;
use crate::server_process::Servers;
use crate::trust::is_trusted;

/// The time for transient users of the mount to leave. A process that forks while a file is open
/// here passes a copy of the descriptor to its child, which uses the mount until it executes its
/// program; so a mount may be busy briefly after its last user has closed everything.
const TIME_TO_LEAVE: Duration = Duration::from_secs(2);
/// After this time the user gets a message about the wait.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long a server may take to note the announcement of an abort.
const TIME_TO_NOTE: Duration = Duration::from_secs(1);
/// How long it may then take to end: it gives up devices that are away after five seconds.
const TIMEOUT_OF_FORCE: Duration = Duration::from_secs(65);
/// The longest time to wait for a server of our own, which is practically no limit.
const A_DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// The mount that is to be unmounted.
struct Target {
    /// Its path, for messages.
    path: PathBuf,
    point: Point,
    mounted: Mounted,
}

/// `ubtrfs umount`
pub fn run(arguments: &args::Umount) -> Result<()> {
    let path = mount_table::resolve(&arguments.directory)?;
    let target = match Target::find(&path)? {
        Some(target) => target,
        None if arguments.dead => return Ok(()),
        None => return Err(Failure::new(format!("nothing is mounted on {}", path.display()))),
    };
    let (shown, mounted) = (target.path.display(), &target.mounted);
    if arguments.force && !arguments.dead {
        return target.force();
    }
    let place = target.point.place();
    let report = control::report(&place);
    if matches!(report, Err(Errno::NOTCONN | Errno::CONNABORTED)) || is_dead(&place) {
        return target.clear();
    }
    if arguments.dead {
        return Ok(());
    }
    // The servers are found before the mount ends, since afterwards they cannot be.
    let servers = Servers::of(mounted, report.as_ref().ok().map(|report| report.pid));
    let aborted = report.ok().and_then(|report| report.aborted);
    let synced = control::sync_mount(&place);
    target.unmount_with_retries()?;
    // The server ends with the last mount of the volume.
    if !mount_table::is_mounted_anywhere(mounted.device)? {
        wait(&target.path, &servers, if is_trusted(mounted) { A_DAY } else { control::TIMEOUT_OF_OTHERS })?;
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

impl Target {
    /// Returns the mount at a path, according to the mount table; `None` if there is none. An error
    /// if it is not a mount of ubtrfs.
    fn find(path: &Path) -> Result<Option<Self>> {
        let point = Point::open(path).map_err(|error| Failure::about(path.display(), &error))?;
        let Some(mounted) = mount_table::mounted_on(path)? else { return Ok(None) };
        if !mounted.is_ours() {
            return Err(Failure::new(format!("what is mounted on {} is not ubtrfs", path.display())));
        }
        let target = Self { path: path.into(), point, mounted };
        target.check()?;
        Ok(Some(target))
    }

    /// Returns an error unless the mount is still the one that was found at first.
    fn check(&self) -> Result<()> {
        if self.point.device_number() != Some(self.mounted.device) {
            // By invariant 52.
            return Err(Failure::new(format!("{} is mounted no more, or something else is", self.path.display())));
        }
        Ok(())
    }

    fn unmount(&self, how: Unmount) -> Result<()> {
        self.check()?;
        self.point.unmount(how).map_err(|error| self.failure(&error))
    }

    /// Detaches a mount whose server has died. The server no longer holds any data; processes on
    /// the mount get errors anyway.
    fn clear(&self) -> Result<()> {
        self.unmount(Unmount::Lazy)?;
        note!("ubtrfs: the server of {} had died: what was neither synced nor committed is lost", self.path.display());
        Ok(())
    }

    /// Ends a mount, even if it is in use: requests fail, and the server commits what it has, but
    /// does not wait for a device that it can't reach. No process gets a signal: the server gets a
    /// request before, and nobody waits for a server that does not answer (invariant 39).
    ///
    /// If the volume has other mounts, they and the server stay: this one is only detached.
    fn force(&self) -> Result<()> {
        let shown = self.path.display();
        if mount_table::points_of(self.mounted.device)?.len() > 1 {
            self.unmount(Unmount::Lazy)?;
            note!("ubtrfs: the volume is still mounted elsewhere; programs that use {shown} go on");
            return Ok(());
        }
        let (sender, receiver) = channel();
        let place = self.point.place();
        // If the request hangs, the abort ends it.
        let telling = thread::Builder::new().spawn(move || sender.send(control::expect_force(&place)));
        let noted = telling.ok().and_then(|_| receiver.recv_timeout(TIME_TO_NOTE).ok());
        if matches!(noted, Some(Err(Errno::NOTCONN | Errno::CONNABORTED))) {
            return self.clear();
        }
        let servers = Servers::of(&self.mounted, None);
        let is_aborted = Connection::of(self.mounted.device).abort();
        self.unmount(Unmount::Lazy)?;
        if !servers.have_ended(Instant::now() + TIMEOUT_OF_FORCE)? {
            let why = if is_aborted { "" } else { " (its connection could not be aborted)" };
            return Err(Failure::new(format!("{shown} is unmounted, but its server has not ended{why}")));
        }
        Ok(())
    }

    fn unmount_with_retries(&self) -> Result<()> {
        let deadline = Instant::now() + TIME_TO_LEAVE;
        loop {
            // Its user may have unmounted it meanwhile, and then what it covered is visible there.
            self.check()?;
            match self.point.unmount(Unmount::Now) {
                Err(error) if is_busy(&error) && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(20));
                }
                done => return done.map_err(|error| self.failure(&error)),
            }
        }
    }

    fn failure(&self, error: &MountError) -> Failure {
        if is_busy(error) {
            return Failure::new(format!("{} is busy: {}", self.path.display(), users(self.mounted.device)));
        }
        match (error, mount_table::mounter_of(&self.mounted)) {
            (MountError::Fusermount(_), Some(user)) if !is_own(&self.mounted) => {
                let who = if user == "root" { user } else { format!("{user} or root") };
                let path = self.path.display();
                Failure::new(format!("{path} was mounted by another user: {who} can end it, by 'ubtrfs umount {path}'"))
            }
            _ => Failure::of(error),
        }
    }
}

/// Whether the user of this process has mounted it.
fn is_own(mounted: &Mounted) -> bool {
    mounted.user == Some(rustix::process::getuid().as_raw())
}

/// Waits until the servers have ended.
fn wait(path: &Path, servers: &Servers, limit: Duration) -> Result<()> {
    let now = Instant::now();
    if servers.have_ended(now + TIMEOUT.min(limit))? {
        return Ok(());
    }
    if limit > TIMEOUT {
        note!(
            "ubtrfs: waiting for the server of {} to end (it may still be writing, or be mounted elsewhere)",
            path.display()
        );
        if servers.have_ended(now + limit)? {
            return Ok(());
        }
    }
    Err(Failure::new(format!("{} is unmounted, but its server has not ended", path.display())))
}

fn is_busy(error: &MountError) -> bool {
    match error {
        MountError::Unmount(_, source) => Errno::from_io_error(source) == Some(Errno::BUSY),
        MountError::Fusermount(said) => said.contains("busy"),
        _ => false,
    }
}
