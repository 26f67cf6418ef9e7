//! The operations of a history.

use std::fmt;

use ubtrfs::{Recompression, RenameFlags, WriteAt, XattrMode};
use ubtrfs_format::items::Timespec;

/// A path below the root, its names joined by `/`; empty for the root itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Path(pub Vec<u8>);

impl Path {
    /// Returns the path of `name` in this directory.
    #[must_use]
    pub fn join(&self, name: &[u8]) -> Self {
        let mut bytes = self.0.clone();
        if !bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(name);
        Self(bytes)
    }

    /// Returns the directory's path and the last name; `None` for the root.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.0.is_empty() {
            return None;
        }
        match self.0.iter().rposition(|byte| *byte == b'/') {
            Some(at) => Some((Self(self.0[..at].to_vec()), &self.0[at + 1..])),
            None => Some((Self::default(), &self.0)),
        }
    }

    /// Returns the names.
    pub fn names(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|byte| *byte == b'/').filter(|name| !name.is_empty())
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("/")?;
        for (number, name) in self.names().enumerate() {
            let text = String::from_utf8_lossy(name);
            let separator = if number > 0 { "/" } else { "" };
            if name.len() > 24 {
                write!(f, "{separator}{}…({})", text.chars().take(6).collect::<String>(), name.len())?;
            } else {
                write!(f, "{separator}{text}")?;
            }
        }
        Ok(())
    }
}

/// The name of an xattr.
#[derive(Clone, PartialEq, Eq)]
pub struct Name(pub Vec<u8>);

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0[..self.0.len().min(24)]))
    }
}

/// The object of an operation.
#[derive(Clone, PartialEq, Eq)]
pub enum What {
    /// The inode of a path.
    At(Path),
    /// The open file with this number among those that are open, modulo their count.
    Handle(usize),
}

impl fmt::Debug for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(path) => write!(f, "{path:?}"),
            Self::Handle(number) => write!(f, "handle {number}"),
        }
    }
}

/// A change of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// Adds a device that the volume does not have, if there is one.
    Add,
    /// Moves everything from a device of the volume to others, and removes it.
    Remove {
        /// The number of the device among those of the volume, modulo their count.
        number: usize,
    },
    /// Resizes a device.
    Resize {
        /// The number of the device among those of the volume, modulo their count.
        number: usize,
        /// The new size in [parts](Self::PARTS) of the whole device.
        parts: u64,
    },
}

impl DeviceChange {
    /// The number of parts of a device.
    pub const PARTS: u64 = 16;
}

/// An operation. A number determines its content: [`Random::noise`](crate::Random::noise) makes it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the engine's operations of the same names")]
pub enum Operation {
    /// Makes a file, directory, symlink or other node; with `open` its reference is kept.
    Create {
        path: Path,
        mode: u32,
        owner: (u32, u32),
        rdev: u64,
        target: Path,
        xattr: bool,
        open: bool,
    },
    /// Makes a file without a name, which stays open.
    Unnamed {
        dir: Path,
        mode: u32,
    },
    /// Looks up a path, and keeps the reference.
    Open {
        path: Path,
    },
    /// Drops a reference.
    Close {
        handle: usize,
    },
    Write {
        what: What,
        at: WriteAt,
        len: usize,
        fill: u64,
        kill_privileges: bool,
    },
    Truncate {
        what: What,
        size: u64,
    },
    /// Punches a hole within the file, whose size stays.
    Punch {
        what: What,
        offset: u64,
        len: u64,
    },
    /// Preallocates space for a range; with `zero` its data is freed.
    Allocate {
        what: What,
        offset: u64,
        len: u64,
        zero: bool,
        keep_size: bool,
    },
    /// Makes a range share the extents of another one.
    Clone {
        from: What,
        from_offset: u64,
        to: What,
        to_offset: u64,
        len: u64,
    },
    /// Rewrites a file in fewer pieces, without a change that programs see.
    Defragment {
        what: What,
        compression: Recompression,
        unshare: bool,
    },
    Attributes {
        what: What,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        mtime: Option<Timespec>,
    },
    SetXattr {
        what: What,
        name: Name,
        len: usize,
        fill: u64,
        mode: XattrMode,
    },
    RemoveXattr {
        what: What,
        name: Name,
    },
    /// Sets the mode and an xattr at once, as for an ACL; without a length the xattr is removed.
    ModeAndXattr {
        what: What,
        mode: u32,
        name: Name,
        len: Option<usize>,
        fill: u64,
    },
    /// Makes writes to a regular, empty file go in place from now on; other files are not changed.
    NoDataCow {
        what: What,
    },
    Link {
        what: What,
        path: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        flags: RenameFlags,
    },
    /// Makes an empty subvolume.
    CreateSubvolume {
        path: Path,
    },
    /// Makes a snapshot of the subvolume that contains a path.
    Snapshot {
        source: Path,
        path: Path,
        read_only: bool,
    },
    DeleteSubvolume {
        path: Path,
    },
    /// Resets a subvolume to a snapshot of the one that contains the path `source`.
    ResetSubvolume {
        path: Path,
        source: Path,
    },
    /// Makes the subvolume that contains a path read-only or writable.
    SetReadOnly {
        path: Path,
        read_only: bool,
    },
    /// Makes the subvolume that contains a path the default one.
    SetDefault {
        path: Path,
    },
    /// Fsyncs; with `data_only` times need not be durable.
    Fsync {
        what: What,
        data_only: bool,
    },
    Sync,
    /// Moves the content of a block group elsewhere, without a change that programs see.
    EmptyBlockGroup {
        number: usize,
    },
    /// Adds, removes or resizes a device, without a change that programs see.
    ChangeDevices {
        change: DeviceChange,
    },
    /// Unmounts with all files open, and mounts again.
    Remount,
    /// Compares the engine's visible state with the model.
    Look,
}

