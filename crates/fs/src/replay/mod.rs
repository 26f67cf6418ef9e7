//! Replay: what a log says becomes pending changes, as if operations had made them.
//!
//! Nothing is written before the whole log has been read, held against all rules and turned into
//! changes; a read-write mount then commits them, and with that the log is gone. A read-only mount
//! keeps them in memory: reads find them there, and not one byte is written.
//!
//! Logs of all kernels have to be understood, and what comes out has to be what their replay makes
//! of them. So the order is theirs. Over each subvolume's log, from the highest id down, three
//! passes are made:
//!
//! 1. [`inodes`]: attributes. What the log does not have goes: xattrs, entries in the ranges that a
//!    directory's log answers for, content beyond the end of a file.
//! 2. [`names`]: entries of directories, as far as the names of their inodes are not in the log
//!    themselves.
//! 3. [`names`], [`content`]: names of inodes, where each takes the `tree_log` of what contradicts
//!    it; xattrs; extents.
//!
//! In the end names are counted ([`links`]): what has none left is an orphan. An inode that is in
//! the log without links is not replayed at all: what took its names away speaks for itself.

mod apply;
mod content;
mod found;
mod inodes;
mod links;
mod names;
mod read;
mod subvolume;
