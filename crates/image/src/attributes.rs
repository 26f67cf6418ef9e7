//! The attributes that a file of a volume gets when it has been copied or imported.

use std::path::Path;

use ubtrfs::format::items::Timespec;
use ubtrfs::{Filesystem, InodeId, SetAttributes, TimeChange, XattrMode};

use crate::error::{Result, inside};

/// Owner, permissions, extended attributes and times.
#[derive(Debug)]
pub(crate) struct Attributes<'a> {
    pub(crate) owner: (u32, u32),
    pub(crate) mode: u32,
    pub(crate) xattrs: &'a [(Vec<u8>, Vec<u8>)],
    pub(crate) atime: Timespec,
    pub(crate) mtime: Timespec,
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

    /// Gives them to a file.
    pub(crate) fn give(&self, fs: &Filesystem, id: InodeId, path: &Path) -> Result<()> {
        // Another owner takes capabilities away, so they come after.
        let owner = SetAttributes { uid: Some(self.owner.0), gid: Some(self.owner.1), ..SetAttributes::default() };
        fs.set_attributes(id, &owner).map_err(inside(path))?;
        for (name, value) in self.xattrs {
            fs.set_xattr(id, name, value, XattrMode::Set).map_err(inside(path))?;
        }
        let changes = SetAttributes { mode: Some(self.mode), ..self.times() };
        fs.set_attributes(id, &changes).map(drop).map_err(inside(path))
    }
}
