//! Extended attributes, as the kernel asks for them.

use ubtrfs::xattr_names::{CAPABILITY, PROPERTIES, in_plain_namespace};
use ubtrfs::{InodeId, XattrMode, acl};
use ubtrfs_fuse::request::SetXattr;
use ubtrfs_fuse::{Errno, XattrFlags};

use crate::control;
use crate::shared::{Shared, errno};

/// Returns whether the attribute is stored as it is. `EINVAL` for a namespace without a name. The
/// kernel checks who may use it.
fn is_plain(name: &[u8]) -> Result<bool, Errno> {
    match in_plain_namespace(name) {
        Some(b"") => Err(Errno::INVAL),
        found => Ok(found.is_some()),
    }
}

/// Returns `EOPNOTSUPP` for the placeholder of a subvolume, which can have no attributes.
fn check_takes_xattrs(id: InodeId) -> Result<(), Errno> {
    if id.is_placeholder() { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}

impl Shared {
    pub(crate) fn get_xattr(&self, id: InodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        if name.starts_with(control::NAMESPACE) {
            return Err(Errno::NODATA);
        }
        if name == PROPERTIES {
            return Err(Errno::INVAL);
        }
        let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
        let known = is_plain(name)? || is_acl || name.starts_with(PROPERTIES);
        if !known {
            return Err(Errno::OPNOTSUPP);
        }
        self.xattr(id, name)?.ok_or(Errno::NODATA)
    }

    /// The names of the attributes, each with a NUL at its end.
    pub(crate) fn list_xattrs(&self, id: InodeId) -> Result<Vec<u8>, Errno> {
        let names = self.engine.inodes().list_xattrs(id).map_err(|error| errno(&error))?;
        let mut list = Vec::new();
        for name in names {
            list.extend(name);
            list.push(0);
        }
        Ok(list)
    }

    pub(crate) fn set_xattr(&self, id: InodeId, what: &SetXattr<'_>) -> Result<(), Errno> {
        check_takes_xattrs(id)?;
        let mode = if what.flags.contains(XattrFlags::CREATE | XattrFlags::REPLACE) {
            // With both flags no attribute can be set, so this chooses the mode that fails.
            if self.xattr(id, what.name)?.is_some() { XattrMode::Create } else { XattrMode::Replace }
        } else if what.flags.contains(XattrFlags::CREATE) {
            XattrMode::Create
        } else if what.flags.contains(XattrFlags::REPLACE) {
            XattrMode::Replace
        } else {
            XattrMode::Set
        };
        let set = match what.name {
            acl::ACCESS => self.engine.inodes().put_access_acl(id, what.value, what.kill_sgid),
            name => self.engine.inodes().put_xattr(id, name, what.value, mode),
        };
        set.map_err(|error| errno(&error))
    }

    pub(crate) fn remove_xattr(&self, id: InodeId, name: &[u8]) -> Result<(), Errno> {
        check_takes_xattrs(id)?;
        match self.engine.inodes().drop_xattr(id, name).map_err(|error| errno(&error)) {
            // Before a write the kernel removes the capabilities that the server reported of the
            // file.
            Err(Errno::NODATA) if name == CAPABILITY && self.engine.files().has_verity(id) => Err(Errno::PERM),
            removed => removed,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by it")]
mod tests {
    use ubtrfs::NewInode;
    use ubtrfs::scheduling::nonblocking;
    use ubtrfs::xattr_names::COMPRESSION;

    use ubtrfs_format::items::InodeFlags;

    use super::*;
    use crate::fixtures;
    use crate::shared::MountFacts;

    const COMPRESSION_FLAGS: u64 = InodeFlags::COMPRESS | InodeFlags::NOCOMPRESS;

    fn mount(bytes: &[u8]) -> Shared {
        // There is so little memory that an operation soon has to wait for a commit.
        Shared::new(fixtures::engine(bytes, 32 << 10), MountFacts::default())
    }

    /// Invariant 23: an operation that would have to block has changed nothing, so that its
    /// repetition succeeds.
    #[test]
    fn a_property_that_has_to_wait_is_set_when_it_is_asked_for_again() {
        let bytes = fixtures::volume();
        let mut waited = 0;
        for others in 0..40 {
            let shared = mount(&bytes);
            let engine = &shared.engine;
            let new = NewInode { mode: 0o100_644, ..NewInode::default() };
            let file = engine.directories().create(engine.root(), b"file", &new).unwrap();
            for number in 0..others {
                let made =
                    nonblocking(|| engine.directories().create(engine.root(), format!("{number}").as_bytes(), &new));
                made.ok();
            }
            for (value, mode) in [(&b"none"[..], XattrMode::Create), (b"", XattrMode::Replace)] {
                let set = || engine.inodes().put_xattr(file, COMPRESSION, value, mode);
                if let Err(error) = nonblocking(set) {
                    assert_eq!(error.errno(), Errno::AGAIN);
                    waited += 1;
                    set().unwrap_or_else(|error| panic!("after {others} others: {error:?}"));
                }
                let flag = if value.is_empty() { 0 } else { InodeFlags::NOCOMPRESS };
                assert_eq!(engine.inodes().flags(file).unwrap() & COMPRESSION_FLAGS, flag);
                assert_eq!(engine.inodes().get_xattr(file, COMPRESSION).ok().unwrap_or_default(), value);
            }
        }
        assert!(waited > 0);
    }
}
