//! btrfs in user space: files, directories, transactions, space.
//!
//! A [`Filesystem`] is opened on a [`Volume`](ubtrfs_volume::Volume). Operations change memory
//! only; a commit merges what changed into the volume's trees, all at once. `ARCHITECTURE.md`
//! explains how.

mod commit;
mod committed;
mod dir;
mod discard;
mod error;
mod file;
mod filesystem;
mod inactivate;
mod inode;
mod label;
mod lock_order;
mod log;
mod mend;
mod name_items;
mod open;
mod ops;
mod options;
mod search;
mod space;
mod stats;
mod subvolume_entries;
mod transaction;

pub use dir::DirectoryEntry;
pub use error::{Errno, Error, Refusal, Result};
pub use filesystem::Filesystem;
pub use inactivate::InactivationStats;
pub use inode::InodeId;
pub use log::{Done, FsyncLeader, Reason};
pub use mend::InodeFix;
pub use ops::{
    Attributes, FilesystemStats, Flagged, FlagsAndXattrPlan, FlagsPlan, FoundInode, FoundSubvolume, ModeAndXattr,
    NewInode, Plan, RenameFlags, SETTABLE_FLAGS, SetAttributes, TimeChange, WriteAt, XattrMode,
};
#[doc(hidden)]
pub use options::{CommitFault, CommitHook, CommitStep, LogFault};
pub use options::{FreeingLimits, Options, Rescue};
pub use search::FoundItem;
pub use space::SpaceTotals;
pub use stats::Stats;
pub use ubtrfs_tree::{Damage, may_block, nonblocking};
