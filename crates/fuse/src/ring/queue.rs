//! The ring of one processor, and its thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::thread::CpuSet;

use super::entry::Entry;
use super::mailbox::Mailbox;
use super::memory::{self, Away, Held};
use crate::device::Device;
use crate::reply::Waits;

/// `user_data` of the completion that says that the mailbox has something.
const WAKE: u64 = u64::MAX;
/// How often the kernel may say that the mount has not begun, a millisecond apart.
const MOST_RETRIES: u32 = 1000;

/// A request off the ring.
pub struct Work {
    pub entry: Arc<Entry>,
    pub held: Held,
}

/// The requests of one processor. The thread that runs it is the only one that may submit.
pub struct Queue {
    // Dropped first: after that the kernel touches no entry.
    uring: IoUring<squeue::Entry128>,
    number: u16,
    device: Arc<Device>,
    mailbox: Arc<Mailbox>,
    entries: Vec<Arc<Entry>>,
    /// Those that the server has at the beginning.
    new: Vec<Held>,
    away: Vec<Option<Away>>,
    /// How often the kernel may still refuse an entry because the mount has not begun.
    retries_left: u32,
    /// The connection is.
    ended: bool,
}

impl Queue {
    /// A queue of `depth` entries with `room` bytes of payload each, disabled until it runs.
    pub fn new(number: u16, depth: u16, room: usize, device: Arc<Device>) -> io::Result<Self> {
        let size = (u32::from(depth) + 1).next_power_of_two();
        let uring = ring(size, true).or_else(|_| ring(size, false))?;
        let mailbox = Arc::new(Mailbox::new()?);
        let new = memory::entries(depth, room)?;
        let waits = Arc::new(Waits::new(new.len()));
        let entry = |_| Arc::new(Entry::new(Arc::clone(&mailbox), Arc::clone(&waits)));
        let entries = new.iter().map(entry).collect();
        let away = new.iter().map(|_| None).collect();
        Ok(Self { uring, number, device, mailbox, entries, new, away, retries_left: MOST_RETRIES, ended: false })
    }

    /// The mailbox through which the thread can be stopped.
    pub fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Registers the entries and passes requests to `serve`, which must not block, until the
    /// connection has ended.
    pub fn run(mut self, serve: &mut dyn FnMut(Work)) -> io::Result<()> {
        self.ended = self.serve_all(serve)?;
        Ok(())
    }

    /// Returns whether the connection has ended; if not, the thread was stopped.
    fn serve_all(&mut self, serve: &mut dyn FnMut(Work)) -> io::Result<bool> {
        pin(usize::from(self.number));
        prefer();
        self.uring.submitter().register_enable_rings()?;
        for held in std::mem::take(&mut self.new) {
            self.register(held)?;
        }
        self.watch_mailbox()?;
        let (mut answered, mut completed) = (Vec::new(), Vec::new());
        while self.mailbox.fall_asleep(&mut answered) {
            for held in answered.drain(..) {
                let (index, (submission, away)) = (held.index(), held.commit(self.fd(), self.number));
                self.give(index, &submission, away)?;
            }
            match self.uring.submit_and_wait(1) {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
            self.mailbox.awake();
            completed.extend(self.uring.completion());
            for completion in completed.drain(..) {
                if !self.complete(&completion, serve)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Handles one completion. False: the connection has ended.
    fn complete(&mut self, completion: &cqueue::Entry, serve: &mut dyn FnMut(Work)) -> io::Result<bool> {
        if completion.user_data() == WAKE {
            if !cqueue::more(completion.flags()) {
                self.watch_mailbox()?;
            }
            return Ok(true);
        }
        let index = completion.user_data() as usize;
        let error = (completion.result() < 0).then(|| Errno::from_raw_os_error(-completion.result()));
        match error {
            None | Some(Errno::AGAIN) => {}
            Some(errno) => return if is_end(errno) { Ok(false) } else { Err(errno.into()) },
        }
        let Some(away) = self.away.get_mut(index).and_then(Option::take) else { return Ok(true) };
        // SAFETY: the entry was away by the submission that is complete now.
        let held = unsafe { away.back() };
        if let Some(errno) = error {
            // The answer to INIT is being delivered.
            self.retries_left = self.retries_left.checked_sub(1).ok_or(errno)?;
            std::thread::sleep(Duration::from_millis(1));
            self.register(held)?;
        } else if let Some(entry) = self.entries.get(index) {
            serve(Work { entry: Arc::clone(entry), held });
        }
        Ok(true)
    }

    fn fd(&self) -> Fd {
        Fd(self.device.as_fd().as_raw_fd())
    }

    fn register(&mut self, held: Held) -> io::Result<()> {
        let (index, (submission, away)) = (held.index(), held.register(self.fd(), self.number));
        self.give(index, &submission, away)
    }

    /// Gives an entry to the kernel, with the next entering.
    fn give(&mut self, index: u16, submission: &squeue::Entry128, away: Away) -> io::Result<()> {
        let Some(place) = self.away.get_mut(usize::from(index)) else { return Ok(()) };
        *place = Some(away);
        self.push(submission)
    }

    fn watch_mailbox(&mut self) -> io::Result<()> {
        let wakes = Fd(self.mailbox.wakes().as_raw_fd());
        let poll = opcode::PollAdd::new(wakes, u32::from(PollFlags::IN.bits())).multi(true).build().user_data(WAKE);
        self.push(&poll.into())
    }

    fn push(&mut self, submission: &squeue::Entry128) -> io::Result<()> {
        // SAFETY: what it refers to is the memory of an entry, which is kept while it is away, or
        // the mailbox's descriptor.
        while unsafe { self.uring.submission().push(submission) }.is_err() {
            // The queue has room for all entries at once: this happens when the kernel has not
            // consumed submissions.
            self.uring.submit()?;
        }
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if !self.ended {
            // The connection continues until the session ends, and so does the kernel's ownership
            // of the entries.
            self.away.iter().flatten().for_each(Away::keep_forever);
        }
    }
}

/// A ring whose completions are processed when its thread asks for them, or (on older kernels)
/// enters the kernel.
fn ring(size: u32, deferred: bool) -> io::Result<IoUring<squeue::Entry128>> {
    let mut builder = IoUring::builder();
    builder.setup_r_disabled().setup_single_issuer().dontfork();
    if deferred {
        builder.setup_defer_taskrun();
    } else {
        builder.setup_coop_taskrun();
    }
    builder.build(size)
}

/// Whether entering the ring may simply be tried again.
fn is_passing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY))
}

/// What the threads of rings have less of than others, as nice(1) says. A server and a client on
/// one processor take turns; where the server counts for more, it is the client that has had its
/// share when it falls asleep, and Linux (since 6.12) keeps it where it is. Otherwise an answer may
/// wake it on another, idle processor, which takes thrice as long.
const NICENESS: i32 = -5;

/// Prefers this thread to others, if it may.
fn prefer() {
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "a ring's thread is not preferred");
    }
}

/// Keeps this thread on a processor. One that is not online, or not ours to use, is served from
/// wherever the thread runs.
fn pin(processor: usize) {
    if processor < CpuSet::MAX_CPU {
        let mut set = CpuSet::new();
        set.set(processor);
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::debug!(processor, %error, "a ring's thread is not pinned");
        }
    }
}

/// Whether this error means that the connection has ended.
fn is_end(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV)
}
