//! Requests that may wait, and the threads that serve them.

use std::collections::VecDeque;

use parking_lot::{Condvar, Mutex};

use super::queue::Work;

/// The queue of requests from the rings to the threads that may block.
#[derive(Default)]
pub struct Backlog {
    inner: Mutex<Inner>,
    changed: Condvar,
}

#[derive(Default)]
struct Inner {
    work: VecDeque<Work>,
    idle: usize,
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

    /// Waits for a request; `None` when there will be none.
    pub fn next(&self) -> Option<Work> {
        let mut inner = self.inner.lock();
        loop {
            if let Some(work) = inner.work.pop_front() {
                return Some(work);
            }
            if inner.closed {
                return None;
            }
            inner.idle += 1;
            self.changed.wait(&mut inner);
            inner.idle -= 1;
        }
    }

    /// No request comes any more.
    pub fn close(&self) {
        self.inner.lock().closed = true;
        self.changed.notify_all();
    }
}
