//! How programs query and control the server of a mount.
//!
//! The extended attribute [`STATS`], which every inode of the mount seems to have and no listing
//! shows, is a [`Report`] as JSON. Reading it changes nothing. A process that may read the inode
//! may read it.
//!
//! Everything that changes something is an ioctl of ours
//! ([`control_ioctls`](crate::control_ioctls)), and the table of ioctls says who has the right to
//! it. [`CONTROL_SYNC`](ubtrfs_format::ioctl::CONTROL_SYNC) makes all earlier changes durable, and
//! returns the error of the commit if that fails. [`REMOUNT`](ubtrfs_format::ioctl::REMOUNT) is the
//! server's part of a remount, and [`FORCE`](ubtrfs_format::ioctl::FORCE) announces an unmount by
//! force.
//!
//! A [`Question`] begins a long answer; the ioctl returns the number of its stream.
//! [`NEXT`](ubtrfs_format::ioctl::NEXT) gives the next piece of it: [`MORE`](crate::streams::MORE)
//! or [`LAST`](crate::streams::LAST), then bytes. [`KEEP`](ubtrfs_format::ioctl::KEEP) gives none,
//! but says that the reader is still there: the server gives up a reader that is silent for a
//! minute.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use serde::{Deserialize, Serialize};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_format::{Generation, TreeId};

/// The attribute that holds the report.
pub const STATS: &str = "ubtrfs.stats";
/// The kinds of new regular files: the name that a remount gives the server, and the inode flags.
pub const NEW_FILES: [(&str, u64); 3] = [
    ("datacow", 0),
    ("nodatasum", InodeFlags::NODATASUM),
    ("nodatacow", InodeFlags::NODATACOW | InodeFlags::NODATASUM),
];

/// The name of the kind with these flags.
pub fn name_of_new_files(flags: u64) -> Option<&'static str> {
    NEW_FILES.iter().find(|(_, all)| *all == flags).map(|(name, _)| *name)
}

/// Returns whether an option says which flags new regular files get.
pub(crate) fn is_of_new_files(option: &str) -> bool {
    option == "datasum" || NEW_FILES.iter().any(|(name, _)| *name == option)
}

/// The namespace of that attribute, which has no other attributes.
pub(crate) const NAMESPACE: &[u8] = b"ubtrfs.";

/// A question with a long answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// The differences of two subvolumes, in [records](crate::change_records).
    Changes {
        /// The number of the old one.
        old: TreeId,
        /// The number of the new one.
        new: TreeId,
    },
    /// The changes that this commit and later ones have made to a subvolume, in the same records.
    ChangesSince {
        /// The number of the subvolume.
        subvolume: TreeId,
        /// The commit.
        generation: Generation,
    },
}

/// An error that a mount had.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedError {
    /// When it last occurred, in seconds since the beginning of 1970.
    pub time: u64,
    /// How often it occurred.
    pub count: u64,
    /// What the mount was doing, from the operation down to its part.
    pub step: String,
    /// What happened, with all its causes.
    pub cause: String,
    /// The number of the device that failed, if one did.
    pub device: Option<u64>,
    /// The physical address on that device, in bytes.
    pub physical: Option<u64>,
    /// The logical address of that place.
    pub logical: Option<u64>,
    /// How many bytes were to be read, written or discarded there.
    pub length: Option<u64>,
}

impl From<&ubtrfs::ErrorRecord> for ReportedError {
    fn from(record: &ubtrfs::ErrorRecord) -> Self {
        let time = record.time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let steps: Vec<_> = record.steps.iter().map(ToString::to_string).collect();
        let device = record.device.as_ref();
        Self {
            time,
            count: record.count,
            step: steps.join(": "),
            cause: record.cause.clone(),
            device: device.map(|fault| fault.devid.0),
            physical: device.and_then(|fault| fault.physical).map(|at| at.0),
            logical: device.and_then(|fault| fault.logical).map(|at| at.0),
            length: device.filter(|fault| fault.physical.is_some()).map(|fault| fault.len),
        }
    }
}

