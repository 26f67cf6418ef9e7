//! Asking a thread in the background for its work.

use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Condvar, Mutex, Rank};

#[derive(Default)]
struct State {
    wanted: bool,
    stop: bool,
}

/// What a thread in the background waits for.
pub(crate) struct WorkRequest {
    state: Mutex<State>,
    changed: Condvar,
}

impl WorkRequest {
    /// One that nobody has asked for yet.
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

    /// Waits until the work is requested, or `deadline` (`None`: without a limit). Returns `false`
    /// once the thread is to stop.
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
