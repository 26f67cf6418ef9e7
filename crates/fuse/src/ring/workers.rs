//! Requests that may wait, and the threads that serve them.
//!
//! A WRITE waits while too much data is dirty, which takes as long as a commit, and a few writers
//! may have any number of WRITEs under way. So WRITEs get only half of the threads, and all other
//! requests have the rest (invariant 49).

use std::collections::VecDeque;

use ubtrfs_threads::{Condvar, Mutex, MutexGuard, Rank};

use super::queue::Work;
use crate::abi::opcode;

/// The queue of requests from the rings to the threads that may block.
pub struct Backlog {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    work: Line,
    writes: Line,
    /// How many requests were pushed so far.
    pushed: u64,
    idle: usize,
    serving: usize,
    /// How many of the requests that are being served are WRITEs.
    writing: usize,
    most_writing: usize,
    closed: bool,
}

/// Requests, each with its number in the order of arrival.
type Line = VecDeque<(u64, Work)>;

impl Inner {
    /// Takes the oldest request that may be served, and says whether it is a WRITE.
    fn next(&mut self) -> Option<(Work, bool)> {
        let may_write = self.writing < self.most_writing || self.closed;
        let age = |line: &Line| line.front().map(|(age, _)| *age);
        let is_write = match (age(&self.work), age(&self.writes).filter(|_| may_write)) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(other), Some(write)) => write < other,
        };
        let line = if is_write { &mut self.writes } else { &mut self.work };
        line.pop_front().map(|(_, work)| (work, is_write))
    }
}

impl Backlog {
    /// Returns a backlog for this many threads.
    pub fn new(threads: usize) -> Self {
        let inner = Inner { most_writing: threads.div_ceil(2), ..Inner::default() };
        Self { inner: Mutex::new(Rank::RingBacklog, inner), changed: Condvar::new() }
    }

    /// Adds a request.
    pub fn push(&self, work: Work) {
        let mut inner = self.inner.lock();
        let age = inner.pushed;
        inner.pushed += 1;
        let line = if work.held.opcode() == opcode::WRITE { &mut inner.writes } else { &mut inner.work };
        line.push_back((age, work));
        let idle = inner.idle > 0;
        drop(inner);
        if idle {
            self.changed.notify_one();
        }
    }

    /// Serves requests until the backlog is closed and empty.
    pub fn serve(&self, mut serve: impl FnMut(Work)) {
        let mut inner = self.inner.lock();
        loop {
            if let Some((work, is_write)) = inner.next() {
                inner.serving += 1;
                inner.writing += usize::from(is_write);
                MutexGuard::unlocked(&mut inner, || serve(work));
                inner.serving -= 1;
                inner.writing -= usize::from(is_write);
                // This thread may take an older request next that is no WRITE, so another thread
                // must take a WRITE.
                if is_write && inner.idle > 0 && !inner.writes.is_empty() {
                    self.changed.notify_one();
                }
            } else if inner.closed {
                return;
            } else {
                inner.idle += 1;
                self.changed.wait(&mut inner);
                inner.idle -= 1;
            }
        }
    }

    /// Returns whether there are requests that are not served yet.
    pub fn is_busy(&self) -> bool {
        let inner = self.inner.lock();
        inner.serving > 0 || !inner.work.is_empty() || !inner.writes.is_empty()
    }

    /// Notes that no request comes any more.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::reply::Waits;
    use crate::ring::entry::Entry;
    use crate::ring::mailbox::Mailbox;
    use crate::ring::memory;

    const THREADS: usize = 4;
    const TIMEOUT: Duration = Duration::from_secs(20);

    fn request(opcode: u32) -> Work {
        let held = memory::entries(0, 1, 4096).unwrap().remove(0).with(opcode);
        let entry = Entry::new(Arc::new(Mailbox::new().unwrap()), Arc::new(Waits::new(THREADS)));
        Work { entry: Arc::new(entry), held }
    }

    /// Of invariant 49.
    #[test]
    fn writes_that_wait_leave_threads_for_all_else() {
        const WRITES: usize = 3 * THREADS;
        let backlog = &Backlog::new(THREADS);
        let (begins, begun) = channel();
        let (goes_on, may_go_on) = channel::<()>();
        let may_go_on = &std::sync::Mutex::new(may_go_on);
        let served: usize = thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS)
                .map(|_| {
                    let begins = begins.clone();
                    scope.spawn(move || {
                        let mut served = 0;
                        backlog.serve(|work| {
                            served += 1;
                            begins.send(work.held.opcode()).unwrap();
                            if work.held.opcode() == opcode::WRITE {
                                let _ = may_go_on.lock().unwrap().recv();
                            }
                        });
                        served
                    })
                })
                .collect();
            (0..WRITES).for_each(|_| backlog.push(request(opcode::WRITE)));
            let next = || begun.recv_timeout(TIMEOUT).ok();
            let mut order: Vec<_> = (0..THREADS / 2).map(|_| next()).collect();
            for _ in 0..THREADS {
                backlog.push(request(opcode::LOOKUP));
                order.push(next());
            }
            let is_busy = backlog.is_busy();
            // From here on all requests are served, in any order.
            drop(goes_on);
            backlog.close();
            let served = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            let (write, lookup) = (Some(opcode::WRITE), Some(opcode::LOOKUP));
            assert_eq!(order, [[write; THREADS / 2].as_slice(), &[lookup; THREADS]].concat(), "invariant 49");
            assert!(is_busy && !backlog.is_busy());
            served
        });
        assert_eq!(served, WRITES + THREADS);
    }
}
