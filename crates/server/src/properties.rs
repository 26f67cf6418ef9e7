//! The property `btrfs.compression`: how a file is to be compressed. It is an xattr with a flag of
//! the inode to go with it. Nothing here compresses, so a way of compression is refused; one that
//! the kernel's btrfs has set is kept for it.

use ubtrfs::{InodeId, XattrMode};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_fuse::Errno;

use crate::shared::{Shared, errno};

/// The names that are properties'.
pub(crate) const NAMESPACE: &[u8] = b"btrfs.";
/// The only one that there is.
pub(crate) const COMPRESSION: &[u8] = b"btrfs.compression";

/// The flags that follow the property.
const PACKED: u64 = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;
const IN_PLACE: u64 = InodeFlags::NODATACOW | InodeFlags::NODATASUM;

const S_IFMT: u32 = 0o170_000;
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// The way of compression that a value of the property begins with: what follows (a level) is for whoever compresses.
fn way_of(value: &[u8]) -> Option<&'static [u8]> {
    const WAYS: [&[u8]; 3] = [b"zlib", b"lzo", b"zstd"];
    WAYS.into_iter().find(|way| value.starts_with(way))
}

/// The flag that goes with a value of the property. `EINVAL` for what is none.
fn flag_of(value: &[u8]) -> Result<u64, Errno> {
    match value {
        b"" => Ok(0),
        b"no" | b"none" => Ok(InodeFlags::NOCOMPRESS),
        _ => way_of(value).map(|_| InodeFlags::COMPRESS).ok_or(Errno::INVAL),
    }
}

impl Shared {
    /// Sets the property, or removes it if the value is empty. What is neither file nor directory has none, and takes none without
    /// an error.
    pub(crate) fn set_property(&self, id: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<(), Errno> {
        if name != COMPRESSION {
            return Err(Errno::INVAL);
        }
        let attributes = self.engine.attributes(id).map_err(|error| errno(&error))?;
        if attributes.flags & IN_PLACE != 0 && !value.is_empty() {
            return Err(Errno::INVAL);
        }
        let flag = flag_of(value)?;
        // A success would promise what nothing here does.
        if flag & InodeFlags::COMPRESS != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if ![S_IFREG, S_IFDIR].contains(&(attributes.mode & S_IFMT)) {
            return Ok(());
        }
        let stored =
            if value.is_empty() { self.drop_property(id, mode) } else { self.engine.set_xattr(id, name, value, mode) };
        stored
            .and_then(|()| self.engine.set_flags_as(id, &|is| Ok(is.flags & !PACKED | flag)))
            .map_err(|error| errno(&error))
    }

    fn drop_property(&self, id: InodeId, mode: XattrMode) -> ubtrfs::Result<()> {
        match self.engine.remove_xattr(id, COMPRESSION) {
            Err(error) if error.errno() == Errno::NODATA && mode != XattrMode::Replace => Ok(()),
            removed => removed,
        }
    }

    /// The property that files and directories made in a directory take over.
    pub(crate) fn inherited_property(&self, parent: InodeId) -> Result<Option<&'static [u8]>, Errno> {
        let value = if self.flags_of(parent)? & PACKED == 0 { None } else { self.xattr(parent, COMPRESSION)? };
        Ok(value.and_then(|value| way_of(&value)))
    }
}
