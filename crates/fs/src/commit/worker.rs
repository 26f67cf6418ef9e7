//! The background committer.

use std::sync::Arc;

use ubtrfs_threads::thread::JoinHandle;
use ubtrfs_threads::time::Instant;

use super::owner::Committer;

impl Committer {
    /// Starts the background committer.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let committer = self.clone();
        ubtrfs_threads::thread::Builder::new().name("commit".into()).spawn(move || committer.commit_in_background())
    }

    fn commit_in_background(&self) {
        loop {
            // An interval beyond the end of the clock counts as none.
            let deadline = Instant::now().checked_add(self.info.options.commit_interval);
            if !self.info.commit_request.wait(deadline) {
                return;
            }
            if self.info.aborted().is_some() {
                return;
            }
            // An error has turned the file system read-only and has been logged.
            let _ = self.commit();
        }
    }
}
