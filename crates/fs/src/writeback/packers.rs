//! Threads and contexts that compress data, and the results.

use std::collections::BTreeMap;

use ubtrfs_file::Packer;
use ubtrfs_format::items::Compression;
use ubtrfs_threads::atomic::{AtomicUsize, Ordering};
use ubtrfs_threads::{Mutex, Rank};
use ubtrfs_volume::SharedBuffer;

/// A piece of a file that takes less space compressed.
pub(super) struct PackedPiece {
    /// Bytes of the file.
    pub(super) len: u64,
    pub(super) compression: Compression,
    /// The compressed data, padded to whole sectors.
    pub(super) data: SharedBuffer,
}

/// The parts of a file's dirty data that take less space compressed.
#[derive(Default)]
pub(crate) struct Packed {
    pub(super) pieces: BTreeMap<u64, PackedPiece>,
    /// The compressed content of a file that becomes inline.
    pub(super) inline: Option<(Compression, Vec<u8>)>,
    /// Whether nothing could be compressed, so that no more data of the file needs to be tried.
    pub(super) in_vain: bool,
}

/// The compression contexts and helper threads of a mount.
pub(super) struct Packers {
    sector_size: usize,
    idle: Mutex<Vec<Packer>>,
    /// The most helper threads, besides the threads that write back.
    most_helpers: AtomicUsize,
    /// The number of helper threads at work.
    helpers: AtomicUsize,
}

impl Packers {
    pub(super) fn new(sector_size: usize, threads: usize) -> Self {
        let most_helpers = AtomicUsize::new(threads.saturating_sub(1));
        Self { sector_size, idle: Mutex::with_default(Rank::IdlePackers), most_helpers, helpers: AtomicUsize::new(0) }
    }

    /// Sets how many threads may compress data of one file from now on, including the one that
    /// writes back.
    pub(super) fn set_threads(&self, threads: usize) {
        self.most_helpers.store(threads.saturating_sub(1), Ordering::Relaxed);
    }

    /// Returns how many threads may compress data of one file.
    pub(super) fn threads(&self) -> usize {
        self.most_helpers.load(Ordering::Relaxed) + 1
    }

    /// Takes up to `most` helpers.
    fn take_helpers(&self, most: usize) -> usize {
        let limit = self.most_helpers.load(Ordering::Relaxed);
        let free = |busy: usize| limit.saturating_sub(busy).min(most);
        let taken = self.helpers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |busy| Some(busy + free(busy)));
        taken.map_or(0, free)
    }

    /// Calls `work` with a packer.
    pub(super) fn with_packer<T>(&self, work: impl FnOnce(&mut Packer) -> T) -> T {
        let idle = self.idle.lock().pop();
        let mut packer = idle.unwrap_or_else(|| Packer::new(self.sector_size));
        let result = work(&mut packer);
        self.idle.lock().push(packer);
        result
    }

    /// Calls `work` for each of `count` jobs, in this thread and in helper threads if some are
    /// free.
    pub(super) fn for_each<T: Send>(
        &self,
        count: usize,
        work: impl Fn(&mut Packer, usize) -> T + Sync,
    ) -> Vec<(usize, T)> {
        let next = AtomicUsize::new(0);
        let do_some = || {
            self.with_packer(|packer| {
                let jobs = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|job| *job < count));
                jobs.map(|job| (job, work(packer, job))).collect::<Vec<_>>()
            })
        };
        let helpers = self.take_helpers(count.saturating_sub(1));
        let all = ubtrfs_threads::thread::scope(|scope| {
            let spawn = || ubtrfs_threads::thread::Builder::new().name("compress".into()).spawn_scoped(scope, do_some);
            // If no thread can be created, this one does all the work.
            let others: Vec<_> = (0..helpers).filter_map(|_| spawn().ok()).collect();
            let mut all = do_some();
            for other in others {
                match other.join() {
                    Ok(done) => all.extend(done),
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            all
        });
        self.helpers.fetch_sub(helpers, Ordering::Relaxed);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_is_done_once_and_helpers_are_given_back() {
        for threads in [0, 1, 4] {
            let packers = Packers::new(4096, threads);
            for count in [0, 1, 3, 100] {
                let mut done = packers.for_each(count, |_, job| job * 2);
                done.sort_unstable();
                assert_eq!(done, (0..count).map(|job| (job, job * 2)).collect::<Vec<_>>());
            }
            assert_eq!((packers.helpers.load(Ordering::Relaxed), packers.threads()), (0, threads.max(1)));
            packers.set_threads(2);
            assert_eq!((packers.take_helpers(9), packers.take_helpers(9)), (1, 0));
            assert!(packers.idle.into_inner().len() <= threads.max(1));
        }
    }
}