/// The report of a running mount.
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
    /// The numbers of the devices that lack something that the others have.
    #[serde(default)]
    pub lagging_devices: Vec<u64>,
    /// The options of the mount; those for data have their present values.
    #[serde(default)]
    pub options: Vec<String>,
    /// `fuseblk`, `fuse` or `fuse (fusermount3)`.
    pub mount_type: String,
    /// Why the type is not `fuseblk`, where it could be.
    pub mount_fallback: Option<String>,
    /// Whether sync(2), syncfs(2) and a remount by the kernel alone reach the server, and how.
    #[serde(default)]
    pub syncs: String,
    /// How requests arrive: over `io_uring` or `/dev/fuse`.
    pub transport: String,
    /// Why requests don't arrive over `io_uring`, where they could, and what to do about it.
    #[serde(default)]
    pub transport_fallback: Option<String>,
    pub threads: u64,
    pub read_only: bool,
    /// Why the mount turned read-only after an error.
    pub aborted: Option<String>,
    /// Errors of devices and of what they hold.
    #[serde(default)]
    pub errors: u64,
    /// The last of these errors, the newest at the end.
    #[serde(default)]
    pub last_errors: Vec<ReportedError>,
    pub commit_interval_seconds: u64,
    pub generation: u64,
    pub commits: u64,
    pub commit_micros: u64,
    #[serde(default)]
    pub commit_bytes: u64,
    pub fsyncs: u64,
    pub fsyncs_without_work: u64,
    /// A histogram of the time of fsyncs from the request to the answer: for each upper bound in
    /// microseconds, how many fsyncs took at most that long, and longer than the bound before.
    #[serde(default)]
    pub fsync_micros: BTreeMap<u64, u64>,
    /// Writes of the log tree.
    pub log_writes: u64,
    /// Fsyncs that these writes made durable.
    pub log_requests: u64,
    pub log_bytes: u64,
    /// Lookups in the trees for unchanged parts of log items.
    pub log_searches: u64,
    /// Fsyncs that became commits, by reason; reasons that never occurred are left out.
    pub log_fallbacks: BTreeMap<String, u64>,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub bytes_reserved: u64,
    pub bytes_placed: u64,
    pub bytes_cloned: u64,
    pub dirty_bytes: u64,
    /// Bytes of memory that uncommitted changes take, without dirty data.
    pub changed_bytes: u64,
    /// Bytes of data in flight to the devices.
    pub bytes_in_flight: u64,
    pub inodes_in_memory: u64,
    pub orphans_cleaned: u64,
    /// Tree nodes that were shared with snapshots and no longer are.
    pub nodes_unshared: u64,
    /// Leaves that commits wrote before they had made all others, to save memory.
    pub leaves_written_early: u64,
    /// Subvolumes that were deleted and still take space.
    #[serde(default)]
    pub subvolumes_deleted_left: u64,
    /// Those of them that the mount does not drop, since their trees can't be read.
    #[serde(default)]
    pub subvolumes_undropped: u64,
    /// Large unreferenced inodes that wait to be freed, and their bytes.
    pub inactivation_inodes: u64,
    pub inactivation_bytes: u64,
    /// Whether orphans of an earlier mount are still to be processed.
    pub inactivation_orphans_left: bool,
    pub inactivation_steps: u64,
    pub inactivation_extents: u64,
    /// How often an unlink had to wait for the inactivator.
    pub inactivation_waits: u64,
    /// Bytes of data block groups, including all of mixed ones.
    pub data_bytes: u64,
    pub data_bytes_used: u64,
    pub metadata_bytes: u64,
    pub metadata_bytes_used: u64,
    /// Bytes of devices that no chunk occupies.
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
    /// How often each lock that all requests may share was taken.
    #[serde(default)]
    pub lock_acquisitions: BTreeMap<String, u64>,
    /// How often a thread waited for each of them.
    #[serde(default)]
    pub lock_waits: BTreeMap<String, u64>,
    /// Requests of the kernel, by kind. Requests that were `postponed`, since a ring's thread had
    /// tried them in vain, count twice.
    pub requests: BTreeMap<String, u64>,
    /// Nanoseconds in the methods that serve these requests, without the work of other threads for
    /// them.
    #[serde(default)]
    pub request_nanos: BTreeMap<String, u64>,
    /// How often requests and answers went from one thread to another.
    #[serde(default)]
    pub hops: BTreeMap<String, u64>,
    /// How many files in `/proc` were read to identify callers.
    #[serde(default)]
    pub callers_read: u64,
    /// Processor time of the server, background work included.
    #[serde(default)]
    pub cpu_micros: u64,
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use std::sync::Arc;
    use std::time::SystemTime;

    use ubtrfs::{NewInode, WriteAt};
    use ubtrfs_volume::{FaultyDevice, Lasting, MemoryDevice, Operation};

    use super::*;
    use crate::fixtures;
    use crate::shared::{MountFacts, Shared};

    #[test]
    fn the_report_has_the_error_of_a_device_with_its_step_and_place() {
        let device = Arc::new(FaultyDevice::new(Arc::new(MemoryDevice::from_bytes(fixtures::volume()))));
        let shared = Shared::new(fixtures::engine_on(device.clone(), 1 << 20), MountFacts::default());
        let engine = shared.engine();
        let before = shared.report();
        assert_eq!((before.errors, before.last_errors, before.aborted), (0, vec![], None));

        let new = NewInode { mode: 0o100_644, ..NewInode::default() };
        let file = engine.directories().create(engine.root(), b"file", &new).unwrap();
        engine.files().write(file, WriteAt::Offset(0), &[7; 8192], false).unwrap();
        device.fail(Operation::Write, 0, 5, Lasting::Once);
        engine.durability().fsync(file).unwrap_err();

        let report = serde_json::to_vec(&shared.report()).unwrap();
        let report: Report = serde_json::from_slice(&report).unwrap();
        let [error] = &report.last_errors[..] else { panic!("{:?}", report.last_errors) };
        let (physical, logical) = (error.physical.unwrap(), error.logical.unwrap());
        assert_eq!((report.read_only, report.errors, error.count), (true, 1, 1));
        assert_eq!((error.device, error.length.is_some_and(|length| length > 0)), (Some(1), true));
        assert_eq!(error.step, format!("writing data of inode {} of subvolume 5", file.ino));
        let place = format!("device 1: writing {} bytes at {physical} (logical {logical})", error.length.unwrap());
        assert_eq!(error.cause, format!("{place}: Input/output error"));
        assert_eq!(report.aborted, Some(format!("{}: {}", error.step, error.cause)));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!((now - 100..=now).contains(&error.time));
    }
}
