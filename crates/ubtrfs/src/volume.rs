//! Devices, and volumes on them: what [`Filesystem::open`](crate::Filesystem::open) takes.
//!
//! Stable are [`Device`] and what implements it, [`Volume::open`] with [`OpenOptions`], and
//! [`Error`]. The rest belongs to the engine, is here so that it has a name, and changes with any
//! version.

#[doc(inline)]
pub use ubtrfs_volume::*;
