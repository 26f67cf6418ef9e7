//! Where a path leads.

use ubtrfs_format::items::FileType;
use ubtrfs_format::posix::MAX_SYMLINKS;
use ubtrfs_fs::{Errno, Result};

use crate::handle::Handle;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtEnd {
    /// Follow it.
    Follow,
    /// Follow it, to make a file there if there is none.
    Create,
    /// Don't follow it, unless a slash follows.
    Stay,
    /// Don't follow it, since the operation is about the name itself.
    Name,
}

/// Where a path leads.
#[derive(Debug)]
pub(crate) struct Place {
    /// The directory that has or would have the last name.
    dir: Handle,
    /// The last name; `None` if the path ends with the root, `.` or `..`.
    name: Option<Vec<u8>>,
    /// The inode that the path refers to, if it exists, and its type.
    found: Option<(Handle, FileType)>,
    /// Whether the path ends with a slash, which is allowed only for directories.
    ends_with_slash: bool,
}

impl Place {
    /// The inode that the path refers to, and its type. `ENOENT` if it does not exist.
    pub(crate) fn found(self) -> Result<(Handle, FileType)> {
        self.found.ok_or(Errno::NOENT.into())
    }

    /// Returns whether the path refers to an inode.
    pub(crate) fn exists(&self) -> bool {
        self.found.is_some()
    }

    /// Returns whether the path ends with a slash.
    pub(crate) fn ends_with_slash(&self) -> bool {
        self.ends_with_slash
    }

    /// The directory and the name in it. `EBUSY` if the path has no last name.
    pub(crate) fn entry(&self) -> Result<(&Handle, &[u8])> {
        match &self.name {
            Some(name) => Ok((&self.dir, name)),
            None => Err(Errno::BUSY.into()),
        }
    }

    /// The directory and the name of an existing inode, and its type.
    pub(crate) fn old_entry(&self) -> Result<(&Handle, &[u8], FileType)> {
        let (_, file_type) = self.found.as_ref().ok_or(Errno::NOENT)?;
        let (dir, name) = self.entry()?;
        if self.ends_with_slash && *file_type != FileType::Directory {
            return Err(Errno::NOTDIR.into());
        }
        Ok((dir, name, *file_type))
    }

    /// The directory and the name for a new inode of this type. `EEXIST` if the name exists.
    pub(crate) fn new_entry(&self, file_type: FileType) -> Result<(&Handle, &[u8])> {
        if self.found.is_some() {
            return Err(Errno::EXIST.into());
        }
        if self.ends_with_slash && file_type != FileType::Directory {
            return Err(Errno::NOENT.into());
        }
        self.entry()
    }
}

/// Follows a path from a directory. Absolute paths and absolute targets of symbolic links begin at
/// the root of the mounted subvolume, and no path leads out of it.
pub(crate) fn resolve(from: &Handle, path: &[u8], at_end: AtEnd) -> Result<Place> {
    if path.is_empty() {
        return Err(Errno::NOENT.into());
    }
    let mut links = 0;
    let mut at = beginning(from, path);
    let mut rest = components(path);
    let mut ends_with_slash = path.ends_with(b"/");
    while let Some(name) = rest.pop() {
        match name.as_slice() {
            b"." => continue,
            b".." => {
                at = at.parent()?;
                continue;
            }
            _ => {}
        }
        let is_last = rest.is_empty();
        if is_last && ends_with_slash && at_end == AtEnd::Create {
            return Err(Errno::ISDIR.into());
        }
        let found = match at.lookup(&name) {
            Ok(found) => found,
            Err(error) if is_last && error.errno() == Errno::NOENT => {
                return Ok(Place { dir: at, name: Some(name), found: None, ends_with_slash });
            }
            Err(error) => return Err(error),
        };
        let file_type = FileType::from_mode(found.fs().inodes().mode(found.id())?);
        let stays = match at_end {
            AtEnd::Follow | AtEnd::Create => false,
            AtEnd::Stay => is_last && !ends_with_slash,
            AtEnd::Name => is_last,
        };
        if file_type == FileType::Symlink && !stays {
            links += 1;
            if links > MAX_SYMLINKS {
                return Err(Errno::LOOP.into());
            }
            let target = found.fs().files().read_link(found.id())?;
            ends_with_slash |= is_last && target.ends_with(b"/");
            at = beginning(&at, &target);
            rest.extend(components(&target));
            continue;
        }
        if file_type != FileType::Directory
            && (!is_last || (ends_with_slash && matches!(at_end, AtEnd::Follow | AtEnd::Stay)))
        {
            return Err(Errno::NOTDIR.into());
        }
        if is_last {
            return Ok(Place { dir: at, name: Some(name), found: Some((found, file_type)), ends_with_slash });
        }
        at = found;
    }
    Ok(Place { dir: at.clone(), name: None, found: Some((at, FileType::Directory)), ends_with_slash })
}

fn beginning(from: &Handle, path: &[u8]) -> Handle {
    if path.starts_with(b"/") { from.root() } else { from.clone() }
}

/// The names of a path, in reverse order.
fn components(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).rev().map(<[u8]>::to_vec).collect()
}
