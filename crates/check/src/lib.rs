//! Checks every structure of a btrfs volume: what `btrfs check --check-data-csum` checks.
//!
//! The checker is independent: it uses neither the engine that writes volumes, nor its mapping of
//! addresses to devices or its reading of trees; it shares only the on-disk structures and the
//! devices. It writes nothing. An image is hostile input: any content gives a [`Report`] or an
//! [`Error`], in bounded time and memory.
//!
//! The phases are: superblocks; chunk tree; root tree; extent tree (the space that it says is
//! used); block groups and devices; free space; csums; subvolumes, in which all uses of blocks and
//! data are noted; the log tree's blocks; the extent tree once more, compared with the uses; and
//! the data.

mod chunks;
mod csums;
mod data;
mod error;
mod extents;
mod fault;
mod free_space;
mod groups;
mod level;
mod log;
mod meaning;
mod media;
mod naming;
mod options;
mod parity;
mod phases;
mod placement;
mod quota;
mod ranges;
mod report;
mod roots;
mod sharing;
mod start;
mod subvolume;
mod superblock;
mod uses;
mod walk;
mod windows;

use std::sync::Arc;

use ubtrfs_volume::Device;

pub use error::{Error, Result};
pub use fault::{Fault, FaultKind, Location};
pub use level::{Level, Mending};
pub use meaning::{About, KINDS};
pub use options::Options;
pub use report::{LogStats, Progress, QgroupReport, Report, Stats};
pub use sharing::SharedExtent;
pub use start::Start;

/// Checks the volume on these devices, which must be all of its devices, in any order. The volume
/// must not change meanwhile.
pub fn check(devices: &[Arc<dyn Device>], options: &Options<'_>) -> Result<Report> {
    phases::run(devices, options)
}
