//! btrfs in user space: files, directories, transactions, space.
//!
//! A [`Filesystem`] is opened on a [`Volume`](ubtrfs_volume::Volume). Operations change memory
//! only; a commit merges what changed into the volume's trees, all at once. `ARCHITECTURE.md`
//! explains how.

mod backrefs;
mod commit;
mod commit_request;
mod committed;
mod committed_entries;
mod discard;
mod error;
mod file;
mod file_reader;
mod filesystem;
mod fs_info;
mod fsync_group;
mod in_flight_bytes;
mod inactivate;
mod inode;
mod lock_order;
mod log;
mod mend;
mod names;
mod open;
mod ops;
mod options;
mod replay;
mod reserve;
mod search;
mod space;
mod stats;
mod subvolume_entries;
mod transaction;
mod writeback;

pub use error::{Errno, Error, Refusal, Result};
pub use filesystem::Filesystem;
pub use fsync_group::Done;
pub use inactivate::InactivationStats;
pub use inode::InodeId;
pub use log::Reason;
pub use mend::InodeFix;
pub use names::DirectoryEntry;
pub use ops::{
    Attributes, FilesystemStats, Flagged, FlagsAndXattrPlan, FlagsPlan, FoundInode, FoundSubvolume, FsyncLeader,
    ModeAndXattr, NewInode, Plan, RenameFlags, SETTABLE_FLAGS, SetAttributes, TimeChange, WriteAt, XattrMode,
};
#[doc(hidden)]
pub use options::{CommitFault, CommitHook, CommitStep, LogFault};
pub use options::{FreeingLimits, Options, Rescue};
pub use search::FoundItem;
pub use space::SpaceTotals;
pub use stats::Stats;
pub use ubtrfs_tree::{Damage, may_wait, without_waiting};
