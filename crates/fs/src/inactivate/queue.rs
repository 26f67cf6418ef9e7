//! The queue of inodes that wait to be freed.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ubtrfs_format::TreeId;
use ubtrfs_threads::atomic::AtomicBool;
use ubtrfs_threads::{Condvar, Mutex, MutexGuard, Rank};

use crate::inode::Inode;

/// An inode to which nothing refers and that is freed in steps.
#[derive(Clone)]
pub(crate) struct Waiting {
    pub(super) inode: Arc<Inode>,
    /// The offset from which on everything has been freed.
    pub(super) reached: u64,
    /// Bytes that are not freed yet.
    pub(super) bytes: u64,
}

impl Waiting {
    pub(super) fn new(inode: Arc<Inode>, bytes: u64) -> Self {
        Self { inode, reached: u64::MAX, bytes }
    }
}

/// The place at which the search for orphans continues.
#[derive(Debug, Default)]
pub(super) struct Orphans {
    /// Subvolumes that have not been searched to the end, the current one first.
    subvolumes: VecDeque<TreeId>,
    /// The lowest inode number in the current one that has not been searched.
    next: u64,
}

/// The waiting inodes in the order of their arrival, except that those for which there was no space
/// are moved back.
#[derive(Default)]
pub(super) struct Queue {
    pub(super) inodes: VecDeque<Waiting>,
    pub(super) bytes: u64,
    /// Subvolumes whose orphans have not been processed.
    orphans: Orphans,
    /// Whether there are released subvolumes whose trees are not dropped yet.
    pub(super) subvolumes: bool,
    pub(super) stop: bool,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.inodes.is_empty() && !self.has_orphans() && !self.subvolumes
    }

    /// Whether there may be orphans to process.
    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.subvolumes.is_empty()
    }
}

/// The waiting inodes, and the progress of the work.
pub(crate) struct InactivationQueue {
    pub(super) waiting: Mutex<Queue>,
    /// Signalled when there is work, and when the thread must stop.
    pub(super) work: Condvar,
    /// Signalled when fewer inodes wait than before.
    pub(super) progress: Condvar,
    /// Held by the thread that does one transaction's work.
    pub(super) turn: Mutex<()>,
    /// Whether there are subvolumes whose orphans have not been processed.
    adopting: AtomicBool,
    pub(super) steps: AtomicU64,
    pub(super) extents: AtomicU64,
    pub(super) waits: AtomicU64,
}

impl Default for InactivationQueue {
    fn default() -> Self {
        Self {
            waiting: Mutex::with_default(Rank::Inactivation),
            work: Condvar::new(),
            progress: Condvar::new(),
            turn: Mutex::with_default(Rank::InactivationTurn),
            adopting: AtomicBool::new(false),
            steps: AtomicU64::new(0),
            extents: AtomicU64::new(0),
            waits: AtomicU64::new(0),
        }
    }
}

/// The inactivator's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InactivationStats {
    /// Inodes that wait to be freed. Small ones are freed at once and never wait.
    pub inodes: u64,
    /// Bytes that these inodes take.
    pub bytes: u64,
    /// Whether orphans of an earlier mount, or in a new snapshot, have not been processed yet.
    pub orphans_left: bool,
    /// Steps in which such inodes were freed.
    pub steps: u64,
    /// Extents that these steps freed.
    pub extents: u64,
    /// How often an unlink was throttled because too many inodes waited.
    pub waits: u64,
}

impl InactivationQueue {
    pub(super) fn push(&self, waiting: Waiting) {
        let mut queue = self.waiting.lock();
        queue.bytes += waiting.bytes;
        queue.inodes.push_back(waiting);
        self.work.notify_one();
    }

    /// Records the progress of the first inode in the queue, or removes it if `reached` is `None`.
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

    /// Moves the first inode to the end of the queue, since there is no space to free it.
    pub(super) fn put_first_last(&self) {
        let mut queue = self.waiting.lock();
        if !queue.inodes.is_empty() {
            queue.inodes.rotate_left(1);
        }
    }

    /// Adds subvolumes whose orphans have to be processed.
    pub(super) fn add_orphans_of(&self, subvolumes: impl IntoIterator<Item = TreeId>) {
        let mut queue = self.waiting.lock();
        queue.orphans.subvolumes.extend(subvolumes);
        self.adopting.store(queue.has_orphans(), Ordering::Release);
        self.work.notify_one();
    }

    /// Returns where to search for orphans: a subvolume that is not `gone`, and the lowest inode
    /// number.
    pub(super) fn next_orphans(&self, gone: impl Fn(TreeId) -> bool) -> Option<(TreeId, u64)> {
        let mut queue = self.waiting.lock();
        let current = queue.orphans.subvolumes.front().copied();
        queue.orphans.subvolumes.retain(|subvolume| !gone(*subvolume));
        if queue.orphans.subvolumes.front().copied() != current {
            queue.orphans.next = 0;
        }
        self.adopting.store(queue.has_orphans(), Ordering::Release);
        queue.orphans.subvolumes.front().map(|subvolume| (*subvolume, queue.orphans.next))
    }

    /// Records that the current subvolume was searched up to the inode number `next`, or to its
    /// end.
    pub(super) fn searched_orphans(&self, next: Option<u64>) {
        let mut queue = self.waiting.lock();
        if next.is_none() {
            queue.orphans.subvolumes.pop_front();
        }
        queue.orphans.next = next.unwrap_or(0);
        self.adopting.store(queue.has_orphans(), Ordering::Release);
    }

    /// Records whether there are released subvolumes to drop.
    pub(super) fn set_subvolumes(&self, are_there: bool) {
        self.waiting.lock().subvolumes = are_there;
        self.work.notify_one();
    }

    /// Pauses freeing in the background while the result lives.
    pub(crate) fn pause(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Lets waiting inodes be freed again.
    pub(crate) fn go_on(&self) {
        // After this lock, a thread that found the pause set is waiting.
        drop(self.waiting.lock());
        self.work.notify_all();
    }

    /// Whether there may be orphans that have not been processed.
    pub(crate) fn is_adopting(&self) -> bool {
        self.adopting.load(Ordering::Acquire)
    }

    pub(crate) fn stats(&self) -> InactivationStats {
        let queue = self.waiting.lock();
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        InactivationStats {
            inodes: queue.inodes.len() as u64,
            bytes: queue.bytes,
            orphans_left: queue.has_orphans(),
            steps: load(&self.steps),
            extents: load(&self.extents),
            waits: load(&self.waits),
        }
    }
}
