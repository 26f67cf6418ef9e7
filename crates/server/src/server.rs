//! The server of one mount: the engine, and the threads that serve long requests.
//!
//! Threads that users share never wait for something that one of the users can hold or prolong
//! (invariant 49):
//!
//! | threads | what they wait for, and who can hold that |
//! |---|---|
//! | those that read requests | the engine; WRITEs have half. Answers go to the kernel's memory. Nobody |
//! | `slow` | commits, the log, devices; and a piece of a stream, for a second. Nobody |
//! | `long` | work of a size that users choose, dirty pages; each user holds his own share |
//! | `notifying`, `invalidating` | pages of files; each user holds his own share |
//! | `listings` | pages of directories: any process that lists one. Others get an answer that does not wait |
//! | `ChangedNames` | locks of directories: any process that lists one. Requests wait a second at most |
//! | `streams` | readers, for a minute. Only who administers the mount has any |
//! | threads of their own | scrubs, balances and changes of devices: only who administers the mount |
//! | `Shared::take_pages` | pages of files at the end of the mount: the command limits that wait |

use std::collections::HashSet;
use std::sync::Arc;

use ubtrfs::scheduling::may_block;
use ubtrfs::{Filesystem as Engine, InodeId};
use ubtrfs_fuse::{Capabilities, Config, Errno, Transport};
use ubtrfs_threads::time::Instant;
use ubtrfs_threads::{Mutex, Rank};

use crate::counters::{Kind, Timed};
use crate::listings::Drops;
use crate::pool::Pool;
use crate::shared::{MountFacts, Shared, errno};
use crate::streams::Streams;
use crate::users_pool::{User, UsersPool};

/// The number of threads for requests that wait for a commit.
const SLOW_THREADS: usize = 16;
/// How many long jobs of one user run at a time.
const LONG_OF_EACH: usize = 4;
/// How many jobs of one user that wait for pages of files run at a time.
const NOTIFYING_OF_EACH: usize = 4;
/// The number of threads that serve syncs, which wait for the kernel and for commits.
const SYNCING_THREADS: usize = 4;

/// The session's configuration for a [`Server`] that `threads` threads serve, by default as many as
/// suit the transport. Without `checked` the kernel checks no permissions.
pub fn config(threads: Option<usize>, transport: Transport, checked: bool) -> Config {
    /// The least number of threads: those that read `/dev/fuse`, which take a MiB each, and those
    /// for rings, where a few writers that wait for a commit must leave some for others.
    const MIN: (usize, usize) = (4, 16);
    let usual = |least: usize| std::thread::available_parallelism().map_or(least, |cpus| (2 * cpus.get()).max(least));
    let wanted = Config::FULL | Capabilities::ALLOW_IDMAP | Capabilities::EXPORT_SUPPORT;
    // Both capabilities turn the kernel's checks on, or need them.
    let wanted = if checked { wanted } else { wanted - Capabilities::POSIX_ACL - Capabilities::ALLOW_IDMAP };
    // A congested file system would leave dirty pages unwritten when a sync wants them written.
    let (threads, of_rings) = (threads.unwrap_or_else(|| usual(MIN.0)), threads.unwrap_or_else(|| usual(MIN.1)));
    let ring_threads = Some(of_rings);
    Config { wanted, threads, ring_threads, transport, congestion_threshold: u16::MAX, ..Config::default() }
}

/// The server of one mount. The kernel checks permissions (`default_permissions`), not the server;
/// without that option there are no checks.
pub struct Server {
    shared: Arc<Shared>,
    /// For requests that wait only for the engine, and take no longer than a commit or a write of
    /// the log tree.
    pub(crate) slow: Pool,
    /// For requests whose time the user determines: he chooses how large a file is that is
    /// defragmented, and how many dirty pages a subvolume has that the kernel writes before a
    /// snapshot.
    pub(crate) long: UsersPool,
    /// For SYNCFS.
    pub(crate) syncing: Pool,
    /// For invalidations of files, before which the kernel writes dirty pages back. They wait for
    /// requests that other threads serve. A page of a file is locked only while the server answers
    /// for it, never while the kernel waits for a program's memory. But the kernel goes through all
    /// pages from the first to the last, and a program may bring in more of them meanwhile. Nothing
    /// here may wait for pages of directories.
    pub(crate) notifying: UsersPool,
    /// For having the kernel drop its cached pages of directories.
    pub(crate) listings: Drops,
    /// Long answers to ioctls of ours.
    pub(crate) streams: Arc<Streams>,
    /// For invalidations of pages that could not be written. They have threads of their own, so
    /// that a process that continues to change such pages delays no other request.
    invalidating: UsersPool,
    /// Nodes whose pages are to be dropped.
    to_invalidate: Arc<Mutex<HashSet<u64>>>,
}

