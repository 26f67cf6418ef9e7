//! Errors of mounting and unmounting, and the ways to unmount.

use std::io;
use std::path::PathBuf;

/// Why a filesystem can't be mounted or unmounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// A server that has ended left its mount behind here; [`unmount`](super::unmount) clears it.
    #[error("{0}: the mount of a server that is no more")]
    Dead(PathBuf),
    /// The mount point is not a directory.
    #[error("{0}: not a directory")]
    NotADirectory(PathBuf),
    /// The mount point can't be opened.
    #[error("mount point {0}")]
    MountPoint(PathBuf, #[source] io::Error),
    /// There is no `/dev/fuse`, or it can't be opened.
    #[error("/dev/fuse")]
    Device(#[source] io::Error),
    /// The kernel refuses.
    #[error("mounting {0}")]
    Mount(PathBuf, #[source] io::Error),
    /// Another FUSE server has the block device mounted.
    #[error("{0} is mounted by another server")]
    AlreadyServed(String),
    /// An option has a character that options can't have.
    #[error("option {0:?} has a character that mount options can't have")]
    Option(String),
    /// `fusermount3` can't be run.
    #[error("fusermount3 can't be run")]
    NoFusermount(#[source] io::Error),
    /// `fusermount3` refuses, saying why.
    #[error("fusermount3: {0}")]
    Fusermount(String),
    /// The kernel refuses to unmount.
    #[error("unmounting {0}")]
    Unmount(PathBuf, #[source] io::Error),
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmount {
    /// Fail if the mount is in use.
    Now,
    /// Take the mount out of the tree now, and end it when it is no longer in use.
    Lazy,
}
