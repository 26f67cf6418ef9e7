//! The FUSE server: answers the kernel's requests from the engine.
//!
//! [`Server`] implements [`ubtrfs_fuse::Filesystem`] on top of [`ubtrfs::Filesystem`]. It
//! translates: node numbers to inodes and back ([`NodeNumbers`]), attributes and device numbers,
//! the kernel's rules about umask, ACLs and set-id bits to what the engine is told. It holds no
//! state of files; that is the engine's.
//!
//! Requests that memory answers are answered by the thread that read them; those that wait for a
//! commit go to a [`Pool`] with their reply. Where requests arrive over rings, `at_once` says which
//! of them their threads try. Programs that look after a mount talk to it through [`control`].

pub mod acl;
mod at_once;
mod attributes;
mod btrfs_ioctls;
pub mod control;
mod counters;
mod create;
pub mod device_number;
mod directories;
mod flags;
mod guise;
mod nodes;
mod pool;
mod privileges;
mod properties;
mod seek;
mod server;
mod set_id;
mod shared;
mod xattrs;

pub use guise::Guise;
pub use nodes::NodeNumbers;
pub use pool::Pool;
pub use server::{Server, config};
pub use shared::{MountFacts, Shared};
