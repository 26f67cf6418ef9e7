//! Extended attributes as programs set them, by the rules of setxattr(2): which namespaces exist,
//! which values are allowed, and how ACLs and the mode depend on each other. For every caller the
//! stored value is the one that the kernel would have stored (invariant 27).

use ubtrfs_format::items::FileType;
use ubtrfs_format::posix::{S_IFDIR, S_ISGID};

use super::attr::Attributes;
use super::attribute_change::{ModeAndXattr, ModeAndXattrPlan, SetAttributes};
use super::create::NewInode;
use super::operations::InodeOperations;
use super::xattr::XattrMode;
use crate::acl::{self, Acl};
use crate::error::{Errno, Error, Result};
use crate::inode::InodeId;
use crate::xattr_names::{CAPABILITY, COMPRESSION, PROPERTIES, USER, in_plain_namespace};

/// The formats of a program's capabilities (`linux/capability.h`): the size in bytes, and the
/// revision in the first word.
const CAPABILITY_FORMS: [(usize, u32); 2] = [(20, 0x0200_0000), (24, 0x0300_0000)];
const CAPABILITY_REVISION: u32 = 0xff00_0000;

/// Whether an attribute of this name is stored as it is. `EINVAL` if the name is only a namespace.
pub(crate) fn is_plain(name: &[u8]) -> Result<bool> {
    match in_plain_namespace(name) {
        Some(b"") => Err(Errno::INVAL.into()),
        found => Ok(found.is_some()),
    }
}

fn are_capabilities(value: &[u8]) -> bool {
    let revision = value.first_chunk().map(|word| u32::from_le_bytes(*word) & CAPABILITY_REVISION);
    revision.is_some_and(|revision| CAPABILITY_FORMS.contains(&(value.len(), revision)))
}

impl InodeOperations {
    /// Returns the attributes of the root directory of a new subvolume in a directory, as the
    /// kernel sets them: a default ACL of the directory limits the mode, besides the umask, and is
    /// not inherited; the property is that of the subvolume that the directory is in. `owner` is
    /// the user and the group.
    pub fn inheriting_root(&self, dir: InodeId, owner: (u32, u32), umask: u32) -> Result<NewInode> {
        let mut root = NewInode { uid: owner.0, gid: owner.1, ..NewInode::default() };
        root.mode = S_IFDIR | (0o777 & !umask);
        match self.get_xattr(dir, acl::DEFAULT) {
            Err(error) if error.errno() == Errno::NODATA => {}
            value => {
                if let Some(default) = Acl::parse(&value?).map_err(|_| Errno::IO)? {
                    root.mode = default.inherit(root.mode).mode;
                }
            }
        }
        let property = self.inherited_property(InodeId::root_of(dir.subvolume))?;
        root.xattrs.extend(property.map(|value| (COMPRESSION.to_vec(), value.to_vec())));
        Ok(root)
    }

