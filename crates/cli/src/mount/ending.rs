//! SIGTERM, SIGINT and SIGHUP end a mount; SIGUSR1 has it write its statistics to the log.
//!
//! A thread of its own waits for the signals, since umount(2) of `fuseblk` returns only when a
//! serving thread has done the last commit. Everything that may send requests to this server, or
//! wait for requests of other servers, runs in other threads or processes, and is waited for with a
//! limit: hanging requests must not keep the server alive. The threads' wait ends when the
//! connection is aborted.
//!
//! A server may have several mounts (`super::again`). All of them are unmounted, but none that a
//! later server has made of the same device.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use ubtrfs_fuse::Connection;
use ubtrfs_fuse::mount::{Mount, Unmount};
use ubtrfs_server::Shared;

use super::log;
use crate::mount_table::{self, Mounted};

/// The time for short-term users of the mount to leave.
const TIME_TO_LEAVE: Duration = Duration::from_secs(1);
/// The limit of the wait for requests in progress.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long the kernel may take to write the pages that mappings have changed.
const TIMEOUT_OF_PAGES: Duration = Duration::from_secs(60);
/// The longest time without any such page before the wait for them ends.
const TIMEOUT_WITHOUT_PAGES: Duration = Duration::from_secs(12);
/// How long the kernel may take to release an unused mount.
const TIME_TO_LET_GO: Duration = Duration::from_millis(500);
/// The interval of the checks.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Starts the thread that waits for signals.
pub fn on_signals(mount: Arc<Mount>, server: Arc<Shared>) -> io::Result<()> {
    // The mount is looked up now: once it is detached, it is no longer in the table.
    let mounted = mount_table::mounted_on(mount.path()).ok().flatten();
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP, SIGUSR1])?;
    thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            if signal == SIGUSR1 {
                log_statistics(&server);
                continue;
            }
            tracing::info!(signal, "ending");
            if server.is_disconnected() {
                // The server ends already, unless it waits for a device that is away.
                server.stop_waiting();
                continue;
            }
            Ending { mount: &mount, mounted: mounted.as_ref(), server: &server }.run();
        }
    })?;
    Ok(())
}

/// Writes the output of `ubtrfs stats --json`, as one line, at any log level.
fn log_statistics(server: &Shared) {
    match serde_json::to_string(&server.report()) {
        Ok(report) => log::note(&format!("statistics: {report}")),
        Err(error) => tracing::warn!("statistics: {error}"),
    }
}

/// The end of a mount. Programs lose access to it, but not the data that they have stored: the
/// kernel writes back the pages that mappings have dirtied, while the server still runs.
struct Ending<'a> {
    mount: &'a Arc<Mount>,
    mounted: Option<&'a Mounted>,
    server: &'a Arc<Shared>,
}

