//! What a new inode is to be: the caller's ids, the umask, the directory's default ACL.

use ubtrfs::acl::{self, Acl};
use ubtrfs::xattr_names::COMPRESSION;
use ubtrfs::{InodeId, NewInode};
use ubtrfs_fuse::{Caller, Errno};

use crate::device_number;
use crate::shared::{Shared, errno};

const S_IFDIR: u32 = 0o040_000;
const S_IFLNK: u32 = 0o120_000;

impl Shared {
    /// A file, directory or node made in `parent`. A default ACL of the directory counts in place
    /// of the umask.
    pub(crate) fn new_inode(
        &self,
        parent: InodeId,
        caller: &Caller<'_>,
        mode: u32,
        umask: u32,
        rdev: u32,
    ) -> Result<NewInode, Errno> {
        let (uid, gid) = self.ownership().maker(caller);
        let new = NewInode { mode, uid, gid, rdev: device_number::to_disk(rdev), ..NewInode::default() };
        self.engine.inheriting(parent, new, umask).map_err(|error| errno(&error))
    }

    /// The root directory of a new subvolume. As by the kernel's driver a default ACL of the
    /// directory limits its mode, beside the umask, and is not handed down; and a property is that
    /// of the subvolume it is made in.
    pub(crate) fn new_subvolume_root(
        &self,
        parent: InodeId,
        (uid, gid): (u32, u32),
        umask: u32,
    ) -> Result<NewInode, Errno> {
        let mut mode = S_IFDIR | (0o777 & !umask);
        if let Some(value) = self.xattr(parent, acl::DEFAULT)?
            && let Some(default) = Acl::parse(&value).map_err(|_| Errno::IO)?
        {
            mode = default.inherit(mode).mode;
        }
        let property =
            self.engine.inherited_property(InodeId::root_of(parent.subvolume)).map_err(|error| errno(&error))?;
        let xattrs = property.map(|value| (COMPRESSION.to_vec(), value.to_vec())).into_iter().collect();
        Ok(NewInode { mode, uid, gid, xattrs, ..NewInode::default() })
    }

    /// A symbolic link, for which neither umask nor ACLs count.
    pub(crate) fn new_symlink(&self, caller: &Caller<'_>, target: &[u8]) -> NewInode {
        let (uid, gid) = self.ownership().maker(caller);
        NewInode { mode: S_IFLNK | 0o777, uid, gid, symlink_target: target.to_vec(), ..NewInode::default() }
    }

    /// An attribute's value, if the inode has the attribute.
    pub(crate) fn xattr(&self, id: InodeId, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        match self.engine.get_xattr(id, name) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.errno() == Errno::NODATA => Ok(None),
            Err(error) => Err(errno(&error)),
        }
    }
}
