//! Finds a file of a volume that is not mounted.

use ubtrfs::{Errno, Filesystem, InodeId};
use ubtrfs_format::items::FileType;
use ubtrfs_format::posix::MAX_SYMLINKS;

use crate::failure::{Failure, Result};
use crate::show;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtEnd {
    /// The link is followed.
    Follow,
    /// The link itself is returned.
    Stay,
}

/// Returns the inode at a path. Paths begin at the root of the mounted subvolume, whose `..` is the
/// root itself.
pub fn find(fs: &Filesystem, path: &[u8], at_end: AtEnd) -> Result<InodeId> {
    lookup(fs, path, at_end).map_err(|error| match error {
        ubtrfs::Error::Posix(Errno::LOOP) => Failure::new(format!("{}: too many symbolic links", show::bytes(path))),
        error => failure(path, &error),
    })
}

/// Returns the inode at a path, or the engine's own error.
pub fn lookup(fs: &Filesystem, path: &[u8], at_end: AtEnd) -> ubtrfs::Result<InodeId> {
    let mut links = 0;
    let mut at = fs.root();
    let mut rest: Vec<Vec<u8>> = components(path);
    let mut ends_with_slash = path.ends_with(b"/");
    // The link itself is no directory.
    let at_end = if ends_with_slash { AtEnd::Follow } else { at_end };
    while let Some(name) = rest.pop() {
        let found = match name.as_slice() {
            b"." | b".." if !is_directory(fs, at)? => return Err(Errno::NOTDIR.into()),
            b"." => continue,
            b".." => {
                at = fs.directories().parent(at)?;
                continue;
            }
            name => fs.directories().lookup(at, name)?,
        };
        let attributes = fs.inodes().attributes(found)?;
        if attributes.file_type != FileType::Symlink || (rest.is_empty() && at_end == AtEnd::Stay) {
            at = found;
            continue;
        }
        links += 1;
        if links > MAX_SYMLINKS {
            return Err(Errno::LOOP.into());
        }
        let target = fs.files().read_link(found)?;
        if target.first() == Some(&b'/') {
            at = fs.root();
        }
        ends_with_slash |= rest.is_empty() && target.ends_with(b"/");
        rest.extend(components(&target));
    }
    // As in path_resolution(7): what has a slash behind it is a directory.
    if ends_with_slash && !is_directory(fs, at)? {
        return Err(Errno::NOTDIR.into());
    }
    Ok(at)
}

fn is_directory(fs: &Filesystem, inode: InodeId) -> ubtrfs::Result<bool> {
    Ok(fs.inodes().attributes(inode)?.file_type == FileType::Directory)
}

/// Returns the names of a path, the last one first.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).rev().map(<[u8]>::to_vec).collect()
}

/// Returns the failure for an error at a path.
pub fn failure(path: &[u8], error: &ubtrfs::Error) -> Failure {
    let path = show::bytes(path);
    match error {
        ubtrfs::Error::Posix(errno) => Failure::about(path, &std::io::Error::from(*errno)),
        error => Failure::about(path, error),
    }
}
