//! btrfs in user space: an engine that one can embed.
//!
//! A [`Filesystem`] reads and writes a real btrfs volume, in an image file, on a block device or in
//! memory, without the kernel's driver and without root. The bytes are btrfs's own: Linux mounts
//! the volume before and after.
//!
//! ```
//! use std::sync::Arc;
//!
//! use ubtrfs::mkfs::{self, MkfsOptions};
//! use ubtrfs::volume::{Device, MemoryDevice};
//! use ubtrfs::{Dir, Filesystem, Options};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // A new volume. A FileDevice has it in an image file or on a block device instead.
//! let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(128 << 20));
//! mkfs::make(&[&*device], &MkfsOptions::new(device.size()))?;
//!
//! let fs = Filesystem::open_devices(vec![device], Options::default())?;
//! let root = Dir::root(&fs);
//! root.create_dir_all("letters/2024")?;
//! let file = root.create("letters/2024/first")?;
//! file.write_all_at(b"Dear reader", 0)?;
//! file.sync_all()?; // From here on it survives any crash.
//! file.close()?;
//!
//! assert_eq!(root.read("letters/2024/first")?, b"Dear reader");
//! for entry in root.read_dir("letters")? {
//!     println!("{}", entry?.file_name().display());
//! }
//! fs.close()?; // Commits, and returns an error if that fails.
//! # Ok(())
//! # }
//! ```
//!
//! A volume in a file or on a device is opened by [`Filesystem::open_path`]:
//!
//! ```no_run
//! # fn main() -> ubtrfs::Result<()> {
//! let options = ubtrfs::Options { read_only: true, ..ubtrfs::Options::default() };
//! let fs = ubtrfs::Filesystem::open_path("disk.img", options)?;
//! let hostname = ubtrfs::Dir::root(&fs).read("/etc/hostname")?;
//! # Ok(())
//! # }
//! ```
//!
//! # Two faces
//!
//! - **By path**: [`Dir`], [`File`] and [`OpenOptions`] look like [`std::fs`]. Paths and symbolic
//!   links stay inside of the volume. An [`Error`] becomes a [`std::io::Error`] by `?`.
//! - **By inode**: a [`Filesystem`] has every operation that a server of the VFS needs, on
//!   [`InodeId`]s, in groups: [`DirectoryOperations`], [`FileOperations`] (content, holes,
//!   reflinks), [`InodeOperations`] (attributes, flags, xattrs), [`SubvolumeOperations`],
//!   [`Durability`]. A caller that gets an inode by [`lookup`](DirectoryOperations::lookup) or
//!   [`create`](DirectoryOperations::create) holds a reference to it, as the kernel's inode cache
//!   would, and gives it back by [`forget`](References::forget). [`Dir::id`] and [`File::id`]
//!   return the inode of a path.
//!
//! # What one has to know
//!
//! **Operations change memory.** All threads see a change when the call returns. It becomes durable
//! by a *commit*, which writes everything that has changed since the last one, copy-on-write, and
//! then one superblock that refers to it: a crash leaves all of it or nothing. A commit starts at
//! the latest [`commit_interval`](Options::commit_interval) (5 seconds) after a change, when memory
//! or space runs short, by [`Durability::sync`], and by [`Filesystem::close`].
//!
//! **fsync promises** that the file's content, attributes and names, as they were when it was
//! called, are there after any crash once it has returned `Ok`. It writes a log of what changed,
//! not a commit. After an error of a device by which data may be lost, the file system turns
//! read-only, every fsync fails, and [`Filesystem::abort_reason`] says why.
//!
//! **After a crash** (of the process, the kernel or the machine) the volume is in the state of its
//! last commit, with all that was fsynced since; opening it replays the log. No check is needed.
//!
//! **Differences.** [`changes`] finds what differs between two subvolumes, and [`changes_since`]
//! what has changed in one since a commit; neither reads blocks that both states share. [`merge`]
//! applies the differences to a third subvolume, file by file. That takes many operations, of which
//! a crash may leave only the first ones.
//!
//! **Closing.** [`Filesystem::close`] commits and reports errors. A file system that is dropped
//! instead does the same but only traces the error (by the crate `tracing`), unless
//! [`background_commits`](Options::background_commits) is off, or the thread panics: then nothing
//! is committed. A [`File`] may be dropped without loss; only fsync and commits make its content
//! durable.
//!
//! **Threads.** All types are `Send` and `Sync`; operations take `&self`. Reads of a file run in
//! parallel, changes of an inode one after the other, and no lock is held while a commit writes.
//! Two threads work in the background (three with [`discard`](Options::discard)). They do not
//! survive a `fork`, so open the volume after it.
//!
//! **Permissions.** The engine does not check them. The caller does, as the VFS does for the
//! kernel's file systems.
//!
//! **One at a time.** A volume may be open once. [`Filesystem::open_path`] locks it as the program
//! `ubtrfs` does; a caller that passes devices of its own has to ensure that itself. The
//! [`Refusal`] of a volume that can't be opened the way that was asked for (several devices for
//! writing, unknown features, quotas) says what would help.
//!
//! # What is stable
//!
//! Versions follow Semantic Versioning; before 1.0 a breaking change raises the second number.
//! Everything that this page lists is stable, except [`testing`](#features) and the items that
//! [`volume`] and [`format`](mod@format) name only because signatures need them; the crates that
//! these come from are parts of this one, and change with any version. The minimum version of Rust
//! is 1.88; a release that raises the second number may require a newer one.
//!
//! # Features
//!
//! - `testing`: adds the module `testing`, with devices that fail and devices that reproduce the
//!   states that a crash could leave. `examples/crash_test.rs` shows how to test a program's own
//!   promises with them.

#![warn(unnameable_types)]

pub mod format;
pub mod mkfs;
pub mod tree;
pub mod volume;

pub use ubtrfs_changes::{
    ChangedAttribute, ChangedContent, ChangedSubvolume, ChangedXattr, Content, FileChange, FileName, WhatChanged,
    changes, changes_since,
};
#[cfg(feature = "testing")]
pub use ubtrfs_fs::testing;
pub use ubtrfs_fs::{
    Attributes, BalanceProgress, BalanceStatus, Balancer, Compression, CompressionMode, Damage, DataError,
    Defragmentation, DeviceFault, DirectoryEntry, DirectoryOperations, Discarder, Durability, Errno, Error,
    ErrorRecord, ExtentProblem, FileOperations, Filesystem, FilesystemStats, Flagged, FlagsAndXattrPlan, FlagsPlan,
    FoundExtent, FoundInode, FoundItem, FoundSubvolume, FreeingLimits, InactivationStats, InodeId, InodeOperations,
    KeptCommit, ModeAndXattr, ModeAndXattrPlan, NewInode, Options, PackedPlace, Reason, Received, Recompression,
    References, Refusal, Relocator, RenameFlags, ReplaceOptions, ReplaceProgress, ReplaceState, Replacer, Reproducible,
    Rescue, Result, SETTABLE_FLAGS, ScrubOptions, ScrubProgress, Scrubber, SetAttributes, SpaceTotals, Stats, Step,
    SubvolumeInfo, SubvolumeOperations, TimeChange, UnpackProblem, VacateProgress, VerityDigest, VerityParameters,
    WriteAt, XattrMode,
};
pub use ubtrfs_fs::{acl, scheduling, xattr_names};
pub use ubtrfs_merge::{
    ConflictKind, MergeConflict, MergeEffect, MergeSides, MergeStep, Merged, MergedPart, Prefer, merge, merge_while,
};
pub use ubtrfs_paths::{Dir, DirEntry, File, OpenOptions, ReadDir};
