//! Requests that may wait, and the threads that serve them.

use std::collections::VecDeque;

use ubtrfs_threads::{Condvar, Mutex, MutexGuard, Rank};

use super::queue::Work;

/// The queue of requests from the rings to the threads that may block.
pub struct Backlog {
    inner: Mutex<Inner>,
    changed: Condvar,
}

impl Default for Backlog {
    fn default() -> Self {
        Self { inner: Mutex::with_default(Rank::RingBacklog), changed: Condvar::new() }
    }
}

#[derive(Default)]
struct Inner {
    work: VecDeque<Work>,
    idle: usize,
    serving: usize,
    closed: bool,
}

impl Backlog {
    /// Adds a request.
    pub fn push(&self, work: Work) {
        let mut inner = self.inner.lock();
        inner.work.push_back(work);
        let idle = inner.idle > 0;
        drop(inner);
        if idle {
            self.changed.notify_one();
        }
    }

    /// Serves requests until there will be none.
    pub fn serve(&self, mut serve: impl FnMut(Work)) {
        let mut inner = self.inner.lock();
        loop {
            if let Some(work) = inner.work.pop_front() {
                inner.serving += 1;
                MutexGuard::unlocked(&mut inner, || serve(work));
                inner.serving -= 1;
            } else if inner.closed {
                return;
            } else {
                inner.idle += 1;
                self.changed.wait(&mut inner);
                inner.idle -= 1;
            }
        }
    }

    /// Whether there are requests that are not served yet.
    pub fn is_busy(&self) -> bool {
        let inner = self.inner.lock();
        inner.serving > 0 || !inner.work.is_empty()
    }

    /// No request comes any more.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.changed.notify_all();
    }
}
