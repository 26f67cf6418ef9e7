//! Asking the background committer for a commit.

use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Condvar, Mutex, Rank};

#[derive(Default)]
struct State {
    wanted: bool,
    stop: bool,
}

/// What the background committer waits for.
pub(crate) struct CommitRequest {
    state: Mutex<State>,
    changed: Condvar,
}

impl Default for CommitRequest {
    fn default() -> Self {
        Self { state: Mutex::with_default(Rank::CommitRequest), changed: Condvar::new() }
    }
}

impl CommitRequest {
    /// Requests a commit soon.
    pub(crate) fn ask(&self) {
        let mut state = self.state.lock();
        if !state.wanted {
            state.wanted = true;
            self.changed.notify_all();
        }
    }

    /// Stops the committer.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.changed.notify_all();
    }

    /// Waits until a commit is requested, or `deadline` (`None`: without a limit). Returns `false`
    /// once the committer is to stop.
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
