//! Requests to a background thread for its work.

use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Condvar, Mutex, Rank};

#[derive(Default)]
struct State {
    wanted: bool,
    stop: bool,
}

/// The state that a background thread waits for.
pub(crate) struct WorkRequest {
    state: Mutex<State>,
    changed: Condvar,
}

impl WorkRequest {
    /// Creates one without a request.
    pub(crate) fn new(rank: Rank) -> Self {
        Self { state: Mutex::with_default(rank), changed: Condvar::new() }
    }

    /// Requests the work soon.
    pub(crate) fn ask(&self) {
        let mut state = self.state.lock();
        if !state.wanted {
            state.wanted = true;
            self.changed.notify_all();
        }
    }

    /// Stops the thread.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Waits until the work is requested, or until `deadline` (`None` is no limit). Returns `false`
    /// once the thread has to stop.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut state = self.state.lock();
        while !state.stop && !state.wanted {
            let Some(deadline) = deadline else {
                self.changed.wait(&mut state);
                continue;
            };
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.wanted = false;
        !state.stop
    }
}
