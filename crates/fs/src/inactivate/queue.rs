//! What waits to be freed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex, MutexGuard};

use ubtrfs_format::TreeId;

use crate::inode::Inode;

/// An inode that nothing refers to and that takes more than a moment to free.
#[derive(Clone)]
pub(crate) struct Waiting {
    pub(super) inode: Arc<Inode>,
    /// What lies from here on is gone.
    pub(super) reached: u64,
    /// Bytes that it still takes.
    pub(super) bytes: u64,
}

impl Waiting {
    pub(super) fn new(inode: Arc<Inode>, bytes: u64) -> Self {
        Self { inode, reached: u64::MAX, bytes }
    }
}

/// Where to look for orphans next.
#[derive(Clone, Debug)]
pub(super) struct Orphans {
    /// Subvolumes that have not been looked through to the end, the current one last.
    pub(super) subvolumes: Vec<TreeId>,
    /// The lowest number that has not been looked at in the current one.
    pub(super) next: u64,
}

/// What waits, in the order in which it came.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) inodes: VecDeque<Waiting>,
    pub(super) bytes: u64,
    /// Orphans of the mount before that nobody has looked at.
    pub(super) orphans: Option<Orphans>,
    pub(super) stop: bool,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.inodes.is_empty() && self.orphans.is_none()
    }
}

/// What waits, and how far the work is.
#[derive(Default)]
pub(crate) struct InactivationQueue {
    pub(super) waiting: Mutex<Queue>,
    /// Told when there is work, and when there shall be none.
    pub(super) work: Condvar,
    /// Told when less waits than before.
    pub(super) progress: Condvar,
    /// Held by whoever frees what one transaction may free.
    pub(super) turn: Mutex<()>,
    /// There are orphans of the mount before.
    adopting: AtomicBool,
    pub(super) steps: AtomicU64,
    pub(super) extents: AtomicU64,
    pub(super) waits: AtomicU64,
}

/// How far the inactivator is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InactivationStats {
    /// Inodes that wait to be freed. Small ones are freed at once and never wait.
    pub inodes: u64,
    /// Bytes that these take.
    pub bytes: u64,
    /// Whether a mount before left inodes that have not been looked at.
    pub orphans_left: bool,
    /// Steps in which such inodes were freed.
    pub steps: u64,
    /// Extents that these steps freed.
    pub extents: u64,
    /// How often whoever unlinks was held back because too many waited.
    pub waits: u64,
}

impl InactivationQueue {
    pub(super) fn push(&self, waiting: Waiting) {
        let mut queue = self.waiting.lock();
        queue.bytes += waiting.bytes;
        queue.inodes.push_back(waiting);
        self.work.notify_one();
    }

    /// Notes how far the first inode in the queue is, or, if there is nothing left of it, takes it
    /// out.
    pub(super) fn advance(&self, reached: Option<u64>, freed: u64) {
        let mut queue = self.waiting.lock();
        let Some(first) = queue.inodes.front_mut() else { return };
        let mut freed = freed.min(first.bytes);
        first.bytes -= freed;
        if let Some(reached) = reached {
            first.reached = reached;
        } else {
            freed += first.bytes;
            queue.inodes.pop_front();
        }
        queue.bytes = queue.bytes.saturating_sub(freed);
        self.progress.notify_all();
    }

    /// Sets the orphans to look at.
    pub(super) fn set_orphans(&self, orphans: Option<Orphans>) {
        let mut queue = self.waiting.lock();
        self.adopting.store(orphans.is_some(), Ordering::Release);
        queue.orphans = orphans;
        self.work.notify_one();
    }

    /// While the result lives, nothing is freed in the background.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// What waits may be freed again.
    pub(crate) fn go_on(&self) {
        // Who has looked and found that it may not waits by now.
        drop(self.waiting.lock());
        self.work.notify_all();
    }

    /// Whether there may be orphans that nobody has looked at.
    pub(crate) fn is_adopting(&self) -> bool {
        self.adopting.load(Ordering::Acquire)
    }

    pub(crate) fn stats(&self) -> InactivationStats {
        let queue = self.waiting.lock();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        InactivationStats {
            inodes: queue.inodes.len() as u64,
            bytes: queue.bytes,
            orphans_left: queue.orphans.is_some(),
            steps: load(&self.steps),
            extents: load(&self.extents),
            waits: load(&self.waits),
        }
    }
}
