//! Repairs a btrfs volume that is not mounted.
//!
//! What is damaged is derived from what is not: names from the two other places that note them,
//! counters from what they count, references to extents from what uses them, free space from what
//! is used. Nothing is guessed. Where nothing says what something was, it is given up, and the plan
//! says so.
//!
//! All writes go to memory first ([`ubtrfs_volume::StagedDevice`]). The checker looks at the result
//! before anything is written to the devices. New tree blocks go to space that no tree and no item
//! of the extent tree uses, so that a crash leaves the volume as it was, or repaired.

mod bad_block;
mod change;
mod checksums;
mod commit;
mod describe;
mod error;
mod extents;
mod lost_extents;
mod lost_roots;
mod plan;
mod prune;
mod quotas;
mod roots;
mod scan;
mod session;
mod space;
mod subvolume;
mod supported;
mod survey;
mod undo;

pub use change::{Change, Level, Loss};
pub use error::{Error, Result};
pub use plan::{Options, RepairPlan};
pub use undo::undo;
