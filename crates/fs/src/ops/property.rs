//! The property `btrfs.compression`, which says how a file is to be compressed. It is an xattr with
//! an inode flag that goes with it.

use std::borrow::Cow;

use ubtrfs_file::CompressionMode;
use ubtrfs_format::items::{FileType, InodeFlags};

use super::create::NewInode;
use super::flags::Flagged;
use super::operations::InodeOperations;
use super::xattr::XattrMode;
use crate::error::{Errno, Result};
use crate::inode::InodeId;
use crate::xattr_names::COMPRESSION;

/// The inode flags that depend on the property.
const COMPRESSION_FLAGS: u64 = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
const NODATACOW_FLAGS: u64 = InodeFlags::NODATACOW | InodeFlags::NODATASUM;

/// Returns the name of the algorithm that a value of the property begins with.
fn way_of(value: &[u8]) -> Option<&'static [u8]> {
    CompressionMode::algorithm_of(value).map(|algorithm| CompressionMode::property(algorithm).as_bytes())
}

/// Returns the flag for a value of the property. `EINVAL` for an invalid value.
fn flag_of(value: &[u8]) -> Result<u64> {
    match value {
        b"" => Ok(0),
        b"no" | b"none" => Ok(InodeFlags::NOCOMPRESS),
        _ => way_of(value).map(|_| InodeFlags::COMPRESS).ok_or_else(|| Errno::INVAL.into()),
    }
}

/// Whether inodes of this type have properties.
fn has_properties(file_type: FileType) -> bool {
    matches!(file_type, FileType::Regular | FileType::Directory)
}

impl InodeOperations {
    /// Sets the property, or removes it if the value is empty. An inode that is neither a file nor
    /// a directory has no properties; setting one succeeds and changes nothing.
    pub(super) fn put_property(&self, id: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        if name != COMPRESSION {
            return Err(Errno::INVAL.into());
        }
        let flag = flag_of(value)?;
        let plan = |is: &Flagged, old: Option<&[u8]>| {
            if is.flags & NODATACOW_FLAGS != 0 && !value.is_empty() {
                return Err(Errno::INVAL.into());
            }
            if !has_properties(is.file_type) {
                return Ok((is.flags, old.map(<[u8]>::to_vec)));
            }
            if is.flags & InodeFlags::PROTECTING != 0 {
                return Err(Errno::PERM.into());
            }
            match (mode, old) {
                (XattrMode::Create, Some(_)) if !value.is_empty() => return Err(Errno::EXIST.into()),
                (XattrMode::Replace, None) => return Err(Errno::NODATA.into()),
                _ => {}
            }
            Ok((is.flags & !COMPRESSION_FLAGS | flag, Some(value.to_vec()).filter(|value| !value.is_empty())))
        };
        self.set_flags_with(id, name, value.len(), &plan)
    }

    /// Returns the property `btrfs.compression` that new files and directories inherit from a
    /// directory.
    pub fn inherited_property(&self, parent: InodeId) -> Result<Option<&'static [u8]>> {
        if self.flags(parent)? & COMPRESSION_FLAGS == 0 {
            return Ok(None);
        }
        match self.get_xattr(parent, COMPRESSION) {
            Ok(value) => Ok(way_of(&value)),
            Err(error) if error.errno() == Errno::NODATA => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Adds the property that a new inode inherits, unless the inode is to have flags of its own.
    pub(super) fn with_property<'a>(&self, parent: InodeId, new: &'a NewInode) -> Result<Cow<'a, NewInode>> {
        let has_own = || new.flags.is_some() || new.xattrs.iter().any(|(name, _)| name == COMPRESSION);
        if !has_properties(FileType::from_mode(new.mode)) || has_own() {
            return Ok(Cow::Borrowed(new));
        }
        Ok(match self.inherited_property(parent)? {
            Some(value) => {
                let mut new = new.clone();
                new.xattrs.push((COMPRESSION.to_vec(), value.to_vec()));
                Cow::Owned(new)
            }
            None => Cow::Borrowed(new),
        })
    }
}
