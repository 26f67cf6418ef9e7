//! The attributes that a file of a volume gets when it has been copied or imported.

use std::path::Path;

use ubtrfs::format::items::Timespec;
use ubtrfs::xattr_names::COMPRESSION;
use ubtrfs::{Filesystem, InodeId, SetAttributes, TimeChange, XattrMode};

use crate::error::{Error, Result, inside};

/// Owner, permissions, extended attributes and times.
#[derive(Debug)]
pub(crate) struct Attributes<'a> {
    pub(crate) owner: (u32, u32),
    pub(crate) mode: u32,
    pub(crate) xattrs: &'a [(Vec<u8>, Vec<u8>)],
    pub(crate) atime: Timespec,
    pub(crate) mtime: Timespec,
    /// The creation time; `None` leaves it as it is.
    pub(crate) btime: Option<Timespec>,
}

/// An error about an attribute of a file.
fn about<'a>(path: &'a Path, name: &'a [u8]) -> impl FnOnce(ubtrfs::Error) -> Error + 'a {
    move |error| Error::Attribute {
        path: path.into(),
        name: String::from_utf8_lossy(name).escape_debug().to_string(),
        source: error.into(),
    }
}

/// Sets the compression property of a file that is still empty.
pub(crate) fn give_property(fs: &Filesystem, id: InodeId, xattrs: &[(Vec<u8>, Vec<u8>)], path: &Path) -> Result<()> {
    let mut properties = xattrs.iter().filter(|(name, _)| name == COMPRESSION);
    properties
        .try_for_each(|(name, value)| fs.inodes().put_xattr(id, name, value, XattrMode::Set).map_err(about(path, name)))
}

impl Attributes<'_> {
    /// The times alone.
    pub(crate) fn times(&self) -> SetAttributes {
        SetAttributes {
            atime: Some(TimeChange::To(self.atime)),
            mtime: Some(TimeChange::To(self.mtime)),
            ..SetAttributes::default()
        }
    }

    /// Sets all of them on a file. Extended attributes are set as by setxattr(2).
    pub(crate) fn give(&self, fs: &Filesystem, id: InodeId, path: &Path) -> Result<()> {
        // A change of the owner clears capabilities, so these are set after it; and an ACL
        // determines the mode.
        let (uid, gid, mode) = (Some(self.owner.0), Some(self.owner.1), Some(self.mode));
        let owner = SetAttributes { uid, gid, btime: self.btime, ..SetAttributes::default() };
        fs.inodes().set_attributes(id, &owner).map_err(inside(path))?;
        fs.inodes().put_attributes(id, &SetAttributes { mode, ..SetAttributes::default() }).map_err(inside(path))?;
        for (name, value) in self.xattrs {
            fs.inodes().put_xattr(id, name, value, XattrMode::Set).map_err(about(path, name))?;
        }
        fs.inodes().set_attributes(id, &self.times()).map(drop).map_err(inside(path))
    }
}
