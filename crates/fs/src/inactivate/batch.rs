//! The inactivation work of one transaction. It runs in a thread of its own, in operations that
//! find too little space, and, without background threads, in commits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ubtrfs_threads::thread::JoinHandle;
use ubtrfs_threads::time::Instant;

use super::Inactivator;
use crate::error::{Error, Result, Step};
use crate::faults::CommitFault;
use crate::inode::InodeId;
use ubtrfs_space::{Demand, Reservation, UseOfGlobalReserve};

/// The longest time for which an unlink is throttled.
const MAX_THROTTLE: Duration = Duration::from_millis(50);
/// While files are being written or fsynced, the pause after a step is this many times as long as
/// the step with its commit. An fsync that meets such a commit waits for its end, and few fsyncs
/// should. A commit also writes dirty data back, which becomes fragmented if it comes too early.
const PAUSE: u32 = 4;
/// How long after the last write or fsync there are still pauses.
const QUIET: Duration = Duration::from_secs(2);
/// The most inodes per transaction that are tried without finding space to free them.
const MAX_STUCK: usize = 64;
/// A search for orphans in a subvolume counts as this many inodes, since it may read nodes from the
/// device.
const SEARCH: u64 = 100;
/// The shortest pause if nothing can be freed before readers have ended.
const MIN_WAIT: Duration = Duration::from_millis(100);
/// The longest pause.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// The result of one transaction's inactivation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Freed {
    /// Whether the next commit will free something.
    pub(crate) freed: bool,
    /// Whether there is more to free, in another transaction.
    pub(crate) more: bool,
}

/// When files were last written or fsynced, as far as the inactivator thread has noticed.
#[derive(Debug, Default)]
struct Activity {
    bytes_and_fsyncs: (u64, u64),
    last: Option<Instant>,
}

impl Activity {
    /// Returns whether files have been written or fsynced lately, given how many bytes and fsyncs
    /// there have been so far.
    fn is_recent(&mut self, bytes_and_fsyncs: (u64, u64), now: Instant) -> bool {
        if std::mem::replace(&mut self.bytes_and_fsyncs, bytes_and_fsyncs) != bytes_and_fsyncs {
            self.last = Some(now);
        }
        self.last.is_some_and(|last| now.duration_since(last) < QUIET)
    }
}

impl Inactivator {
    /// Frees as many of the waiting inodes as one transaction may. The caller holds no lock.
    pub(crate) fn free_some(&self) -> Result<Freed> {
        self.free_at_most(self.info.options.freeing.per_transaction)
    }

    /// Lets the next commit drop as much of the deleted subvolumes as space can be reserved for.
    fn drop_subvolumes(&self, most: u64, round: &mut Freed) {
        if !self.queue.waiting.lock().subvolumes || self.info.is_read_only() {
            return;
        }
        // A subvolume that is released from here on sets this again.
        self.queue.waiting.lock().subvolumes = false;
        let (most, reservation) = self.reserve_drop(most);
        let transaction = self.info.gate.enter();
        let committed = self.info.committed();
        let drops = !self.info.deleted.to_drop(&committed, transaction.generation).is_empty();
        if !drops && !self.info.deleted.has_later_ones(&committed, transaction.generation) {
            return;
        }
        round.more = true;
        self.queue.set_subvolumes(true);
        if reservation.is_none() && !self.use_kept() {
            // Readers would hold back what dropping frees, like what was freed before. They would
            // also hold back what is replaced by a commit that only precedes the drop.
            return;
        }
        if drops {
            transaction.subvolumes().may_drop = most;
            round.freed = true;
        } else {
            // The next commit may drop, even if nothing else changes in this one.
            transaction.subvolumes().precedes_drop = true;
        }
    }

    /// Reserves what dropping `most` references may take, or fewer. If no reservation is possible,
    /// the global reserve is enough for one node.
    fn reserve_drop(&self, most: u64) -> (u64, Option<Reservation<'_>>) {
        /// Bytes of the smallest item with a reference.
        const POINTER: u64 = 33;
        // The last node counts as a whole, with references in both forms.
        let last = 2 * u64::from(self.info.volume.node_size()) / POINTER;
        let mut most = most.max(1);
        loop {
            let demand = Demand { edits: most + last, global_reserve: UseOfGlobalReserve::All, ..Demand::default() };
            match self.info.try_reserve(demand) {
                None if most > 1 => most /= 2,
                reservation => return (most, reservation),
            }
        }
    }

    /// Lets the open transaction use the global reserve, if the space comes back.
    pub(super) fn use_kept(&self) -> bool {
        let mut space = self.info.space.lock();
        let may = space.may_free_unreserved() || self.info.options.faults().in_commit(CommitFault::FreeUnreserved);
        if may {
            space.may_use_all_of_global_reserve();
        }
        may
    }

