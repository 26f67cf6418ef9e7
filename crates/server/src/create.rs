//! Determines the attributes of a new inode from the caller's ids, the umask and the directory's
//! default ACL.

use ubtrfs::{InodeId, NewInode};
use ubtrfs_format::posix::S_IFLNK;
use ubtrfs_fuse::{Caller, Errno};

use crate::device_number;
use crate::shared::{Shared, errno};

impl Shared {
    /// The attributes of a file, directory or node made in `parent`. If the directory has a default
    /// ACL, that applies in place of the umask.
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
        self.engine.inodes().inheriting(parent, new, umask).map_err(|error| errno(&error))
    }

    /// The attributes of a symbolic link, to which neither umask nor ACLs apply.
    pub(crate) fn new_symlink(&self, caller: &Caller<'_>, target: &[u8]) -> NewInode {
        let (uid, gid) = self.ownership().maker(caller);
        NewInode { mode: S_IFLNK | 0o777, uid, gid, symlink_target: target.to_vec(), ..NewInode::default() }
    }

    /// An attribute's value, if the inode has the attribute.
    pub(crate) fn xattr(&self, id: InodeId, name: &[u8]) -> Result<Option<Vec<u8>>, Errno> {
        match self.engine.inodes().get_xattr(id, name) {
            Ok(value) => Ok(Some(value)),
            Err(error) if error.errno() == Errno::NODATA => Ok(None),
            Err(error) => Err(errno(&error)),
        }
    }
}
