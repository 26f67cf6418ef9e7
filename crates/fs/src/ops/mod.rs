//! The operations of a file system that programs ask for.
//!
//! An operation makes all its changes during one passage of the gate (invariant 5). It locks the
//! inodes before that (invariant 7), and all that may fail comes before that, too (invariant 23).

mod access_times;
mod attr;
mod attribute_change;
mod checks;
mod clone;
mod create;
mod defragment;
mod enable_verity;
mod entries;
mod extents;
mod fallocate;
mod flags;
mod fsync;
mod link;
mod listing;
mod lock;
mod lookup;
mod operations;
mod property;
mod punch;
mod put_xattr;
mod read;
mod received_subvolume;
mod references;
mod remount;
mod rename;
mod reset_subvolume;
mod resize;
mod room;
mod subvolume;
mod throttle;
mod write;
mod write_at;
mod xattr;

pub use attr::Attributes;
pub use attribute_change::{ModeAndXattr, ModeAndXattrPlan, SetAttributes, TimeChange};
pub use create::NewInode;
pub use defragment::Defragmentation;
pub use extents::FoundExtent;
pub use flags::{Flagged, FlagsAndXattrPlan, FlagsPlan, SETTABLE_FLAGS};
pub use fsync::FsyncLeader;
pub use operations::{DirectoryOperations, Durability, FileOperations, InodeOperations, SubvolumeOperations};
pub use references::References;
pub use rename::RenameFlags;
pub use subvolume::SubvolumeInfo;
pub use xattr::XattrMode;

pub use write_at::WriteAt;

pub(crate) use checks::check_name;
pub(crate) use create::inode_target;
pub(crate) use lock::LockedInodes;
pub(crate) use operations::{Engine, Operations};
