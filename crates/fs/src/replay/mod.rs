//! Replay: turns the items of a log into pending changes, as if operations had made them.
//!
//! Nothing is written before the whole log has been read, verified and turned into changes; a
//! read-write mount then commits them, which ends the log. A read-only mount keeps them in memory:
//! reads find them there, and nothing is written.
//!
//! Logs of all kernels must be accepted, with the same result as in the kernel's replay, so the
//! order is the kernel's. Three passes are made over each subvolume's log, from the highest id
//! down:
//!
//! 1. [`inodes`]: attributes. Items that the log lacks are deleted: xattrs, entries in the logged
//!    ranges of a directory, content beyond the end of a file.
//! 2. [`names`]: entries of directories, if the log does not have the references of their inodes.
//! 3. [`names`], [`content`]: names of inodes, each of which replaces conflicting ones; xattrs;
//!    extents.
//!
//! In the end names are counted ([`links`]): an inode without names is an orphan. An inode that is
//! in the log without links is not replayed at all: the changes that removed its names are logged
//! themselves.

mod apply;
mod content;
mod found;
mod inodes;
mod links;
mod names;
mod read;
mod replayer;
mod subvolume;

pub(crate) use replayer::Replayer;
