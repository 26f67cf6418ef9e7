//! btrfs in user space: files, directories, transactions, space.
//!
//! A [`Filesystem`] is opened on a [`Volume`](ubtrfs_volume::Volume). Operations change memory
//! only; a commit merges what changed into the volume's trees, all at once. `ARCHITECTURE.md`
//! explains how.

mod backrefs;
mod change_memory;
mod clock;
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
mod names;
mod ops;
mod options;
mod replay;
mod reserve;
mod space;
mod subvolume_entries;
mod transaction;
mod writeback;

pub use error::{Errno, Error, Refusal, Result};
pub use filesystem::{Filesystem, InodeFix, Scheduling, Stats};
pub use fsync_group::Done;
pub use inactivate::InactivationStats;
pub use inode::InodeId;
pub use log::Reason;
pub use names::DirectoryEntry;
pub use ops::{
    Attributes, FilesystemStats, Flagged, FlagsAndXattrPlan, FlagsPlan, FoundInode, FoundItem, FoundSubvolume,
    FsyncLeader, ModeAndXattr, NewInode, Plan, RenameFlags, SETTABLE_FLAGS, SetAttributes, TimeChange, WriteAt,
    XattrMode,
};
#[doc(hidden)]
pub use options::{CommitFault, CommitHook, CommitStep, LogFault};
pub use options::{FreeingLimits, Options, Rescue};
pub use space::SpaceTotals;
pub use ubtrfs_tree::{Damage, may_block, nonblocking};
