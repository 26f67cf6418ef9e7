//! Operations in few words, for sequences in the text of tests.

use ubtrfs::{Recompression, RenameFlags, WriteAt, XattrMode};

use crate::operation::Name;
use crate::{Operation, Path, What};

/// Returns a path from its text.
pub fn path(text: &str) -> Path {
    Path(text.as_bytes().to_vec())
}

/// Returns the object at a path.
pub fn at(text: &str) -> What {
    What::At(path(text))
}

/// Makes a regular file.
pub fn file(text: &str) -> Operation {
    make(text, 0o100_644, "")
}

/// Makes a directory.
pub fn directory(text: &str) -> Operation {
    make(text, 0o040_755, "")
}

/// Makes an inode of a type and mode; a symlink points to `target`.
pub fn make(text: &str, mode: u32, target: &str) -> Operation {
    let (owner, target) = ((0, 0), path(target));
    Operation::Create { path: path(text), mode, owner, rdev: 0, target, xattr: false, open: false }
}

/// Writes into a file; offset and length determine the content.
pub fn write(text: &str, offset: u64, len: usize) -> Operation {
    let fill = offset * 31 + len as u64;
    Operation::Write { what: at(text), at: WriteAt::Offset(offset), len, fill, kill_privileges: false }
}

/// Appends to a file.
pub fn append(text: &str, len: usize) -> Operation {
    Operation::Write { what: at(text), at: WriteAt::End, len, fill: len as u64, kill_privileges: false }
}

/// Preallocates space, and keeps the size.
pub fn reserve(text: &str, offset: u64, len: u64) -> Operation {
    Operation::Allocate { what: at(text), offset, len, zero: false, keep_size: true }
}

/// Preallocates space, and extends the file to its end.
pub fn allocate(text: &str, offset: u64, len: u64) -> Operation {
    Operation::Allocate { what: at(text), offset, len, zero: false, keep_size: false }
}

/// Makes a range zero, with preallocated space; the size stays.
pub fn zero(text: &str, offset: u64, len: u64) -> Operation {
    Operation::Allocate { what: at(text), offset, len, zero: true, keep_size: true }
}

/// Makes the beginning of a file share the extents of another one.
pub fn clone(from: &str, to: &str) -> Operation {
    clone_range(from, 0, to, 0, 1 << 20)
}

/// Makes a range of a file share the extents of another.
pub fn clone_range(from: &str, from_offset: u64, to: &str, to_offset: u64, len: u64) -> Operation {
    Operation::Clone { from: at(from), from_offset, to: at(to), to_offset, len }
}

/// Sets an xattr.
pub fn set_xattr(text: &str, name: &str, fill: u64) -> Operation {
    let name = Name(name.as_bytes().to_vec());
    Operation::SetXattr { what: at(text), name, len: 20, fill, mode: XattrMode::Set }
}

/// Removes an xattr.
pub fn remove_xattr(text: &str, name: &str) -> Operation {
    Operation::RemoveXattr { what: at(text), name: Name(name.as_bytes().to_vec()) }
}

/// Renames.
pub fn rename(from: &str, to: &str) -> Operation {
    Operation::Rename { from: path(from), to: path(to), flags: RenameFlags::default() }
}

/// Exchanges two names.
pub fn exchange(one: &str, other: &str) -> Operation {
    let flags = RenameFlags { exchange: true, ..RenameFlags::default() };
    Operation::Rename { from: path(one), to: path(other), flags }
}

/// Adds a second name.
pub fn link(from: &str, to: &str) -> Operation {
    Operation::Link { what: at(from), path: path(to) }
}

/// Removes a name.
pub fn unlink(text: &str) -> Operation {
    Operation::Unlink { path: path(text) }
}

/// Removes a directory.
pub fn rmdir(text: &str) -> Operation {
    Operation::Rmdir { path: path(text) }
}

/// Fsyncs an inode.
pub fn fsync(text: &str) -> Operation {
    Operation::Fsync { what: at(text), data_only: false }
}

/// Fdatasyncs an inode: the times need not be durable.
pub fn fdatasync(text: &str) -> Operation {
    Operation::Fsync { what: at(text), data_only: true }
}

/// Rewrites a file in fewer pieces, including those that it shares.
pub fn defragment(text: &str, compression: Recompression) -> Operation {
    Operation::Defragment { what: at(text), compression, unshare: true }
}

/// Makes writes to an empty file go in place from now on.
pub fn nodatacow(text: &str) -> Operation {
    Operation::NoDataCow { what: at(text) }
}
