//! Dumps of the metadata of a volume, in the format of `btrfs-image`: for reports of faults.
//!
//! A dump has the superblock and all tree blocks that it refers to, those of the log among them,
//! and no data of files. [`dump`] makes one of a volume that is not mounted, however damaged it is,
//! and [`restore`] makes a volume of one. Both take bounded memory. A dump is hostile input: any
//! content gives a volume or an [`Error`].

mod chunks;
mod clean;
mod cluster;
mod dump;
mod error;
mod media;
mod named_items;
mod names;
mod plan;
mod reader;
mod report;
mod restore;
mod sanitise;
mod seen;
mod short_names;
mod targets;
mod threads;
mod walk;
mod writer;

pub use dump::{DumpOptions, dump};
pub use error::{Error, Result};
pub use plan::RestorePlan;
pub use reader::Source;
pub use report::{Dumped, MAX_PROBLEMS, Problems, Restored};
pub use restore::{RestoreOptions, restore};
pub use targets::Target;
