//! The background committer.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use crate::filesystem::Filesystem;

impl Filesystem {
    /// Asks the background committer for a commit soon.
    pub(crate) fn wake_committer(&self) {
        let mut state = self.committer.lock();
        if !state.wanted {
            state.wanted = true;
            self.committer_wakes.notify_all();
        }
    }

    /// Starts the background committer.
    pub(crate) fn start_committer(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let fs = self.clone();
        std::thread::Builder::new().name("commit".into()).spawn(move || fs.commit_in_background())
    }

    fn commit_in_background(&self) {
        loop {
            // An interval beyond the end of the clock is no interval.
            let deadline = Instant::now().checked_add(self.options.commit_interval);
            {
                let mut state = self.committer.lock();
                while !state.stop && !state.wanted {
                    let Some(deadline) = deadline else {
                        self.committer_wakes.wait(&mut state);
                        continue;
                    };
                    if self.committer_wakes.wait_until(&mut state, deadline).timed_out() {
                        break;
                    }
                }
                if state.stop {
                    return;
                }
                state.wanted = false;
            }
            if self.abort_reason().is_some() {
                return;
            }
            // An error has turned the file system read-only and has been told of.
            let _ = self.commit();
        }
    }
}
