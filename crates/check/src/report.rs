//! The outcome and the progress of a check.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::fault::Location;
use crate::media::Missed;
use crate::sharing::SharedExtent;
use crate::{Fault, FaultKind};

/// Gets the progress of the check.
pub trait Progress: Sync {
    /// Is called when `done` of `total` steps of the phase are over; a total of 0 is unknown.
    fn report(&self, phase: &'static str, done: u64, total: u64);
}

/// How much was checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Trees walked.
    pub trees: u64,
    /// Tree blocks, each counted once.
    pub blocks: u64,
    /// Copies of tree blocks read.
    pub block_copies: u64,
    /// Extent items.
    pub extents: u64,
    /// Bytes in all extents.
    pub used_bytes: u64,
    /// Subvolumes checked.
    pub subvolumes: u64,
    /// Inodes checked, once per subvolume.
    pub inodes: u64,
    /// Directory entries checked, once per subvolume.
    pub entries: u64,
    /// Bytes of data compared with their csums, with every copy counted.
    pub data_bytes: u64,
    /// Whether there is a log tree that a mount would replay.
    pub has_log: bool,
    /// The contents of the log tree.
    pub log: LogStats,
}

/// The contents of a log tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct LogStats {
    /// Blocks, each counted once.
    pub blocks: u64,
    /// Subvolumes.
    pub subvolumes: u64,
    /// Inodes that a mount would replay.
    pub inodes: u64,
    /// Entries of directories.
    pub entries: u64,
    /// Uses of data extents.
    pub extents: u64,
    /// Bytes of data whose csums are in the log.
    pub data_bytes: u64,
}

/// The use of a quota group, as its item has it and as the trees have it, in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QgroupReport {
    /// The level and the id, such as `0/256`.
    pub qgroup: String,
    /// What the item says that the group's subvolumes refer to.
    pub referenced: u64,
    /// What the trees say.
    pub referenced_found: u64,
    /// What the item says that only the group's subvolumes refer to.
    pub exclusive: u64,
    /// What the trees say.
    pub exclusive_found: u64,
}

/// The outcome of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The faults, as many as the options allow to keep.
    pub faults: Vec<Fault>,
    /// The number of all faults, also of those that were not kept.
    pub fault_count: u64,
    /// The warnings: what is odd but harmless. As many as the options allow to keep.
    pub warnings: Vec<Fault>,
    /// The number of all warnings.
    pub warning_count: u64,
    /// Comparisons that were left out because a fault made them impossible.
    pub not_compared: Vec<&'static str>,
    /// How much was checked.
    pub stats: Stats,
    /// The use of the quota groups, if it was counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub qgroups: Vec<QgroupReport>,
    /// The extents of the subvolume whose extents were asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub extents: Vec<SharedExtent>,
}

impl Report {
    /// Returns whether no fault was found; warnings don't count.
    pub fn is_clean(&self) -> bool {
        self.fault_count == 0
    }
}

/// Collects faults: keeps a bounded number, and counts all.
#[derive(Debug)]
pub(crate) struct Faults {
    keep: usize,
    /// Bytes on missing devices, by the devices' numbers: those that others have too, and the rest.
    not_read: BTreeMap<u64, (u64, u64)>,
    pub(crate) report: Report,
}

impl Faults {
    pub(crate) fn new(keep: usize) -> Self {
        Self { keep, not_read: BTreeMap::new(), report: Report::default() }
    }

    pub(crate) fn add(&mut self, kind: FaultKind, place: Location) {
        let (list, count) = if kind.is_warning() {
            (&mut self.report.warnings, &mut self.report.warning_count)
        } else {
            (&mut self.report.faults, &mut self.report.fault_count)
        };
        *count += 1;
        if list.len() < self.keep {
            list.push(Fault { kind, place });
        }
    }

    /// Notes that a copy was not read since it is on a missing device. That is no fault besides the
    /// missing device.
    pub(crate) fn not_read(&mut self, missed: Missed, bytes: u64) {
        let sums = self.not_read.entry(missed.device).or_default();
        let sum = if missed.has_other { &mut sums.0 } else { &mut sums.1 };
        *sum = sum.saturating_add(bytes);
    }

    /// Returns the reason why the tree that was walked last could not be read.
    pub(crate) fn reason(&self) -> String {
        let of_device = || {
            let device = self.not_read.iter().find(|(_, (_, lost))| *lost > 0)?.0;
            Some(format!("device {device} is missing"))
        };
        self.report.faults.last().map(ToString::to_string).or_else(of_device).unwrap_or_default()
    }

    /// Returns the report when everything has been checked.
    pub(crate) fn finish(mut self) -> Report {
        for fault in &mut self.report.faults {
            if let FaultKind::DeviceMissing { device, bytes_not_compared, bytes_lost } = &mut fault.kind {
                (*bytes_not_compared, *bytes_lost) = self.not_read.remove(device).unwrap_or_default();
            }
        }
        // Chunks may name devices that the chunk tree does not have.
        for (device, (bytes_not_compared, bytes_lost)) in std::mem::take(&mut self.not_read) {
            self.add(FaultKind::DeviceMissing { device, bytes_not_compared, bytes_lost }, Location::volume());
        }
        self.report
    }

    /// Adds what was found at the same time by another thread.
    pub(crate) fn absorb(&mut self, other: Self) {
        let Report { faults, fault_count, warnings, warning_count, not_compared, .. } = other.report;
        let (mine, keep) = (&mut self.report, self.keep);
        mine.fault_count += fault_count;
        mine.warning_count += warning_count;
        mine.faults.extend(faults.into_iter().take(keep.saturating_sub(mine.faults.len())));
        mine.warnings.extend(warnings.into_iter().take(keep.saturating_sub(mine.warnings.len())));
        for what in not_compared {
            self.not_compared(what);
        }
        for (device, (other, lost)) in other.not_read {
            let sums = self.not_read.entry(device).or_default();
            *sums = (sums.0.saturating_add(other), sums.1.saturating_add(lost));
        }
    }

    /// Counts faults that are not kept.
    pub(crate) fn count(&mut self, more: usize) {
        self.report.fault_count += more as u64;
    }

    /// Notes that a comparison can't be made.
    pub(crate) fn not_compared(&mut self, what: &'static str) {
        if !self.report.not_compared.contains(&what) {
            self.report.not_compared.push(what);
        }
    }

    /// How many more faults can be kept.
    pub(crate) fn room(&self) -> usize {
        self.keep.saturating_sub(self.report.faults.len())
    }
}
