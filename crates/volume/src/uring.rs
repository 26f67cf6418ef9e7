//! Writes through `io_uring`. There is no thread for the ring: a thread that waits reaps
//! completions for all, so that a write and its wait are two system calls without a switch between
//! threads.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use io_uring::{EnterFlags, IoUring, opcode, types};
use ubtrfs_threads::{Condvar, Mutex, MutexGuard, Rank};

use crate::device::{DeviceTicket, PendingWrites};
use crate::error::WriteError;
use crate::runs::Run;

/// How many writes may be in flight at once. The completion queue is twice as long, so it can't
/// overflow.
const DEPTH: u32 = 256;
/// `user_data` of the no-op that tests the ring.
const PROBE: u64 = u64::MAX;
/// How often to retry a submission for which the kernel has no memory, a millisecond apart.
const SUBMIT_RETRIES: u32 = 1000;

/// A ring that writes to one file.
pub(crate) struct Ring {
    uring: IoUring,
    file: Arc<File>,
    /// Held by the thread that fills and submits the submission queue.
    submission: Mutex<()>,
    state: Mutex<State>,
    /// Signalled when completions were reaped, or when no thread reaps any more.
    changed: Condvar,
    /// The kernel refused submissions for good: writes are made one by one instead.
    broken: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Writes in flight, by the index that is their `user_data`.
    operations: Vec<Option<Operation>>,
    free: Vec<usize>,
    in_flight: usize,
    /// A thread waits in the kernel for completions. Only that thread may take them from the queue.
    reaping: bool,
}

struct Operation {
    run: Run,
    /// Point into `run.parts`, which stay in place until the kernel is done.
    vectors: Vec<libc::iovec>,
    group: Arc<Group>,
}

// SAFETY: the pointers in `vectors` point into `run.parts`: immutable shared memory that the
// operation keeps alive.
unsafe impl Send for Operation {}

/// The writes of one ticket.
#[derive(Debug)]
struct Group {
    left: AtomicUsize,
    error: Mutex<Option<WriteError>>,
}

impl Group {
    /// Notes that a write of the ticket has ended.
    fn finish(&self, run: &Run, result: io::Result<()>) {
        if let Err(error) = result {
            self.error.lock().get_or_insert_with(|| run.failed(error));
        }
        self.left.fetch_sub(1, Ordering::Release);
    }

    fn is_done(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0
    }
}

impl Ring {
    /// Starts a ring for `file`. Fails with the reason if this kernel or sandbox offers none.
    pub(crate) fn start(file: &Arc<File>) -> io::Result<Self> {
        let mut uring = IoUring::builder().dontfork().build(DEPTH)?;
        let probe = opcode::Nop::new().build().user_data(PROBE);
        // SAFETY: a no-op refers to no memory.
        unsafe { uring.submission().push(&probe) }.map_err(io::Error::other)?;
        uring.submit_and_wait(1)?;
        if uring.completion().next().is_none_or(|entry: io_uring::cqueue::Entry| entry.user_data() != PROBE) {
            return Err(io::Error::other("io_uring does not complete"));
        }
        Ok(Self {
            uring,
            file: Arc::clone(file),
            submission: Mutex::new(Rank::UringSubmission, ()),
            state: Mutex::with_default(Rank::UringState),
            changed: Condvar::new(),
            broken: AtomicBool::new(false),
        })
    }

    pub(crate) fn submit(self: &Arc<Self>, runs: Vec<Run>) -> DeviceTicket {
        let group = Arc::new(Group { left: AtomicUsize::new(runs.len()), error: Mutex::new(Rank::UringError, None) });
        let queue = self.submission.lock();
        let mut queued = 0;
        for run in runs {
            if self.broken.load(Ordering::Relaxed) {
                group.finish(&run, run.write_from(&*self.file, 0));
                continue;
            }
            if self.state.lock().in_flight >= DEPTH as usize {
                self.enter_submissions(&mut queued);
                self.wait_until(|state| state.in_flight < DEPTH as usize);
            }
            self.push(run, &group);
            queued += 1;
        }
        self.enter_submissions(&mut queued);
        drop(queue);
        DeviceTicket::new(RingTicket { ring: Arc::clone(self), group })
    }

    /// Waits until no write is in flight.
    pub(crate) fn drain(&self) {
        self.wait_until(|state| state.in_flight == 0);
    }

