//! The format: identifiers, times, flags and items that the signatures of the engine use.
//!
//! These are stable: the identifiers ([`Ino`], [`TreeId`], [`Generation`], [`DirIndex`], …),
//! [`Key`], [`items::Timespec`], [`items::FileType`] and [`items::InodeFlags`]. The rest belongs to
//! the engine. It is here so that it has a name, and changes with any version.

#[doc(inline)]
pub use ubtrfs_format::*;
