//! Compares and takes content and xattrs of the inodes of a merge.

use std::collections::BTreeMap;
use std::ops::Range;

use ubtrfs_changes::FileChange;
use ubtrfs_format::items::{FileType, InodeItem};
use ubtrfs_fs::{Errno, Filesystem, InodeId, Result, SETTABLE_FLAGS, SetAttributes, WriteAt};

use crate::sides::Sides;

/// The part of a file's content that is taken.
pub(crate) enum Taken {
    /// These ranges in bytes. Elsewhere the target has what the base has.
    Ranges(Vec<Range<u64>>),
    /// All of it.
    Whole,
}

/// How many bytes are read at a time.
const PIECE: u64 = 1 << 20;

/// Returns whether two files have the same content. Holes count as zeroes.
pub(crate) fn is_equal(fs: &Filesystem, sides: &Sides<'_>, one: InodeId, other: InodeId) -> Result<bool> {
    let size = fs.inodes().size(one)?;
    if size != fs.inodes().size(other)? {
        return Ok(false);
    }
    let mut at = 0;
    while at < size {
        sides.check_wanted()?;
        // Where both have a hole, there is nothing to read.
        let data = next_data(fs, one, at, size)?.min(next_data(fs, other, at, size)?);
        at = at.max(data / PIECE * PIECE);
        let len = PIECE.min(size - at) as usize;
        if fs.files().read(one, at, len)? != fs.files().read(other, at, len)? {
            return Ok(false);
        }
        at += PIECE;
    }
    Ok(true)
}

fn next_data(fs: &Filesystem, id: InodeId, from: u64, size: u64) -> Result<u64> {
    match fs.files().seek_data(id, from) {
        Ok(data) => Ok(data),
        Err(error) if error.errno() == Errno::NXIO => Ok(size.saturating_sub(1)),
        Err(error) => Err(error),
    }
}

/// The xattrs of an inode.
pub(crate) fn xattrs(fs: &Filesystem, id: InodeId) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let names = fs.inodes().list_xattrs(id)?.into_iter();
    names.map(|name| fs.inodes().get_xattr(id, &name).map(|value| (name, value))).collect()
}

/// Returns whether inodes that both sides have made are equal except for times and names. They must
/// be of the same type, and no directories.
pub(crate) fn is_alike(fs: &Filesystem, sides: &Sides<'_>, change: &FileChange, other: &FileChange) -> Result<bool> {
    let (Some(item), Some(other_item)) = (&change.new, &other.new) else { return Ok(false) };
    let what = |item: &InodeItem| (item.mode, item.uid, item.gid, item.size, item.rdev, item.flags & SETTABLE_FLAGS);
    if what(item) != what(other_item) {
        return Ok(false);
    }
    let one = InodeId::new(sides.changed.subvolume, change.ino);
    let other = InodeId::new(sides.target.subvolume, other.ino);
    if xattrs(fs, one)? != xattrs(fs, other)? {
        return Ok(false);
    }
    match change.file_type {
        FileType::Regular => is_equal(fs, sides, one, other),
        FileType::Symlink => Ok(fs.files().read_link(one)? == fs.files().read_link(other)?),
        _ => Ok(true),
    }
}

/// Gives a file the content of another, by reflinks where possible. Before each piece, `check` says
/// whether to go on.
pub(crate) fn take(
    fs: &Filesystem,
    (source, target): (InodeId, InodeId),
    taken: &Taken,
    check: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let size = fs.inodes().size(source)?;
    let resize = |size| {
        let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
        fs.inodes().set_attributes(target, &changes).map(drop)
    };
    let ranges = match taken {
        Taken::Whole => {
            resize(0)?;
            std::slice::from_ref(&(0..size)).to_vec()
        }
        Taken::Ranges(ranges) => ranges.clone(),
    };
    resize(size)?;
    let sector = u64::from(fs.volume().sector_size());
    for range in ranges {
        let end = range.end.div_ceil(sector).saturating_mul(sector).min(size);
        let start = range.start / sector * sector;
        if start < end {
            take_range(fs, (source, target), start..end, check)?;
        }
    }
    Ok(())
}

fn take_range(
    fs: &Filesystem,
    (source, target): (InodeId, InodeId),
    range: Range<u64>,
    check: &dyn Fn() -> Result<()>,
) -> Result<()> {
    let mut at = range.start;
    while at < range.end {
        check()?;
        match fs.files().clone_range(source, at, target, at, range.end - at) {
            Ok(0) => break,
            Ok(bytes) => at += bytes,
            Err(error) if matches!(error.errno(), Errno::OPNOTSUPP | Errno::INVAL) => break,
            Err(error) => return Err(error),
        }
    }
    // Data that can't be shared, for instance between a file with csums and one without, is copied.
    if at < range.end {
        fs.files().punch_hole(target, at, range.end - at)?;
    }
    while at < range.end {
        check()?;
        let data = next_data(fs, source, at, u64::MAX)?;
        if data >= range.end {
            break;
        }
        at = data;
        let end = fs.files().seek_hole(source, at)?.min(range.end).min(at + PIECE);
        let bytes = fs.files().read(source, at, (end - at) as usize)?;
        if bytes.is_empty() {
            break;
        }
        let written = fs.files().write(target, WriteAt::Offset(at), &bytes, false)?;
        at += written as u64;
    }
    Ok(())
}