    /// Puts a write into the submission queue. The caller holds the submission lock and has left
    /// room.
    fn push(&self, run: Run, group: &Arc<Group>) {
        let vectors = run
            .parts
            .iter()
            .map(|part| libc::iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
            .collect();
        let operation = Operation { run, vectors, group: Arc::clone(group) };
        let mut state = self.state.lock();
        let index = state.free.pop().unwrap_or(state.operations.len());
        let entry = opcode::Writev::new(
            types::Fd(self.file.as_raw_fd()),
            operation.vectors.as_ptr(),
            operation.vectors.len() as u32,
        )
        .offset(operation.run.at)
        .build()
        .user_data(index as u64);
        if index == state.operations.len() {
            state.operations.push(Some(operation));
        } else {
            state.operations[index] = Some(operation);
        }
        state.in_flight += 1;
        drop(state);
        // SAFETY: the submission lock makes this the only user of the submission queue. Vectors and
        // data belong to the operation, which stays in `operations` until its completion has been
        // reaped; `file` lives as long as the ring.
        let pushed = unsafe { self.uring.submission_shared().push(&entry) };
        if pushed.is_err() {
            self.give_up(&[index], &io::Error::other("io_uring submission queue is full"));
        }
    }

    /// Submits the queued writes to the kernel. The caller holds the submission lock.
    fn enter_submissions(&self, queued: &mut u32) {
        let mut retries = 0;
        while *queued > 0 {
            match self.uring.submit() {
                Ok(taken) => *queued = queued.saturating_sub(taken as u32),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(error)
                    if retries < SUBMIT_RETRIES
                        && matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EBUSY | libc::ENOMEM)) =>
                {
                    retries += 1;
                    ubtrfs_threads::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => {
                    tracing::error!(%error, "io_uring takes no more writes");
                    self.broken.store(true, Ordering::Relaxed);
                    let all: Vec<usize> = (0..self.state.lock().operations.len()).collect();
                    self.give_up(&all, &error);
                    *queued = 0;
                }
            }
        }
    }

    /// Fails these writes. It is unknown whether the kernel has seen them, so their memory is never
    /// freed.
    fn give_up(&self, indices: &[usize], error: &io::Error) {
        let mut state = self.state.lock();
        for index in indices {
            if let Some(operation) = state.operations.get_mut(*index).and_then(Option::take) {
                state.in_flight -= 1;
                let copy =
                    error.raw_os_error().map_or_else(|| io::Error::from(error.kind()), io::Error::from_raw_os_error);
                operation.group.finish(&operation.run, Err(copy));
                std::mem::forget(operation);
            }
        }
        self.changed.notify_all();
    }

    /// Waits until `is_met`, and reaps completions if no other thread does.
    fn wait_until(&self, is_met: impl Fn(&State) -> bool) {
        let mut state = self.state.lock();
        loop {
            if is_met(&state) {
                return;
            }
            if state.reaping {
                self.changed.wait(&mut state);
                continue;
            }
            if self.reap(&mut state) {
                continue;
            }
            state.reaping = true;
            MutexGuard::unlocked(&mut state, || self.sleep_for_completion());
            state.reaping = false;
            self.reap(&mut state);
            // Notifies even without completions, since another thread may reap now.
            self.changed.notify_all();
        }
    }

    fn sleep_for_completion(&self) {
        // SAFETY: submits nothing and passes no argument.
        let result =
            unsafe { self.uring.submitter().enter::<libc::sigset_t>(0, 1, EnterFlags::GETEVENTS.bits(), None) };
        if let Err(error) = result
            && error.raw_os_error() != Some(libc::EINTR)
        {
            // Completions are polled, but not in a busy loop.
            ubtrfs_threads::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Reaps all completions that have arrived, and returns whether there was one. Not called while
    /// another thread reaps.
    fn reap(&self, state: &mut State) -> bool {
        // SAFETY: the state lock, and `reaping` while it is released, make this the only user of
        // the completion queue.
        let completions = unsafe { self.uring.completion_shared() };
        let mut any = false;
        for completion in completions {
            let index = completion.user_data() as usize;
            let Some(operation) = state.operations.get_mut(index).and_then(Option::take) else { continue };
            state.free.push(index);
            state.in_flight -= 1;
            operation.group.finish(&operation.run, self.outcome(&operation.run, completion.result()));
            any = true;
        }
        if any {
            self.changed.notify_all();
        }
        any
    }

    /// Returns the result of a write. The kernel cancels writes that it has queued for a thread
    /// that ends, and may write less than requested: this function writes the rest.
    fn outcome(&self, run: &Run, result: i32) -> io::Result<()> {
        match result {
            written if written >= 0 && written as usize == run.len => Ok(()),
            written if written > 0 => run.write_from(&*self.file, written as usize),
            0 => run.write_from(&*self.file, 0),
            error if matches!(-error, libc::ECANCELED | libc::EINTR | libc::EAGAIN) => run.write_from(&*self.file, 0),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.drain();
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.state.lock().in_flight).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct RingTicket {
    ring: Arc<Ring>,
    group: Arc<Group>,
}

impl PendingWrites for RingTicket {
    fn wait(self: Box<Self>) -> Result<(), WriteError> {
        self.ring.wait_until(|_| self.group.is_done());
        self.group.error.lock().take().map_or(Ok(()), Err)
    }

    fn is_done(&self) -> bool {
        if !self.group.is_done() {
            let mut state = self.ring.state.lock();
            if !state.reaping {
                self.ring.reap(&mut state);
            }
        }
        self.group.is_done()
    }
}
