//! The work of one transaction, and who does it: a thread of its own; whoever finds that space is
//! short; where there are no threads in the background, whoever commits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::Result;
use crate::filesystem::Filesystem;

/// The longest that whoever unlinks is held back.
const PATIENCE: Duration = Duration::from_millis(50);
/// So many times as long as a step took, its commit with it, is the pause after it: an fsync that
/// meets such a commit waits for its end, and few should.
const PAUSE: u32 = 4;
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What came of the work of one transaction.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Round {
    /// Something will be free after the next commit.
    pub(crate) freed: bool,
    /// There is more to free, in another transaction.
    pub(crate) more: bool,
}

impl Filesystem {
    /// Frees what one transaction may free of what waits to be freed. Called without any lock.
    pub(crate) fn free_some(&self) -> Result<Round> {
        self.free_at_most(self.options.freeing.per_transaction)
    }

    fn free_at_most(&self, mut left: u64) -> Result<Round> {
        let mut round = Round::default();
        if self.inactivator.queue.lock().is_empty() {
            return Ok(round);
        }
        let _turn = self.inactivator.turn.lock();
        loop {
            let (first, adopting) = {
                let queue = self.inactivator.queue.lock();
                (queue.inodes.front().cloned(), queue.orphans.is_some())
            };
            if first.is_none() && !adopting {
                return Ok(round);
            }
            // Inodes take memory until the commit.
            if left == 0 || self.is_read_only() || self.changes() > self.most_changes() {
                return Ok(Round { more: true, ..round });
            }
            let done = match first {
                Some(waiting) => self.free_step(&waiting, left).or_else(|error| {
                    // Damaged, or the file system has given up: it stays an orphan.
                    tracing::warn!("inode {} can't be freed: {error}", waiting.inode.id.ino);
                    self.inactivator.advance(None, 0);
                    if self.is_read_only() { Err(error) } else { Ok(0) }
                })?,
                None => self.adopt_some(left).or_else(|error| {
                    tracing::warn!("orphans can't be freed: {error}");
                    self.inactivator.set_orphans(None);
                    if self.is_read_only() { Err(error) } else { Ok(0) }
                })?,
            };
            round.freed |= done > 0;
            left = left.saturating_sub(done);
        }
    }

    /// Holds whoever unlinks back for a moment if too much waits to be freed.
    pub(crate) fn let_inactivation_catch_up(&self) -> Result<()> {
        let mut queue = self.inactivator.queue.lock();
        if queue.inodes.len() <= self.options.freeing.queue {
            return Ok(());
        }
        ubtrfs_tree::ensure_may_block()?;
        self.inactivator.waits.fetch_add(1, Ordering::Relaxed);
        if self.options.background_commits {
            self.inactivator.progress.wait_for(&mut queue, PATIENCE);
            return Ok(());
        }
        drop(queue);
        self.free_some().map(drop)
    }

    /// Starts the thread that frees.
    pub(crate) fn start_inactivator(self: &Arc<Self>) -> std::io::Result<JoinHandle<()>> {
        let fs = self.clone();
        std::thread::Builder::new().name("inactivate".into()).spawn(move || fs.inactivate_in_background())
    }

    /// Has the thread that frees end after what it is at.
    pub(crate) fn stop_inactivator(&self) {
        self.inactivator.queue.lock().stop = true;
        self.inactivator.work.notify_all();
    }

    fn inactivate_in_background(&self) {
        loop {
            {
                let mut queue = self.inactivator.queue.lock();
                while (queue.is_empty() || self.is_read_only()) && !queue.stop {
                    self.inactivator.work.wait(&mut queue);
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
            if self.commit_once().is_err() {
                return;
            }
            let until = Instant::now() + (PAUSE * start.elapsed()).min(LONGEST_PAUSE);
            let mut queue = self.inactivator.queue.lock();
            while !queue.stop
                && queue.inodes.len() <= self.options.freeing.queue
                && !self.inactivator.work.wait_until(&mut queue, until).timed_out()
            {}
        }
    }

    /// Frees once more before the file system ends, the smallest first; what is left then stays
    /// behind as orphans.
    pub(crate) fn free_before_the_end(&self) -> Result<()> {
        let turn = self.inactivator.turn.lock();
        self.inactivator.queue.lock().inodes.make_contiguous().sort_by_key(|waiting| waiting.bytes);
        drop(turn);
        self.free_at_most(self.options.freeing.at_the_end).map(drop)
    }
}
