//! The engine of btrfs in user space: inodes, directories, files and subvolumes of a volume, in
//! transactions that commits make durable.
//!
//! A [`Filesystem`] gives access to all operations that a server of the VFS needs; they take
//! [`InodeId`]s. What can be built from these operations alone is in the crates above: files by
//! path, changes between subvolumes, merges. Those crates use only what this page lists, as any
//! program can. The crate `ubtrfs` re-exports all of it, and documents what a user has to know.

#![warn(unnameable_types)]

pub mod acl;
mod allocated;
mod backrefs;
mod clock;
mod commit;
mod committed;
mod committed_entries;
mod deferred_reads;
mod deleted_subvolumes;
mod discard;
mod error;
mod exclusive_op;
mod faults;
mod file_defaults;
mod file_map;
mod file_reader;
mod filesystem;
mod fs_info;
mod fsync_group;
mod in_flight_bytes;
mod inactivate;
mod inode;
mod inode_view;
mod io_error;
mod item_sizes;
mod last_errors;
mod log;
mod names;
mod ops;
mod options;
mod published_roots;
mod relocation;
mod replace;
mod replacement;
mod replay;
mod reserve;
mod resilver;
pub mod scheduling;
mod scrub;
mod scrub_progress;
mod step;
mod subvolume_changes;
mod subvolume_entries;
mod subvolume_table;
#[cfg(feature = "testing")]
pub mod testing;
mod transaction;
mod tree_roots;
mod used_features;
mod work_request;
mod writability;
mod writeback;
pub mod xattr_names;

pub use discard::Discarder;
pub use error::{Errno, Error, Refusal, Result, Step};
pub use filesystem::{Filesystem, FilesystemStats, FoundInode, FoundItem, FoundSubvolume, KeptCommit, Stats};
pub use inactivate::InactivationStats;
pub use inode::InodeId;
pub use last_errors::ErrorRecord;
pub use log::Reason;
pub use names::DirectoryEntry;
pub use ops::{
    Attributes, Defragmentation, DirectoryOperations, Durability, FileOperations, Flagged, FlagsAndXattrPlan,
    FlagsPlan, FoundExtent, InodeOperations, ModeAndXattr, ModeAndXattrPlan, NewInode, References, RenameFlags,
    SETTABLE_FLAGS, SetAttributes, SubvolumeInfo, SubvolumeOperations, TimeChange, WriteAt, XattrMode,
};
pub use options::{FreeingLimits, Options, Reproducible, Rescue};
pub use relocation::{BalanceProgress, BalanceStatus, Balancer, Relocator, VacateProgress};
pub use replace::{ReplaceOptions, ReplaceProgress, ReplaceState, Replacer};
pub use scrub::{ScrubOptions, Scrubber};
pub use scrub_progress::ScrubProgress;
pub use subvolume_changes::Received;
pub use ubtrfs_file::{
    CompressionMode, DataError, ExtentProblem, PackedPlace, Recompression, UnpackProblem, VerityDigest,
    VerityParameters,
};
pub use ubtrfs_format::items::Compression;
pub use ubtrfs_space::SpaceTotals;
pub use ubtrfs_tree::Damage;
pub use ubtrfs_volume::DeviceFault;
