//! The format: identifiers, times, flags and items, as signatures of the engine have them.
//!
//! Stable are the identifiers ([`Ino`], [`TreeId`], [`Generation`], [`DirIndex`], …), [`Key`],
//! [`items::Timespec`], [`items::FileType`] and [`items::InodeFlags`]. The rest belongs to the
//! engine, is here so that it has a name, and changes with any version.

#[doc(inline)]
pub use ubtrfs_format::*;
