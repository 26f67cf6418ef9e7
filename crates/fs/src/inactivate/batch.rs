//! The work of one transaction, and who does it: a thread of its own; whoever finds that space is
//! short; where there are no threads in the background, whoever commits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Inactivator;
use crate::error::Result;

/// The longest that whoever unlinks is held back.
const PATIENCE: Duration = Duration::from_millis(50);
/// So many times as long as a step took, its commit with it, is the pause after it: an fsync that
/// meets such a commit waits for its end, and few should.
const PAUSE: u32 = 4;
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What came of the work of one transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Freed {
    /// Something will be free after the next commit.
    pub(crate) freed: bool,
    /// There is more to free, in another transaction.
    pub(crate) more: bool,
}

impl Inactivator {
    /// Frees what one transaction may free of what waits to be freed. Called without any lock.
    pub(crate) fn free_some(&self) -> Result<Freed> {
        self.free_at_most(self.info.options.freeing.per_transaction)
    }

    fn free_at_most(&self, mut left: u64) -> Result<Freed> {
        let mut round = Freed::default();
        if self.queue.waiting.lock().is_empty() {
            return Ok(round);
        }
        let _turn = self.queue.turn.lock();
        loop {
            let (first, adopting) = {
                let queue = self.queue.waiting.lock();
                (queue.inodes.front().cloned(), queue.orphans.is_some())
            };
            if first.is_none() && !adopting {
                return Ok(round);
            }
            // Inodes take memory until the commit.
            if left == 0 || self.info.is_read_only() || self.info.changes() > self.info.most_changes() {
                return Ok(Freed { more: true, ..round });
            }
            let done = match first {
                Some(waiting) => self.free_step(&waiting, left).or_else(|error| {
                    // Damaged, or the file system has given up: it stays an orphan.
                    tracing::warn!("inode {} can't be freed: {error}", waiting.inode.id.ino);
                    self.queue.advance(None, 0);
                    if self.info.is_read_only() { Err(error) } else { Ok(0) }
                })?,
                None => self.adopt_some(left).or_else(|error| {
                    tracing::warn!("orphans can't be freed: {error}");
                    self.queue.set_orphans(None);
                    if self.info.is_read_only() { Err(error) } else { Ok(0) }
                })?,
            };
            round.freed |= done > 0;
            left = left.saturating_sub(done);
        }
    }

    /// Holds whoever unlinks back for a moment if too much waits to be freed.
    pub(crate) fn let_inactivation_catch_up(&self) -> Result<()> {
        let mut queue = self.queue.waiting.lock();
        if queue.inodes.len() <= self.info.options.freeing.queue {
            return Ok(());
        }
        ubtrfs_tree::ensure_may_block()?;
        self.queue.waits.fetch_add(1, Ordering::Relaxed);
        if self.info.options.background_commits {
            self.queue.progress.wait_for(&mut queue, PATIENCE);
            return Ok(());
        }
        drop(queue);
        self.free_some().map(drop)
    }

    /// Starts the thread that frees.
    pub(crate) fn start(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let inactivator = self.clone();
        std::thread::Builder::new().name("inactivate".into()).spawn(move || inactivator.inactivate_in_background())
    }

    /// Has the thread that frees end after what it is at.
    pub(crate) fn stop(&self) {
        self.queue.waiting.lock().stop = true;
        self.queue.work.notify_all();
    }

    fn inactivate_in_background(&self) {
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
            // An error has turned the file system read-only and has been told of.
            let Ok(round) = self.free_some() else { return };
            if !round.more {
                continue;
            }
            if self.committer.commit().is_err() {
                return;
            }
            let until = Instant::now() + (PAUSE * start.elapsed()).min(LONGEST_PAUSE);
            let mut queue = self.queue.waiting.lock();
            while !queue.stop
                && queue.inodes.len() <= self.info.options.freeing.queue
                && !self.queue.work.wait_until(&mut queue, until).timed_out()
            {}
        }
    }

    /// Frees once more before the file system ends, the smallest first; what is left then stays
    /// behind as orphans.
    pub(crate) fn free_before_the_end(&self) -> Result<()> {
        let turn = self.queue.turn.lock();
        self.queue.waiting.lock().inodes.make_contiguous().sort_by_key(|waiting| waiting.bytes);
        drop(turn);
        self.free_at_most(self.info.options.freeing.at_the_end).map(drop)
    }
}