    /// Sets an xattr as setxattr(2) does: an ACL changes the mode, and `btrfs.compression` the
    /// flags. `EOPNOTSUPP` for a namespace that does not exist or that the inode can't have,
    /// `EINVAL` for an invalid value, `EPERM` for a `user.` attribute of an inode that is neither a
    /// file nor a directory.
    pub fn put_xattr(&self, id: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        if name.contains(&0) {
            return Err(Errno::INVAL.into());
        }
        match name {
            acl::ACCESS => self.put_access_acl(id, value, false),
            acl::DEFAULT => self.put_default_acl(id, value),
            name if name.starts_with(PROPERTIES) => self.put_property(id, name, value, mode),
            CAPABILITY if !are_capabilities(value) => Err(Errno::INVAL.into()),
            name if is_plain(name)? => {
                let has_users = || Ok::<_, Error>(has_content(self.file_type(id)?));
                if name.starts_with(USER) && !has_users()? {
                    return Err(Errno::PERM.into());
                }
                self.set_xattr(id, name, value, mode)
            }
            _ => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// Returns the attributes of a new inode in a directory. The directory's default ACL decides
    /// its mode and its ACLs; without a default ACL the umask applies to the mode (acl(5)). A
    /// symlink is not affected by either.
    pub fn inheriting(&self, dir: InodeId, mut new: NewInode, umask: u32) -> Result<NewInode> {
        let file_type = FileType::from_mode(new.mode);
        if file_type == FileType::Symlink {
            return Ok(new);
        }
        let value = match self.get_xattr(dir, acl::DEFAULT) {
            Err(error) if error.errno() == Errno::NODATA => {
                new.mode &= !(umask & 0o777);
                return Ok(new);
            }
            value => value?,
        };
        let Some(default) = Acl::parse(&value).map_err(|_| Errno::IO)? else { return Ok(new) };
        let inherited = default.inherit(new.mode);
        new.mode = inherited.mode;
        new.xattrs.extend(inherited.access.map(|access| (acl::ACCESS.to_vec(), access)));
        if file_type == FileType::Directory {
            new.xattrs.push((acl::DEFAULT.to_vec(), value));
        }
        Ok(new)
    }

    /// Removes an xattr as removexattr(2) does. `ENODATA` if it does not exist, except for ACLs.
    pub fn drop_xattr(&self, id: InodeId, name: &[u8]) -> Result<()> {
        match name {
            acl::ACCESS | acl::DEFAULT => self.drop_acl(id, name),
            name if name.starts_with(PROPERTIES) => self.put_property(id, name, b"", XattrMode::Replace),
            name if is_plain(name)? => self.remove_xattr(id, name),
            _ => Err(Errno::OPNOTSUPP.into()),
        }
    }

    /// Sets an inode's access ACL, and its mode accordingly. A list that says no more than a mode
    /// is not stored. `kill_group_id` says that the caller may not keep the set-group-id bit.
    pub fn put_access_acl(&self, id: InodeId, value: &[u8], kill_group_id: bool) -> Result<()> {
        if self.file_type(id)? == FileType::Symlink {
            return Err(Errno::OPNOTSUPP.into());
        }
        let Some(list) = Acl::parse(value)? else { return self.drop_acl(id, acl::ACCESS) };
        let kept = (!list.is_trivial()).then(|| list.to_bytes());
        let plan = |mode: u32, _: Option<&[u8]>| {
            let mode = if kill_group_id { mode & !S_ISGID } else { mode };
            Ok((mode & !0o777 | list.mode_bits(), kept.clone()))
        };
        self.with_acl(id, acl::ACCESS, &SetAttributes::default(), &plan).map(drop)
    }

    fn put_default_acl(&self, id: InodeId, value: &[u8]) -> Result<()> {
        let Some(list) = Acl::parse(value)? else { return self.drop_acl(id, acl::DEFAULT) };
        match self.file_type(id)? {
            FileType::Directory => self.set_xattr(id, acl::DEFAULT, &list.to_bytes(), XattrMode::Set),
            FileType::Symlink => Err(Errno::OPNOTSUPP.into()),
            _ => Err(Errno::ACCESS.into()),
        }
    }

    /// Removes an ACL. Succeeds, too, if there is none.
    fn drop_acl(&self, id: InodeId, name: &[u8]) -> Result<()> {
        let plan = |mode: u32, _: Option<&[u8]>| Ok((mode, None));
        self.with_acl(id, name, &SetAttributes::default(), &plan).map(drop)
    }

    /// Changes attributes. If the mode is one of them, the inode's access ACL, if any, is changed
    /// accordingly.
    pub fn put_attributes(&self, id: InodeId, changes: &SetAttributes) -> Result<Attributes> {
        let Some(mode) = changes.mode else { return self.set_attributes(id, changes) };
        let plan = |_: u32, value: Option<&[u8]>| {
            let Some(value) = value else { return Ok((mode, None)) };
            let list = Acl::parse(value).map_err(|_| Error::from(Errno::IO))?;
            let followed = list.map(|mut list| {
                list.chmod(mode);
                list.to_bytes()
            });
            Ok((mode, Some(followed.unwrap_or_else(|| value.to_vec()))))
        };
        self.with_acl(id, acl::ACCESS, changes, &plan)
    }

    fn with_acl(
        &self,
        id: InodeId,
        name: &[u8],
        changes: &SetAttributes,
        plan: &ModeAndXattrPlan<'_>,
    ) -> Result<Attributes> {
        self.set_attributes_with(id, changes, &ModeAndXattr { name, plan })
    }

    fn file_type(&self, id: InodeId) -> Result<FileType> {
        Ok(FileType::from_mode(self.mode(id)?))
    }
}

/// Whether inodes of this type may have `user.` attributes.
fn has_content(file_type: FileType) -> bool {
    matches!(file_type, FileType::Regular | FileType::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_a_revision_of_their_length() {
        let value = |revision: u32, len: usize| {
            let mut value = (revision | 1).to_le_bytes().to_vec();
            value.resize(len, 0);
            value
        };
        assert!(are_capabilities(&value(0x0200_0000, 20)) && are_capabilities(&value(0x0300_0000, 24)));
        for (revision, len) in [(0x0300_0000, 20), (0x0200_0000, 24), (0x0100_0000, 12), (0x0200_0000, 19), (0, 3)] {
            assert!(!are_capabilities(&value(revision, len)), "{revision:x}, {len} bytes");
        }
        assert!(!are_capabilities(b""));
    }

    #[test]
    fn a_namespace_is_no_name() {
        assert!(is_plain(b"user.x").unwrap() && !is_plain(b"system.x").unwrap() && !is_plain(b"user").unwrap());
        assert_eq!(is_plain(b"user.").unwrap_err().errno(), Errno::INVAL);
    }
}
