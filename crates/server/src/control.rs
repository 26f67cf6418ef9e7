//! How programs that look after a mount talk to its server: extended attributes that every inode of
//! the mount seems to have, and that no listing shows. A process that may read the inode may ask
//! for the first two.
//!
//! Reading [`STATS`] gives a [`Report`] as JSON. Reading [`SYNC`] makes everything durable that was
//! changed before, as syncfs(2) does on other file systems, and gives `ok`; it fails as the commit
//! failed.
//!
//! Reading [`READ_ONLY`] or [`WRITABLE`] is the server's part of a remount: it needs the capability
//! `CAP_SYS_ADMIN`. They are read, not set, for nothing is set on a mount that the kernel has made
//! read-only, as it is before the one and after the other.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The attribute that holds the report.
pub const STATS: &str = "ubtrfs.stats";
/// The attribute whose reading is a sync.
pub const SYNC: &str = "ubtrfs.sync";
/// The attribute whose reading commits, and ends all writing to the volume.
pub const READ_ONLY: &str = "ubtrfs.remount.ro";
/// The attribute whose reading ends that again: `EROFS` if the mount began read-only.
pub const WRITABLE: &str = "ubtrfs.remount.rw";
/// The namespace of all; others in it don't exist.
pub(crate) const NAMESPACE: &[u8] = b"ubtrfs.";

/// What a running mount says of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are what `ubtrfs stats` shows; manual pages explain them")]
pub struct Report {
    /// The version of ubtrfs.
    pub version: String,
    /// The server's process.
    pub pid: u32,
    /// When the process started, in the clock ticks of `/proc/PID/stat`: distinguishes it from a
    /// later one of the same number.
    pub pid_started: u64,
    pub devices: Vec<String>,
    /// The options that it was mounted with.
    #[serde(default)]
    pub options: Vec<String>,
    /// `fuseblk`, `fuse` or `fuse (fusermount3)`.
    pub mount_type: String,
    /// Why it is not `fuseblk`, where it might be.
    pub mount_fallback: Option<String>,
    /// How requests arrive: over `io_uring` or `/dev/fuse`.
    pub transport: String,
    /// Why not over `io_uring`, where they might, and what to do about it.
    #[serde(default)]
    pub transport_fallback: Option<String>,
    pub threads: u64,
    pub read_only: bool,
    /// Why it turned read-only after an error.
    pub aborted: Option<String>,
    pub commit_interval_seconds: u64,
    pub generation: u64,
    pub commits: u64,
    pub commit_micros: u64,
    pub fsyncs: u64,
    pub fsyncs_without_work: u64,
    /// How many fsyncs took so many microseconds at most, from the request to the answer, and more
    /// than the number before.
    #[serde(default)]
    pub fsync_micros: BTreeMap<u64, u64>,
    /// Writes of the log.
    pub log_writes: u64,
    /// Fsyncs that these made durable.
    pub log_requests: u64,
    pub log_bytes: u64,
    /// Lookups in the trees for what log items hold beside what changed.
    pub log_searches: u64,
    /// Fsyncs that became commits, by reason; those that never did are left out.
    pub log_fallbacks: BTreeMap<String, u64>,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub bytes_reserved: u64,
    pub bytes_placed: u64,
    pub bytes_cloned: u64,
    pub dirty_bytes: u64,
    /// Memory that changes take which no commit has made durable, but for dirty data.
    pub changed_bytes: u64,
    /// Data on its way to the devices.
    pub bytes_in_flight: u64,
    pub inodes_in_memory: u64,
    pub orphans_cleaned: u64,
    /// Nodes that were shared with snapshots and are no more.
    pub nodes_unshared: u64,
    /// Leaves that commits wrote before they had made the rest, so as not to have all in memory.
    pub leaves_written_early: u64,
    /// Large inodes that nobody refers to and that are yet to be freed, and their bytes.
    pub inactivation_inodes: u64,
    pub inactivation_bytes: u64,
    /// Whether orphans of a mount before are yet to be looked at.
    pub inactivation_orphans_left: bool,
    pub inactivation_steps: u64,
    pub inactivation_extents: u64,
    /// How often an unlink was held back.
    pub inactivation_waits: u64,
    /// Bytes of data block groups (of mixed ones, all).
    pub data_bytes: u64,
    pub data_bytes_used: u64,
    pub metadata_bytes: u64,
    pub metadata_bytes_used: u64,
    /// Device bytes that no chunk has.
    pub unallocated_bytes: u64,
    pub chunks_made: u64,
    pub chunks_given_back: u64,
    pub bytes_discarded: u64,
    pub device_reads: u64,
    pub device_bytes_read: u64,
    pub device_writes: u64,
    pub device_bytes_written: u64,
    /// Barriers.
    pub device_flushes: u64,
    pub device_discards: u64,
    pub checksum_errors: u64,
    pub repairs: u64,
    pub cache_hits: u64,
    pub cache_misses: u64,
    pub cache_bytes: u64,
    /// Requests of the kernel, by kind. Those `postponed` were tried by a ring's thread and came
    /// again: they count twice.
    pub requests: BTreeMap<String, u64>,
    /// Nanoseconds in the methods that serve these, but for what other threads did for them.
    #[serde(default)]
    pub request_nanos: BTreeMap<String, u64>,
    /// Time of processors that the server has used, everything included.
    #[serde(default)]
    pub cpu_micros: u64,
}
