//! The FUSE server: answers the kernel's requests from the engine.
//!
//! [`Server`] implements [`ubtrfs_fuse::Filesystem`] on top of [`ubtrfs::Filesystem`]. It
//! translates node numbers to inodes and back ([`NodeNumbers`]), attributes and device numbers, and
//! the kernel's rules about umask, ACLs and set-id bits into arguments of the engine. It holds no
//! state of files, which is in the engine.
//!
//! The thread that reads a request answers it if memory suffices; requests that wait for a commit
//! are passed to a [`Pool`] with their reply. Where requests arrive over rings, `nonblocking`
//! decides which of them their threads try. Programs control a mount through [`control`].

pub mod admission;
mod answers;
mod attributes;
pub mod balance;
mod btrfs_ioctls;
pub mod change_records;
mod changed_names;
pub mod control;
pub mod control_ioctls;
mod control_requests;
mod counters;
mod create;
pub mod defragment;
mod deleted_names;
pub mod device_ioctls;
pub mod device_number;
mod devices;
mod directories;
pub mod extent_map;
mod files;
#[cfg(test)]
mod fixtures;
mod flags;
mod ioctl_request;
mod ioctl_table;
mod ioctls;
mod listings;
mod long_ioctls;
mod mapped_pages;
pub mod merge_ioctl;
pub mod merge_records;
mod nodes;
mod opens;
mod ownership;
mod pages;
mod permissions;
mod pool;
mod positions;
mod privileges;
mod refusals;
mod repeated;
mod requests;
pub mod scrub;
mod seek;
mod server;
mod set_id;
mod setattr;
mod shared;
pub mod streams;
mod subvolume_ioctls;
mod subvolumes;
mod users_pool;
pub mod vacate_ioctls;
mod verity;
mod which_thread;
mod xattrs;

pub use devices::Opener;
pub use nodes::NodeNumbers;
pub use ownership::OwnershipOverride;
pub use pool::Pool;
pub use server::{Server, config};
pub use shared::{CheckOpen, MountFacts, Shared};