    fn free_at_most(&self, mut left: u64) -> Result<Freed> {
        let mut round = Freed::default();
        if self.queue.waiting.lock().is_empty() {
            return Ok(round);
        }
        let _turn = self.queue.turn.lock();
        self.drop_subvolumes(left, &mut round);
        // Inodes for which there is no space are moved behind the others.
        let mut stuck = 0;
        loop {
            let (first, adopting) = {
                let queue = self.queue.waiting.lock();
                let are_all_stuck = stuck >= queue.inodes.len().min(MAX_STUCK);
                (queue.inodes.front().filter(|_| !are_all_stuck).cloned(), queue.has_orphans())
            };
            if first.is_none() && !adopting {
                return Ok(Freed { more: round.more || stuck > 0, ..round });
            }
            // Inodes take memory until the commit.
            if left == 0 || self.info.is_read_only() || self.info.changes() > self.info.most_changes() {
                return Ok(Freed { more: true, ..round });
            }
            let is_search = first.is_none();
            let done = match first {
                Some(waiting) => self.free_step(&waiting, left, stuck == 0).or_else(|error| {
                    // The inode is damaged, or the file system is aborted. The inode stays an
                    // orphan.
                    let InodeId { subvolume, ino } = waiting.inode.id;
                    self.queue.advance(None, 0);
                    self.pass_over(error.at(Step::FreeInode { subvolume, ino }))
                })?,
                None => self.adopt_some(left).or_else(|error| {
                    self.queue.searched_orphans(None);
                    self.pass_over(error.at(Step::FreeOrphans))
                })?,
            };
            let Some(done) = done else {
                // The space that freeing takes would not come back before readers have ended.
                if is_search {
                    return Ok(Freed { more: true, ..round });
                }
                self.queue.put_first_last();
                stuck += 1;
                continue;
            };
            round.freed |= done > 0;
            left = left.saturating_sub(done + if is_search { SEARCH } else { 0 });
        }
    }

    /// Continues after an error, unless the file system is read-only.
    fn pass_over(&self, error: Error) -> Result<Option<u64>> {
        if self.info.is_read_only() {
            return Err(error);
        }
        self.info.writability.note_error(&error);
        Ok(Some(0))
    }

    /// Delays the caller of an unlink briefly if too much waits to be freed.
    pub(crate) fn let_inactivation_catch_up(&self) -> Result<()> {
        let mut queue = self.queue.waiting.lock();
        if queue.inodes.len() <= self.info.options.freeing.queue {
            return Ok(());
        }
        ubtrfs_tree::ensure_may_block()?;
        self.queue.waits.fetch_add(1, Ordering::Relaxed);
        if self.info.options.background_commits {
            self.queue.progress.wait_for(&mut queue, MAX_THROTTLE);
            return Ok(());
        }
        drop(queue);
        self.free_some().map(drop)
    }

    /// Starts the inactivator thread.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let inactivator = self.clone();
        ubtrfs_threads::thread::Builder::new()
            .name("inactivate".into())
            .spawn(move || inactivator.inactivate_in_background())
    }

    /// Stops the inactivator thread after its current step.
    pub(crate) fn stop(&self) {
        self.queue.waiting.lock().stop = true;
        self.queue.work.notify_all();
    }

    fn inactivate_in_background(&self) {
        let mut activity = Activity::default();
        loop {
            {
                let mut queue = self.queue.waiting.lock();
                while (queue.is_empty() || self.info.is_read_only()) && !queue.stop {
                    self.queue.work.wait(&mut queue);
                }
                if queue.stop {
                    return;
                }
            }
            let start = Instant::now();
            // An error has turned the file system read-only and has been logged.
            let Ok(round) = self.free_some() else { return };
            if !round.more {
                continue;
            }
            if self.committer.commit().is_err() {
                return;
            }
            let least = if round.freed { Duration::ZERO } else { MIN_WAIT };
            let now = Instant::now();
            let counters = &self.info.counters;
            let so_far = (counters.bytes_written.load(Ordering::Relaxed), counters.fsyncs.load(Ordering::Relaxed));
            let pause = if activity.is_recent(so_far, now) { PAUSE * start.elapsed() } else { Duration::ZERO };
            let until = now + pause.clamp(least, MAX_PAUSE);
            let mut queue = self.queue.waiting.lock();
            while !queue.stop
                && queue.inodes.len() <= self.info.options.freeing.queue
                && !self.queue.work.wait_until(&mut queue, until).timed_out()
            {}
        }
    }

    /// Frees inodes once more before the file system ends, the smallest first. The remaining ones
    /// stay on disk as orphans.
    pub(crate) fn free_before_the_end(&self) -> Result<()> {
        let turn = self.queue.turn.lock();
        self.queue.waiting.lock().inodes.make_contiguous().sort_by_key(|waiting| waiting.bytes);
        drop(turn);
        self.free_at_most(self.info.options.freeing.at_the_end).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_end_some_time_after_the_last_write_or_fsync() {
        let (mut activity, start) = (Activity::default(), Instant::now());
        assert!(!activity.is_recent((0, 0), start));
        assert!(activity.is_recent((4096, 0), start));
        assert!(activity.is_recent((4096, 1), start + QUIET));
        assert!(activity.is_recent((4096, 1), start + QUIET * 3 / 2));
        assert!(!activity.is_recent((4096, 1), start + 2 * QUIET));
    }
}
