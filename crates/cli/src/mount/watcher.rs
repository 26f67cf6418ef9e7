//! The watcher: a process that outlives the server, and then aborts its connections.
//!
//! The kernel aborts a connection by itself when the last descriptor of `/dev/fuse` is closed. A
//! process that is killed closes its descriptors when its last thread has ended. But a thread that
//! has asked the kernel to drop a name or a page may wait for a lock which another process holds,
//! and no signal ends that wait: for example, a program lists a directory into memory that another
//! server has to provide, and that server hangs. Until then each request to the dead server waits,
//! and with it every sync(2) of the machine.
//!
//! So the server has a *lifeline*: a thread with a table of descriptors of its own, which contains
//! only the writing end of a pipe. The thread waits for nothing but a signal, so it ends, and its
//! table with it, as soon as the server is killed or exits. The watcher reads the other end of the
//! pipe. It also holds the file by which the connection is aborted, which was opened while the
//! connection existed: the file belongs to this connection alone, though a later one may have the
//! same number, and keeps nothing of the volume in use. If syncs arrive through a device
//! (`mount/syncs`), sync(2) waits for the connection of that device, too, so the watcher also
//! aborts that one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;
use std::thread;

use rustix::fs::{Dir, Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::thread::UnshareFlags;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};

use crate::failure::{Failure, Result};
use crate::process;

/// The reading end of a pipe. It is at its end as soon as this process has been killed or has
/// exited.
pub struct Lifeline {
    end: OwnedFd,
}

impl Lifeline {
    /// Starts the thread. This must be called before anything is opened and before there are other
    /// threads: until the new thread has closed them, it has copies of all descriptors.
    pub fn new() -> io::Result<Self> {
        let (end, held) = pipe_with(PipeFlags::CLOEXEC)?;
        let number = held.as_raw_fd();
        let (report, is_alone) = channel();
        thread::Builder::new().name("lifeline".into()).spawn(move || {
            let alone = hold_only(number);
            let is_alone = alone.is_ok();
            let _ = report.send(alone);
            if is_alone {
                loop {
                    thread::park();
                }
            }
        })?;
        is_alone.recv().map_err(io::Error::other)??;
        drop(held);
        Ok(Self { end })
    }
}

/// Leaves all signals to the other threads. A handler writes to a pipe of the process, which is not
/// in this thread's table of descriptors, so a signal to this thread would be lost.
fn leave_signals() -> io::Result<()> {
    // SAFETY: the set is filled before it is used, and only the mask of this thread changes.
    let failed = unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut())
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// Gives this thread a table of descriptors of its own, and closes all in it but this one.
fn hold_only(number: RawFd) -> io::Result<()> {
    leave_signals()?;
    // SAFETY: this closes no descriptor of the other threads; what is closed below is closed in
    // this thread's copy of the table, and this thread does not use it.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES)? };
    let how = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut list = Dir::new(rustix::fs::open("/proc/thread-self/fd", how, Mode::empty())?)?;
    let kept = [number, list.fd()?.as_raw_fd()];
    let numbers = list.by_ref().flatten().filter_map(|entry| entry.file_name().to_str().ok()?.parse::<RawFd>().ok());
    for other in numbers.filter(|other| !kept.contains(other)).collect::<Vec<_>>() {
        // SAFETY: see above.
        unsafe { rustix::io::close(other) };
    }
    Ok(())
}

/// The watcher process of a mount's connections. Dropping this ends it.
pub struct Watcher {
    process: Child,
}

impl Watcher {
    /// Starts a process that writes to `abort`, and to `other` if that is given, when this process
    /// has ended.
    pub fn start(lifeline: &Lifeline, abort: File, other: Option<File>) -> io::Result<Self> {
        process::keep_descriptors();
        let mut command = Command::new("/proc/self/exe");
        command.arg0("ubtrfs").args(["mount", "--watcher"]).process_group(0).current_dir("/");
        let process = command
            .stdin(lifeline.end.try_clone()?)
            .stdout(abort)
            .stderr(other.map_or_else(Stdio::null, Stdio::from))
            .spawn()?;
        Ok(Self { process })
    }
}

impl Drop for Watcher {
    /// Ends the watcher: the connection has ended, so there is nothing to abort.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs the watcher: its standard input ends with the server, and its other standard streams are
/// the files by which connections are aborted.
pub fn run() -> Result<()> {
    let _ = rustix::thread::set_name(c"ubtrfs-watcher");
    // These signals go to all processes of a service or a session, and are meant for the server,
    // which then unmounts.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let mut byte = [0];
    loop {
        match io::stdin().read(&mut byte) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => return Err(Failure::about("watching the server", &error)),
        }
    }
    let _ = io::stdout().write_all(b"1").and_then(|()| io::stdout().flush());
    let _ = io::stderr().write_all(b"1");
    Ok(())
}
