//! The ring of one processor, and its thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::Fd;
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::thread::CpuSet;

use super::entry::{Entry, Reading, Tried};
use super::hops::count;
use super::mailbox::Mailbox;
use super::memory::{self, Away, Held};
use super::spread::Spread;
use crate::device::Device;
use crate::reply::Waits;

/// The `user_data` of the completion that says that the mailbox has entries or a stop.
const WAKE: u64 = u64::MAX;
/// The bit in the `user_data` of completions of reads. The lower bits are the number of the read in
/// its request, and the number of the entry.
const READ: u64 = 1 << 62;
const ENTRY_BITS: u32 = u16::BITS;
/// The room for completions, per submission.
const COMPLETIONS: u32 = 8;
/// How often the kernel may refuse entries because the mount has not begun, a millisecond apart.
const MAX_RETRIES: u32 = 1000;

/// A request that was taken off the ring.
pub struct Work {
    pub entry: Arc<Entry>,
    pub held: Held,
}

/// Reads of files for the answer of one request.
struct Reads {
    request: Reading,
    /// How many reads are not complete.
    left: usize,
    /// Whether a read has failed, or was short.
    failed: bool,
}

/// Serves a request without blocking, if that is possible.
type Attempt<'a> = dyn FnMut(Work) -> Tried + 'a;
/// Passes a request to threads that may block.
type Postpone<'a> = dyn Fn(Work) + 'a;

/// The requests of one processor. The thread that runs it is the only one that may submit.
pub struct Queue {
    // This is dropped first; after that the kernel touches no entry.
    uring: IoUring<squeue::Entry128>,
    number: u16,
    device: Arc<Device>,
    mailbox: Arc<Mailbox>,
    entries: Vec<Arc<Entry>>,
    /// Entries that are to be registered.
    new: Vec<Held>,
    away: Vec<Option<Away>>,
    /// Requests whose files are being read, by the numbers of their entries.
    reading: Vec<Option<Reads>>,
    spread: Spread,
    /// The number of entries at first.
    depth: usize,
    /// Bytes of payload of each entry.
    room: usize,
    waits: Arc<Waits>,
    /// How often the kernel may still refuse an entry because the mount has not begun.
    retries_left: u32,
    /// Whether the connection has ended.
    ended: bool,
}

impl Queue {
    /// A queue of `depth` entries with `room` bytes of payload each, disabled until it runs.
    pub fn new(number: u16, depth: u16, room: usize, device: Arc<Device>) -> io::Result<Self> {
        let size = (u32::from(depth) + 1).next_power_of_two();
        let uring = ring(size)?;
        let mailbox = Arc::new(Mailbox::new()?);
        let waits = Arc::new(Waits::new(depth.into()));
        let mut queue = Self {
            uring,
            number,
            device,
            mailbox,
            entries: Vec::new(),
            new: Vec::new(),
            away: Vec::new(),
            reading: Vec::new(),
            spread: Spread::new(depth),
            depth: depth.into(),
            room,
            waits,
            retries_left: MAX_RETRIES,
            ended: false,
        };
        queue.add(depth)?;
        Ok(queue)
    }

    /// Adds `count` entries, which are not registered yet.
    fn add(&mut self, count: u16) -> io::Result<()> {
        self.new = memory::entries(self.entries.len() as u16, count, self.room)?;
        let entry = |_: &Held| Arc::new(Entry::new(Arc::clone(&self.mailbox), Arc::clone(&self.waits)));
        self.entries.extend(self.new.iter().map(entry));
        self.away.resize_with(self.entries.len(), || None);
        self.reading.resize_with(self.entries.len(), || None);
        self.spread.has(self.entries.len());
        self.waits.has_further(self.entries.len().saturating_sub(self.depth));
        Ok(())
    }

    /// Registers more entries while requests that take long hold many, so that requests of others
    /// can arrive (invariant 49).
    fn grow(&mut self) -> io::Result<()> {
        let missing = self.spread.missing();
        if missing == 0 {
            return Ok(());
        }
        if let Err(error) = self.add(missing) {
            tracing::warn!(%error, "no memory for more requests at a time: requests may wait for others");
            self.spread.is_full();
        }
        self.register_new()
    }