impl Ending<'_> {
    /// Ends the mount. The time is bounded, except for that of the commits.
    fn run(&self) {
        self.unmount(Unmount::Now, TIME_TO_LEAVE);
        if self.points().is_empty() && self.is_ending_within(TIME_TO_LET_GO) {
            return;
        }
        // Programs use the mount, maybe from another mount namespace, or requests are not answered.
        // The changes so far become durable, whatever happens next.
        tracing::warn!("programs may be using the mount: they lose it");
        self.commit();
        // All pages at once, if requests are answered.
        let mut is_going_on = self.points().last().is_none_or(|point| self.write_pages(point));
        self.unmount(Unmount::Lazy, TIMEOUT);
        // Nobody can begin to use the mount any more. Pages that were dirtied since then, by
        // mappings in any namespace, are written, too.
        is_going_on &= self.take_pages(if is_going_on { TIMEOUT_WITHOUT_PAGES } else { TIMEOUT });
        if !is_going_on {
            tracing::warn!("what mappings have changed may be lost: the kernel does not write it");
        }
        self.commit();
        self.abort_connection();
    }

    /// Unmounts all mounts, and retries for a while if one is busy. Once the kernel has begun,
    /// waits only until the last commit has been requested.
    fn unmount(&self, how: Unmount, limit: Duration) {
        let (mount, server) = (Arc::clone(self.mount), Arc::clone(self.server));
        let deadline = Instant::now() + limit;
        let unmount = thread::Builder::new().name("umount".into()).spawn(move || {
            while !server.is_ending() && !mount.points().is_empty() {
                match mount.unmount_all(how) {
                    Err(_) if Instant::now() < deadline => thread::sleep(20 * POLL_INTERVAL),
                    Err(error) => return tracing::debug!(%error, "not unmounted"),
                    Ok(()) => {}
                }
            }
        });
        let Ok(unmount) = unmount else { return };
        let deadline = deadline + TIMEOUT;
        while !unmount.is_finished() && !self.server.is_ending() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns where it is mounted.
    fn points(&self) -> Vec<PathBuf> {
        if self.server.is_ending() { Vec::new() } else { self.mount.points() }
    }

    /// Waits for the request of the last commit, which comes when the kernel has released the
    /// mount. Returns whether it came within that time.
    fn is_ending_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while !self.server.is_ending() && Instant::now() < deadline {
            thread::sleep(POLL_INTERVAL);
        }
        self.server.is_ending()
    }

    fn commit(&self) {
        if let Err(error) = self.server.engine().durability().sync() {
            tracing::error!("the commit failed: {}", error.chain());
        }
    }

    /// Has the kernel write its dirty pages back. A separate process requests that, since it has to
    /// open the mount and may block. Returns whether requests are answered.
    fn write_pages(&self, point: &Path) -> bool {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ubtrfs").args(["sync", "--"]).arg(point);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            // It fails at once if it lacks the permission to open the root.
            Ok(mut child) => {
                self.wait_while_progressing(TIMEOUT_WITHOUT_PAGES, || 0, || !matches!(child.try_wait(), Ok(None)))
            }
            Err(error) => {
                tracing::debug!(%error, "pages are written one by one");
                true
            }
        }
    }

    /// Has the kernel write back the dirty pages of each file that it remembers. Returns whether it
    /// has done so.
    ///
    /// A thread that waits for pages while this process is killed never ends. So it is started when
    /// nothing else is left to wait for, and its wait ends when the connection is aborted.
    fn take_pages(&self, limit: Duration) -> bool {
        let (server, done) = (Arc::clone(self.server), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&done);
        match thread::Builder::new().name("pages".into()).spawn(move || server.take_pages(&count)) {
            Ok(thread) => self.wait_while_progressing(limit, || done.load(Ordering::Relaxed), || thread.is_finished()),
            Err(_) => false,
        }
    }

    /// Waits for `is_finished` as long as there is progress: in `done`, or in the bytes that are
    /// written to the server or by it.
    fn wait_while_progressing(
        &self,
        limit: Duration,
        done: impl Fn() -> u64,
        mut is_finished: impl FnMut() -> bool,
    ) -> bool {
        let written = || {
            let stats = self.server.engine().stats();
            (done(), stats.bytes_written, stats.volume.devices.written_bytes)
        };
        let end = Instant::now() + TIMEOUT_OF_PAGES;
        let (mut last, mut deadline) = (written(), Instant::now() + limit);
        loop {
            if is_finished() {
                return true;
            }
            let now = Instant::now();
            let more = written();
            if more != last {
                (last, deadline) = (more, now + limit);
            }
            if now >= deadline.min(end) {
                return false;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Aborts the connection, if the kernel does not end it by itself now that the mount has no
    /// users. Then no more requests arrive, and the session ends and commits for the last time.
    fn abort_connection(&self) {
        let Some(mounted) = self.mounted else { exit(i32::from(self.server.end().is_err())) };
        let connection = Connection::of(mounted.device);
        // The pages that the kernel has begun to write are in flight.
        connection.is_idle_within(TIMEOUT);
        if !self.is_ending_within(TIME_TO_LET_GO) && !connection.abort() {
            exit(i32::from(self.server.end().is_err()));
        }
    }
}
