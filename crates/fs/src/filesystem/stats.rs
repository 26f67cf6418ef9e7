//! Counters of a running mount.

use std::sync::atomic::Ordering;

use super::Filesystem;
use crate::inactivate::InactivationStats;
use crate::last_errors::{ErrorRecord, with_faults};
use crate::log::Reason;
use ubtrfs_space::SpaceTotals;

/// What a mount has done so far.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// The generation of the last commit.
    pub generation: u64,
    /// Number of commits.
    pub commits: u64,
    /// Time spent in commits, in microseconds.
    pub commit_micros: u64,
    /// Bytes of tree blocks that commits wrote, each counted once whatever the number of copies.
    pub commit_bytes: u64,
    /// Number of fsyncs.
    pub fsyncs: u64,
    /// Number of fsyncs that had nothing to write.
    pub fsyncs_without_work: u64,
    /// Number of writes of the log.
    pub log_writes: u64,
    /// Number of fsyncs that writes of the log made durable.
    pub log_requests: u64,
    /// Bytes of log nodes, each counted once whatever the number of copies.
    pub log_bytes: u64,
    /// Lookups in the trees for unchanged parts of log items: other names in an item, xattrs,
    /// reserved space.
    pub log_searches: u64,
    /// How often an fsync fell back to a commit, by reason.
    pub log_fallbacks: Vec<(Reason, u64)>,
    /// Bytes that programs read through the engine.
    pub bytes_read: u64,
    /// Bytes that programs wrote.
    pub bytes_written: u64,
    /// Bytes that programs preallocated in files.
    pub bytes_reserved: u64,
    /// Bytes that were written in place: into preallocated space, or over old data.
    pub bytes_placed: u64,
    /// Bytes that were reflinked instead of copied.
    pub bytes_cloned: u64,
    /// Bytes of dirty data in memory.
    pub dirty_bytes: u64,
    /// Bytes of memory that changes take until a commit makes them durable, without dirty data.
    pub changed_bytes: u64,
    /// Bytes of data in flight to the devices.
    pub bytes_in_flight: u64,
    /// Inodes in memory.
    pub inodes: u64,
    /// Freed orphans: inodes that a crash had left without a name.
    pub orphans_cleaned: u64,
    /// Tree blocks shared with snapshots that a change of the tree replaced by blocks of its own.
    pub nodes_unshared: u64,
    /// Leaves that commits wrote before they had built the rest of the tree, for lack of memory.
    pub leaves_written_early: u64,
    /// Deleted subvolumes that this mount does not drop further, since a block of their trees can't
    /// be read. The next mount tries again.
    pub subvolumes_undropped: u64,
    /// Inodes that wait to be freed, and those that have been.
    pub inactivation: InactivationStats,
    /// Chunks allocated from unallocated device space.
    pub chunks_made: u64,
    /// Empty chunks removed.
    pub chunks_given_back: u64,
    /// Bytes discarded, each counted once whatever the number of copies.
    pub bytes_discarded: u64,
    /// How full the volume is.
    pub space: SpaceTotals,
    /// Devices: reads, writes, bytes, barriers, repairs.
    pub volume: ubtrfs_volume::VolumeCounters,
    /// Node cache: hits, misses, bytes.
    pub cache: ubtrfs_tree::CacheCounters,
    /// Locks that all requests may share, with the number of times they were taken and waited for.
    /// The lock of the buffer pool is shared by all volumes of the process.
    pub locks: Vec<(&'static str, ubtrfs_volume::LockCounters)>,
    /// Why the file system turned read-only, if it did.
    pub aborted: Option<String>,
    /// Number of all errors of devices and of their content.
    pub errors: u64,
    /// The last of these errors, the newest at the end.
    pub last_errors: Vec<ErrorRecord>,
}

impl Filesystem {
    /// Returns what the mount has done so far.
    pub fn stats(&self) -> Stats {
        let locks = self.info.lock_counters().chain(self.log.lock_counters()).collect();
        let counters = &self.info.counters;
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (errors, last_errors) =
            with_faults(self.info.writability.last_errors().get(), self.info.volume.devices().last_faults());
        let (chunks_made, chunks_given_back) = self.info.space.lock().chunk_counts();
        Stats {
            chunks_made,
            chunks_given_back,
            bytes_discarded: self.discards.bytes(),
            space: self.info.space.totals(),
            generation: self.info.generation().0,
            commits: load(&counters.commits),
            commit_micros: load(&counters.commit_micros),
            commit_bytes: load(&counters.commit_bytes),
            fsyncs: load(&counters.fsyncs),
            fsyncs_without_work: load(&counters.fsyncs_without_work),
            log_writes: load(&counters.log_writes),
            log_requests: load(&counters.log_requests),
            log_bytes: load(&counters.log_bytes),
            log_searches: load(&counters.log_searches),
            log_fallbacks: self.log.fallbacks.counts().collect(),
            bytes_read: load(&counters.bytes_read),
            bytes_written: load(&counters.bytes_written),
            bytes_reserved: load(&counters.bytes_reserved),
            bytes_placed: load(&counters.bytes_placed),
            bytes_cloned: load(&counters.bytes_cloned),
            dirty_bytes: self.info.space.lock().reserved_data(),
            changed_bytes: self.info.open_transactions().iter().map(|open| open.memory().changes()).sum(),
            bytes_in_flight: self.writeback.bytes_in_flight(),
            inodes: self.info.inodes.len() as u64,
            orphans_cleaned: load(&counters.orphans_cleaned),
            nodes_unshared: load(&counters.nodes_unshared),
            leaves_written_early: load(&counters.leaves_written_early),
            subvolumes_undropped: self.info.deleted.undropped() as u64,
            inactivation: self.inactivator.stats(),
            volume: self.info.volume.counters(),
            cache: self.info.cache.counters(),
            locks,
            aborted: self.info.writability.abort_reason(),
            errors,
            last_errors,
        }
    }
}
