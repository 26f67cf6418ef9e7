//! The property `btrfs.compression`: how a file is to be compressed. It is an xattr with a flag of
//! the inode to go with it.

use ubtrfs::{CompressionMode, Flagged, InodeId, XattrMode};
use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_fuse::Errno;

use crate::protection::PROTECTING;
use crate::shared::{Shared, errno};

/// The names that are properties'.
pub(crate) const NAMESPACE: &[u8] = b"btrfs.";
/// The only one that there is.
pub(crate) const COMPRESSION: &[u8] = b"btrfs.compression";

/// The flags that follow the property.
const COMPRESSION_FLAGS: u64 = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
const NODATACOW_FLAGS: u64 = InodeFlags::NODATACOW | InodeFlags::NODATASUM;

/// The algorithm that a value of the property begins with.
fn way_of(value: &[u8]) -> Option<&'static [u8]> {
    CompressionMode::algorithm_of(value).map(|algorithm| CompressionMode::property(algorithm).as_bytes())
}

/// The flag for a value of the property. `EINVAL` for an invalid one.
fn flag_of(value: &[u8]) -> Result<u64, Errno> {
    match value {
        b"" => Ok(0),
        b"no" | b"none" => Ok(InodeFlags::NOCOMPRESS),
        _ => way_of(value).map(|_| InodeFlags::COMPRESS).ok_or(Errno::INVAL),
    }
}

impl Shared {
    /// Sets the property, or removes it if the value is empty. What is neither file nor directory
    /// has none, and takes none without an error.
    pub(crate) fn set_property(&self, id: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Errno> {
        if name != COMPRESSION {
            return Err(Errno::INVAL);
        }
        let flag = flag_of(value)?;
        let plan = |is: &Flagged, old: Option<&[u8]>| {
            if is.flags & NODATACOW_FLAGS != 0 && !value.is_empty() {
                return Err(Errno::INVAL.into());
            }
            if ![FileType::Regular, FileType::Directory].contains(&is.file_type) {
                return Ok((is.flags, old.map(<[u8]>::to_vec)));
            }
            if is.flags & PROTECTING != 0 {
                return Err(Errno::PERM.into());
            }
            match (mode, old) {
                (XattrMode::Create, Some(_)) if !value.is_empty() => return Err(Errno::EXIST.into()),
                (XattrMode::Replace, None) => return Err(Errno::NODATA.into()),
                _ => {}
            }
            Ok((is.flags & !COMPRESSION_FLAGS | flag, Some(value.to_vec()).filter(|value| !value.is_empty())))
        };
        self.engine.set_flags_with(id, name, value.len(), &plan).map_err(|error| errno(&error))
    }

    /// The property that files and directories inherit from a directory.
    pub(crate) fn inherited_property(&self, parent: InodeId) -> Result<Option<&'static [u8]>, Errno> {
        let value =
            if self.flags_of(parent)? & COMPRESSION_FLAGS == 0 { None } else { self.xattr(parent, COMPRESSION)? };
        Ok(value.and_then(|value| way_of(&value)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use ubtrfs::NewInode;
    use ubtrfs::scheduling::nonblocking;

    use super::*;
    use crate::fixtures;
    use crate::shared::MountFacts;

    fn mount(bytes: &[u8]) -> Shared {
        // So little memory that an operation soon has to wait for a commit.
        Shared::new(fixtures::engine(bytes, 32 << 10), MountFacts::default())
    }

    /// Invariant 23: what would have to block has done nothing, so that its repetition succeeds.
    #[test]
    fn a_property_that_has_to_wait_is_set_when_it_is_asked_for_again() {
        let bytes = fixtures::volume();
        let mut waited = 0;
        for others in 0..40 {
            let shared = mount(&bytes);
            let engine = &shared.engine;
            let new = NewInode { mode: 0o100_644, ..NewInode::default() };
            let file = engine.create(engine.root(), b"file", &new).unwrap();
            for number in 0..others {
                let made = nonblocking(|| engine.create(engine.root(), format!("{number}").as_bytes(), &new));
                made.ok();
            }
            for (value, mode) in [(&b"none"[..], XattrMode::Create), (b"", XattrMode::Replace)] {
                let set = || shared.set_property(file, COMPRESSION, value, mode);
                if let Err(errno) = nonblocking(set) {
                    assert_eq!(errno, Errno::AGAIN);
                    waited += 1;
                    assert_eq!(set(), Ok(()), "after {others} others");
                }
                let flag = if value.is_empty() { 0 } else { InodeFlags::NOCOMPRESS };
                assert_eq!(engine.flags(file).unwrap() & COMPRESSION_FLAGS, flag);
                assert_eq!(engine.get_xattr(file, COMPRESSION).ok().unwrap_or_default(), value);
            }
        }
        assert!(waited > 0);
    }
}
