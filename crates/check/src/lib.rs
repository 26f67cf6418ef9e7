//! Checks every structure of a btrfs volume: what `btrfs check --check-data-csum` checks.
//!
//! A second opinion: nothing here uses the engine that writes volumes, nor its mapping of addresses
//! to devices or its reading of trees; only the on-disk structures and the devices are shared.
//! Nothing is written. An image is hostile input: any content gives a [`Report`] or an [`Error`],
//! in bounded time and memory.
//!
//! The order of things: superblocks; chunk tree; root tree; extent tree (what is said to be used);
//! block groups and devices; free space; checksums; subvolumes, while all uses of blocks and data
//! are noted; the log's blocks; then the extent tree once more, against the uses; at last the data.

mod chunks;
mod csums;
mod error;
mod extents;
mod fault;
mod free_space;
mod groups;
mod log;
mod media;
mod options;
mod parity;
mod phases;
mod ranges;
mod report;
mod roots;
mod subvolume;
mod superblock;
mod uses;
mod walk;

use std::sync::Arc;

use ubtrfs_volume::Device;

pub use error::{Error, Result};
pub use fault::{Fault, FaultKind, Location};
pub use options::Options;
pub use report::{LogStats, Progress, Report, Stats};

/// Checks the volume on these devices: all of it, in any order. The volume must not change
/// meanwhile.
pub fn check(devices: &[Arc<dyn Device>], options: &Options<'_>) -> Result<Report> {
    phases::run(devices, options)
}
