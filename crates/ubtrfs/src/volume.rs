//! Devices, and volumes on them, which [`Filesystem::open`](crate::Filesystem::open) takes.
//!
//! These are stable: [`Device`] and its implementors, [`Volume::open`] with [`OpenOptions`], and
//! [`Error`]. The rest belongs to the engine. It is here so that it has a name, and changes with
//! any version.

#[doc(inline)]
pub use ubtrfs_volume::*;
