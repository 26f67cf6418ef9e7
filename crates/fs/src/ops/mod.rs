//! The operations of a file system: what programs ask for.
//!
//! What an operation changes, it changes during one passage of the gate (invariant 5), with the
//! inodes locked before (invariant 7), and all that may fail comes before that (invariant 23).

mod attr;
mod checks;
mod clone;
mod create;
mod defragment;
mod enable_verity;
mod extents;
mod fallocate;
mod flags;
mod fsync;
mod link;
mod lock;
mod lookup;
mod operations;
mod property;
mod punch;
mod put_xattr;
mod read;
mod received_subvolume;
mod remount;
mod rename;
mod reset_subvolume;
mod resize;
mod room;
mod salvage;
mod search;
mod statfs;
mod subvolume;
mod write;
mod write_at;
mod xattr;

pub use attr::{Attributes, ModeAndXattr, ModeAndXattrPlan, SetAttributes, TimeChange};
pub use create::NewInode;
pub use defragment::Defragmentation;
pub use extents::FoundExtent;
pub(crate) use flags::has_verity;
pub use flags::{Flagged, FlagsAndXattrPlan, FlagsPlan, SETTABLE_FLAGS};
pub use fsync::FsyncLeader;
pub use rename::RenameFlags;
pub use salvage::{FoundInode, FoundSubvolume};
pub use statfs::FilesystemStats;
pub use subvolume::SubvolumeInfo;
pub use xattr::XattrMode;

pub use write_at::WriteAt;

pub(crate) use checks::check_name;
pub(crate) use create::inode_target;
pub(crate) use lock::LockedInodes;
pub(crate) use operations::Operations;

pub use search::FoundItem;
