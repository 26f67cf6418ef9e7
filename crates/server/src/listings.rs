//! Has the kernel drop its cached pages of directories.
//!
//! These pages may be locked without a time limit: getdents(2) copies names from a page that it has
//! locked into the program's memory, which may be a mapped file of a server that never answers. So
//! the threads here do nothing else, and no directory waits for another.

use std::collections::HashSet;
use std::sync::Arc;

use ubtrfs_threads::{Mutex, Rank};

use crate::pool::Pool;

/// How many directories' pages may be dropped at a time. Further directories don't wait for their
/// turn.
const MAX: usize = 4;

/// The directories whose pages the kernel is dropping.
pub(crate) struct Drops {
    pool: Pool,
    nodes: Arc<Mutex<HashSet<u64>>>,
}

/// A directory whose pages the kernel is dropping, until this value is dropped.
pub(crate) struct Dropping {
    node: u64,
    nodes: Arc<Mutex<HashSet<u64>>>,
}

impl Drops {
    pub(crate) fn new() -> Self {
        Self { pool: Pool::new(MAX), nodes: Arc::new(Mutex::with_default(Rank::Listings)) }
    }

    /// Begins to drop the pages of a directory, unless a thread works on it already or the limit of
    /// directories is reached.
    pub(crate) fn begin(&self, node: u64) -> Option<Dropping> {
        let mut nodes = self.nodes.lock();
        if nodes.len() >= MAX || !nodes.insert(node) {
            return None;
        }
        Some(Dropping { node, nodes: Arc::clone(&self.nodes) })
    }

    /// Does the work that was begun in a thread that nothing else waits for, and calls `then` after
    /// it.
    pub(crate) fn run(
        &self,
        dropping: Dropping,
        work: impl FnOnce() + Send + 'static,
        then: impl FnOnce() + Send + 'static,
    ) {
        self.pool.run(move || {
            work();
            drop(dropping);
            then();
        });
    }
}

impl Drop for Dropping {
    fn drop(&mut self) {
        self.nodes.lock().remove(&self.node);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn directories_that_hang_delay_no_other_and_are_few() {
        let drops = Drops::new();
        let (sender, receiver) = channel();
        let mut hanging = Vec::new();
        let most = MAX as u64;
        for node in 1..=most {
            let dropping = drops.begin(node).unwrap();
            assert!(drops.begin(node).is_none(), "one at a time for a directory");
            let (end, ended) = channel::<()>();
            hanging.push(end);
            let (begun, ended_too) = (sender.clone(), sender.clone());
            drops.run(
                dropping,
                move || {
                    begun.send(node).unwrap();
                    let _ = ended.recv();
                },
                move || ended_too.send(most + node).unwrap(),
            );
            // Directories that hang do not keep this one from being dropped.
            assert_eq!(receiver.recv_timeout(TIMEOUT), Ok(node));
        }
        assert!(drops.begin(most + 1).is_none(), "nobody queues behind those that hang");
        drop(hanging.remove(0));
        assert_eq!(receiver.recv_timeout(TIMEOUT), Ok(most + 1));
        let next = drops.begin(most + 1);
        assert!(next.is_some() && drops.begin(1).is_none());
        drop(next);
        assert!(drops.begin(1).is_some());
    }
}