impl Server {
    /// A server of the engine's mounted subvolume.
    pub fn new(engine: Arc<Engine>, facts: MountFacts) -> Self {
        let shared = Arc::new(Shared::new(engine, facts));
        Self {
            slow: Pool::counting(SLOW_THREADS, Arc::clone(&shared.counters.slow_jobs)),
            shared,
            long: UsersPool::new(LONG_OF_EACH),
            notifying: UsersPool::new(NOTIFYING_OF_EACH),
            syncing: Pool::new(SYNCING_THREADS),
            listings: Drops::new(),
            streams: Arc::new(Streams::new()),
            invalidating: UsersPool::new(1),
            to_invalidate: Arc::new(Mutex::with_default(Rank::ToInvalidate)),
        }
    }

    /// The state that outlives the session: the engine and the result of its end.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    pub(crate) fn count(&self, kind: Kind) -> Timed<'_> {
        self.shared.counters.count(kind)
    }

    pub(crate) fn inode(&self, node: u64) -> Result<InodeId, Errno> {
        self.shared.inode(node)
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.shared.engine
    }

    /// Returns whether requests that take long are not answered yet.
    pub(crate) fn is_busy_with_slow_requests(&self) -> bool {
        self.slow.is_busy() || self.long.is_busy() || self.syncing.is_busy()
    }

    /// Makes an inode durable, and calls `done` with the result. Most fsyncs wait for the write of
    /// another one, which occupies no thread.
    pub(crate) fn sync_inode(&self, node: u64, data_only: bool, done: impl FnOnce(Result<(), Errno>) + Send + 'static) {
        let (shared, began) = (Arc::clone(&self.shared), Instant::now());
        let done = move |result| {
            shared.counters.fsync_answered(began);
            done(result);
        };
        match self.shared.inode(node) {
            Ok(id) => {
                let done = move |result: ubtrfs::Result<()>| done(result.map_err(|error| errno(&error)));
                let Some(leader) = self.engine().durability().join_fsync(id, data_only, Box::new(done)) else { return };
                if may_block() {
                    return self.engine().durability().lead_fsync(leader);
                }
                let shared = Arc::clone(&self.shared);
                self.slow.run(move || shared.engine.durability().lead_fsync(leader));
            }
            Err(errno) => done(Err(errno)),
        }
    }

    /// Has the kernel drop the file's pages, which a program has changed although it must not.
    pub(crate) fn discard_pages(&self, node: u64) {
        if !self.to_invalidate.lock().insert(node) {
            return;
        }
        // No user has asked for this, so the job counts for the file's owner.
        let owner = self.shared.inode(node).ok().and_then(|id| self.shared.engine.inodes().attributes(id).ok());
        let user = owner.map_or(User::Unknown, |is| User::of_id(is.uid));
        let (shared, to_invalidate) = (Arc::clone(&self.shared), Arc::clone(&self.to_invalidate));
        self.invalidating.run(user, move || {
            to_invalidate.lock().remove(&node);
            shared.invalidate_pages(node);
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::fixtures;

    #[test]
    fn directories_that_hang_delay_neither_seeks_nor_flags() {
        let server = Server::new(fixtures::engine(&fixtures::volume(), 1 << 20), MountFacts::default());
        let gate = Arc::new(Mutex::new(Rank::TestGate, ()));
        let closed = gate.lock();
        for (node, dropping) in (1..).map_while(|node| server.listings.begin(node).map(|dropping| (node, dropping))) {
            let gate = Arc::clone(&gate);
            assert!(node < 100, "few wait");
            server.listings.run(dropping, move || drop(gate.lock()), || ());
        }
        let (done, all) = channel();
        for _ in 0..2 * NOTIFYING_OF_EACH {
            let done = done.clone();
            server.notifying.run(User::Unknown, move || done.send(()).unwrap());
        }
        for _ in 0..2 * NOTIFYING_OF_EACH {
            all.recv_timeout(Duration::from_secs(20)).unwrap();
        }
        drop(closed);
    }
}
