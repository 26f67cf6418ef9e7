//! SIGTERM, SIGINT and SIGHUP end a mount; SIGUSR1 has it write its statistics to the log.
//!
//! They are waited for in a thread of their own, since umount(2) of `fuseblk` returns only when a
//! serving thread has done the last commit. Whatever may send requests to this server, or wait for
//! those of others, is done in further threads or processes and waited for so long and no longer:
//! requests that hang are no reason to go on living. What ends the wait of the threads is that the
//! connection is cut.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio, exit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use ubtrfs_fuse::mount::{Mount, Unmount};
use ubtrfs_server::Shared;

use super::log;
use crate::connection::Connection;
use crate::mount_table::{self, Mounted};

/// Whoever only looked in is given that long to leave.
const TIME_TO_LEAVE: Duration = Duration::from_secs(1);
/// How long requests that are under way are waited for.
const TIMEOUT: Duration = Duration::from_secs(2);
/// How long the kernel may take to write what mappings have changed.
const TIMEOUT_OF_PAGES: Duration = Duration::from_secs(60);
/// How long none of these pages may come before nobody waits for them any more.
const TIMEOUT_WITHOUT_PAGES: Duration = Duration::from_secs(12);
/// How long the kernel may take to let go of a mount that nobody uses.
const TIME_TO_LET_GO: Duration = Duration::from_millis(500);
/// How often is looked.
const MOMENT: Duration = Duration::from_millis(5);

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
            Ending { mount: &mount, mounted: mounted.as_ref(), server: &server }.run();
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

/// The end of a mount. Programs that use it lose it, but not what they have stored: the kernel
/// writes the pages that mappings have changed while there is still somebody to write them to.
struct Ending<'a> {
    mount: &'a Arc<Mount>,
    mounted: Option<&'a Mounted>,
    server: &'a Arc<Shared>,
}

impl Ending<'_> {
    /// Ends it within a bounded time, the commits apart.
    fn run(&self) {
        self.unmount(Unmount::Now, TIME_TO_LEAVE);
        if !self.mount.is_mounted() && self.is_ending_within(TIME_TO_LET_GO) {
            return;
        }
        // Programs use it, maybe from another mount namespace, or nobody answers. What they have
        // done so far is durable whatever comes next.
        tracing::warn!("programs may be using the mount: they lose it");
        self.commit();
        // All at once, if nothing is in the way of that.
        let mut is_going_on = !self.mount.is_mounted() || self.write_pages();
        self.unmount(Unmount::Lazy, TIMEOUT);
        // Nobody comes in any more. What programs have stored since is written, too, and what they
        // have mapped from wherever.
        is_going_on &= self.take_pages(if is_going_on { TIMEOUT_WITHOUT_PAGES } else { TIMEOUT });
        if !is_going_on {
            tracing::warn!("what mappings have changed may be lost: the kernel does not write it");
        }
        self.commit();
        self.cut();
    }

    /// Unmounts what is seen at the mount's path, if that is this one; tries again for a while
    /// where somebody is inside. Once the kernel has begun, this waits no longer than the last
    /// commit takes to be asked for.
    fn unmount(&self, how: Unmount, patience: Duration) {
        let mount = Arc::clone(self.mount);
        let deadline = Instant::now() + patience;
        let unmount = thread::Builder::new().name("umount".into()).spawn(move || {
            while mount.is_mounted() {
                match mount.unmount(how) {
                    Err(_) if Instant::now() < deadline => thread::sleep(20 * MOMENT),
                    Err(error) => return tracing::debug!(%error, "not unmounted"),
                    Ok(()) => {}
                }
            }
        });
        let Ok(unmount) = unmount else { return };
        let deadline = deadline + TIMEOUT;
        while !unmount.is_finished() && !self.server.is_ending() && Instant::now() < deadline {
            thread::sleep(MOMENT);
        }
    }

    /// Whether the last commit is asked for within that time, as it is when the kernel has let go.
    fn is_ending_within(&self, time: Duration) -> bool {
        let deadline = Instant::now() + time;
        while !self.server.is_ending() && Instant::now() < deadline {
            thread::sleep(MOMENT);
        }
        self.server.is_ending()
    }

    fn commit(&self) {
        if let Err(error) = self.server.engine().sync() {
            tracing::error!("the commit failed: {error}");
        }
    }

    /// Has the kernel write what it holds of changes. A process of its own asks for that: it opens
    /// the mount, which only that process waits for then. Returns whether requests are answered.
    fn write_pages(&self) -> bool {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ubtrfs").args(["sync", "--"]).arg(self.mount.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            // Who may not open the root fails at once.
            Ok(mut child) => self.go_on(TIMEOUT_WITHOUT_PAGES, || 0, || !matches!(child.try_wait(), Ok(None))),
            Err(error) => {
                tracing::debug!(%error, "pages are written one by one");
                true
            }
        }
    }

    /// Has the kernel write the changed pages of each file that it remembers. Returns whether it
    /// has.
    ///
    /// A thread that waits for pages while this process is killed never ends. So it is begun when
    /// nothing else is left to wait for, and its wait ends when the connection is cut.
    fn take_pages(&self, patience: Duration) -> bool {
        let (server, done) = (Arc::clone(self.server), Arc::new(AtomicU64::new(0)));
        let count = Arc::clone(&done);
        match thread::Builder::new().name("pages".into()).spawn(move || server.take_pages(&count)) {
            Ok(thread) => self.go_on(patience, || done.load(Ordering::Relaxed), || thread.is_finished()),
            Err(_) => false,
        }
    }

    /// Waits for `is_finished` as long as something goes on: what is `done`, or what is written to
    /// the server or by it.
    fn go_on(&self, patience: Duration, done: impl Fn() -> u64, mut is_finished: impl FnMut() -> bool) -> bool {
        let written = || {
            let stats = self.server.engine().stats();
            (done(), stats.bytes_written, stats.volume.devices.written_bytes)
        };
        let end = Instant::now() + TIMEOUT_OF_PAGES;
        let (mut last, mut deadline) = (written(), Instant::now() + patience);
        loop {
            if is_finished() {
                return true;
            }
            let now = Instant::now();
            let more = written();
            if more != last {
                (last, deadline) = (more, now + patience);
            }
            if now >= deadline.min(end) {
                return false;
            }
            thread::sleep(MOMENT);
        }
    }

    /// Cuts the connection, if the kernel does not let go by itself now that nobody may use the
    /// mount. No request comes any more then, and the session ends and commits for the last time.
    fn cut(&self) {
        let Some(mounted) = self.mounted else { exit(i32::from(self.server.end().is_err())) };
        let connection = Connection::of(mounted.device);
        // What the kernel began to write is on its way.
        connection.is_idle_within(TIMEOUT);
        if !self.is_ending_within(TIME_TO_LET_GO) && !connection.abort() {
            exit(i32::from(self.server.end().is_err()));
        }
    }
}