    fn register_new(&mut self) -> io::Result<()> {
        std::mem::take(&mut self.new).into_iter().try_for_each(|held| self.register(held))
    }

    /// The mailbox through which the thread can be stopped.
    pub fn mailbox(&self) -> &Arc<Mailbox> {
        &self.mailbox
    }

    /// Registers the entries and passes requests to `attempt`, which must not block, and those that
    /// `attempt` gives back to `postpone`, until the connection has ended.
    pub fn run(mut self, attempt: &mut Attempt<'_>, postpone: &Postpone<'_>) -> io::Result<()> {
        self.ended = self.serve_all(attempt, postpone)?;
        Ok(())
    }

    /// Serves until the connection has ended or the thread is stopped. Returns whether the
    /// connection has ended.
    fn serve_all(&mut self, attempt: &mut Attempt<'_>, postpone: &Postpone<'_>) -> io::Result<bool> {
        pin(usize::from(self.number));
        prefer();
        self.uring.submitter().register_enable_rings()?;
        self.register_new()?;
        self.watch_mailbox()?;
        let (mut answered, mut completed) = (Vec::new(), Vec::new());
        while self.mailbox.fall_asleep(&mut answered) {
            for held in answered.drain(..) {
                let (index, (submission, away)) = (held.index(), held.commit(self.fd(), self.number));
                self.spread.answered(index);
                self.give(index, &submission, away)?;
            }
            self.grow()?;
            match self.uring.submit_and_wait(1) {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
            self.mailbox.awake();
            completed.extend(self.uring.completion());
            for completion in completed.drain(..) {
                if !self.complete(&completion, attempt, postpone)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Handles one completion. Returns false if the connection has ended.
    fn complete(
        &mut self,
        completion: &cqueue::Entry,
        attempt: &mut Attempt<'_>,
        postpone: &Postpone<'_>,
    ) -> io::Result<bool> {
        if completion.user_data() == WAKE {
            if !cqueue::more(completion.flags()) {
                self.watch_mailbox()?;
            }
            return Ok(true);
        }
        if completion.user_data() & READ != 0 {
            self.read_is_complete(completion, postpone)?;
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
            // The kernel has not processed the answer to INIT yet.
            self.retries_left = self.retries_left.checked_sub(1).ok_or(errno)?;
            std::thread::sleep(Duration::from_millis(1));
            self.register(held)?;
        } else if let Some(entry) = self.entries.get(index) {
            let entry = Arc::clone(entry);
            self.spread.arrived(held.index(), held.opcode());
            let counts = self.mailbox.counts();
            match attempt(Work { entry: Arc::clone(&entry), held }) {
                Tried::Answered => count(&counts.at_once),
                Tried::Postponed(held) => {
                    count(if entry.is_postponed() { &counts.postponed } else { &counts.not_tried });
                    postpone(Work { entry, held });
                }
                Tried::Reading(request) => {
                    count(&counts.reading);
                    self.read_files(request)?;
                }
            }
        }
        Ok(true)
    }

    /// Queues the reads of files for an answer; they are submitted when the thread enters the
    /// kernel next.
    fn read_files(&mut self, mut request: Reading) -> io::Result<()> {
        let index = request.held.index();
        let mut submissions = Vec::new();
        let room = request.held.payload_mut();
        for (number, read) in request.files.reads.iter().enumerate() {
            // A range beyond the buffer becomes a read of length zero, which counts as short.
            let part = room.get_mut(read.range.clone()).unwrap_or_default();
            let file = Fd(read.file.as_raw_fd());
            let submission = opcode::Read::new(file, part.as_mut_ptr(), part.len() as u32).offset(read.at);
            submissions
                .push(submission.build().user_data(READ | (number as u64) << ENTRY_BITS | u64::from(index)).into());
        }
        if let Some(place) = self.reading.get_mut(usize::from(index)) {
            *place = Some(Reads { request, left: submissions.len(), failed: false });
        }
        submissions.iter().try_for_each(|submission| self.push(submission))
    }

    /// Answers a request when the last of its reads is complete.
    fn read_is_complete(&mut self, completion: &cqueue::Entry, postpone: &Postpone<'_>) -> io::Result<()> {
        let number = completion.user_data() & !READ;
        let (number, index) = ((number >> ENTRY_BITS) as usize, usize::from(number as u16));
        let Some(place) = self.reading.get_mut(index) else { return Ok(()) };
        let Some(reads) = place else { return Ok(()) };
        reads.left -= 1;
        let wanted = reads.request.files.reads.get(number).map(|read| read.range.len());
        reads.failed |= usize::try_from(completion.result()).ok() != wanted;
        if reads.left > 0 {
            return Ok(());
        }
        let Some(Reads { request, failed, .. }) = place.take() else { return Ok(()) };
        let Reading { mut held, unique, files } = request;
        let is_right = || (files.check)(held.payload_mut());
        if failed || !catch_unwind(AssertUnwindSafe(is_right)).unwrap_or(false) {
            if let Some(entry) = self.entries.get(index) {
                count(&self.mailbox.counts().postponed);
                postpone(Work { entry: Arc::clone(entry), held });
            }
            return Ok(());
        }
        held.answer(unique, 0, files.length);
        let (number, (submission, away)) = (held.index(), held.commit(self.fd(), self.number));
        self.give(number, &submission, away)
    }

    fn fd(&self) -> Fd {
        Fd(self.device.as_fd().as_raw_fd())
    }

    fn register(&mut self, held: Held) -> io::Result<()> {
        let (index, (submission, away)) = (held.index(), held.register(self.fd(), self.number));
        self.give(index, &submission, away)
    }

    /// Gives an entry to the kernel when the thread enters it next.
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
        // SAFETY: what it refers to is the memory of an entry, which is kept while it is away or
        // read into, the mailbox's descriptor, or that of a file, kept until its read is complete.
        while unsafe { self.uring.submission().push(submission) }.is_err() {
            // The queue has room for all entries that there are at first, so it is full only when
            // the kernel has not consumed submissions, or when there are more entries.
            match self.uring.submit() {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for reads in self.reading.iter().flatten() {
            // The kernel may still write into the entry.
            reads.request.held.keep_forever();
        }
        if !self.ended {
            // The connection continues until the session ends, and so does the kernel's ownership
            // of the entries.
            self.away.iter().flatten().for_each(Away::keep_forever);
        }
    }
}

/// Makes a ring whose completions are processed whenever its thread enters the kernel.
///
/// `DEFER_TASKRUN`, with which completions are processed only when the thread asks for them, would
/// take 3 % less processor time for a request. But if a process is killed while some thread of it
/// can't end, the kernel would continue to give requests to entries whose thread has ended. Nobody
/// would take these requests, and an abort of the connection would not end them.
fn ring(size: u32) -> io::Result<IoUring<squeue::Entry128>> {
    let mut builder = IoUring::builder();
    // A request may become a few reads.
    builder.setup_r_disabled().setup_single_issuer().setup_coop_taskrun().setup_cqsize(size * COMPLETIONS).dontfork();
    builder.build(size)
}

/// Returns whether entering the ring may simply be tried again.
fn is_passing(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::INTR | Errno::AGAIN | Errno::BUSY))
}

/// The nice value of the threads of rings. A server and a client on one processor take turns. If
/// the server has the greater weight, the client has used up its share when it falls asleep, and
/// then Linux (since 6.12) keeps it on its processor. Otherwise an answer may wake it on another,
/// idle processor, which takes three times as long.
const NICENESS: i32 = -5;

/// Gives this thread a higher priority, if the process may do that.
fn prefer() {
    if let Err(error) = rustix::process::setpriority_process(None, NICENESS) {
        tracing::debug!(%error, "a ring's thread is not preferred");
    }
}

/// Pins this thread to a processor. If the processor is not online, or not allowed to this process,
/// the thread serves its queue from wherever it runs.
fn pin(processor: usize) {
    if processor < CpuSet::MAX_CPU {
        let mut set = CpuSet::new();
        set.set(processor);
        if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
            tracing::debug!(processor, %error, "a ring's thread is not pinned");
        }
    }
}

/// Returns whether this error means that the connection has ended.
fn is_end(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV)
}