impl Operation {
    /// Returns the operation with content that no operation of another number writes.
    #[must_use]
    pub fn numbered(&self, number: u64) -> Self {
        let mut operation = self.clone();
        if let Self::Write { fill, .. } | Self::SetXattr { fill, .. } | Self::ModeAndXattr { fill, .. } = &mut operation
        {
            *fill ^= (number + 1) << 32;
        }
        operation
    }

    /// Returns whether it is durable, with all before it, when it has returned.
    pub(crate) fn is_durable(&self) -> bool {
        matches!(
            self,
            Self::CreateSubvolume { .. }
                | Self::Snapshot { .. }
                | Self::ResetSubvolume { .. }
                | Self::SetReadOnly { .. }
                | Self::SetDefault { .. }
        )
    }

    /// Returns the objects that it changes, and the paths whose names it changes in their
    /// directories, if these exist.
    pub(crate) fn changes(&self) -> (Vec<&What>, Vec<&Path>) {
        match self {
            Self::Create { path, .. }
            | Self::Open { path }
            | Self::Unlink { path }
            | Self::Rmdir { path }
            | Self::CreateSubvolume { path }
            | Self::Snapshot { path, .. } => (Vec::new(), vec![path]),
            Self::Unnamed { dir, .. } => (Vec::new(), vec![dir]),
            Self::Rename { from, to, .. } => (Vec::new(), vec![from, to]),
            Self::Link { what, path } => (vec![what], vec![path]),
            Self::Clone { from, to, .. } => (vec![from, to], Vec::new()),
            Self::Write { what, .. }
            | Self::Truncate { what, .. }
            | Self::Punch { what, .. }
            | Self::Allocate { what, .. }
            | Self::Defragment { what, .. }
            | Self::Attributes { what, .. }
            | Self::SetXattr { what, .. }
            | Self::RemoveXattr { what, .. }
            | Self::ModeAndXattr { what, .. }
            | Self::NoDataCow { what }
            | Self::Fsync { what, .. } => (vec![what], Vec::new()),
            Self::Close { .. }
            | Self::DeleteSubvolume { .. }
            | Self::ResetSubvolume { .. }
            | Self::SetReadOnly { .. }
            | Self::SetDefault { .. }
            | Self::EmptyBlockGroup { .. }
            | Self::ChangeDevices { .. }
            | Self::Sync
            | Self::Remount
            | Self::Look => Default::default(),
        }
    }

    /// Returns whether it must succeed even on a full volume.
    pub fn frees(&self) -> bool {
        match self {
            // A truncation within a sector rewrites that sector, which needs space.
            Self::Truncate { size, .. } => size % 4096 == 0,
            Self::Unlink { .. }
            | Self::Rmdir { .. }
            | Self::DeleteSubvolume { .. }
            | Self::RemoveXattr { .. }
            | Self::Fsync { .. }
            | Self::Sync
            | Self::Remount
            | Self::Close { .. }
            | Self::Open { .. }
            | Self::Look => true,
            _ => false,
        }
    }
}
