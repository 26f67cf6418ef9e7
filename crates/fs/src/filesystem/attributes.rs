//! Attributes of inodes: owner, mode, times, flags, xattrs.

use super::Filesystem;
use crate::error::Result;
use crate::inode::InodeId;
use crate::ops::{Attributes, FlagsAndXattrPlan, FlagsPlan, ModeAndXattr, SetAttributes, XattrMode};

impl Filesystem {
    /// What stat shows of an inode.
    pub fn attributes(&self, id: InodeId) -> Result<Attributes> {
        self.ops.attributes(id)
    }

    /// Type and permissions of an inode: less work than [`attributes`](Self::attributes).
    pub fn mode(&self, id: InodeId) -> Result<u32> {
        self.ops.mode(id)
    }

    /// Bytes of an inode: less work than [`attributes`](Self::attributes).
    pub fn size(&self, id: InodeId) -> Result<u64> {
        self.ops.size(id)
    }

    /// Flags of an inode, as the format has them: less work than [`attributes`](Self::attributes).
    pub fn flags(&self, id: InodeId) -> Result<u64> {
        self.ops.flags(id)
    }

    /// Changes attributes. The ACL of an inode, which says the mode, too, follows it.
    pub fn put_attributes(&self, id: InodeId, changes: &SetAttributes) -> Result<Attributes> {
        self.ops.put_attributes(id, changes)
    }

    /// Changes attributes, and no ACL.
    pub fn set_attributes(&self, id: InodeId, changes: &SetAttributes) -> Result<Attributes> {
        self.ops.set_attributes(id, changes)
    }

    /// An error if the size of a file may not be changed, be it to what it is.
    pub fn check_resizable(&self, id: InodeId) -> Result<()> {
        self.ops.check_resizable(id)
    }

    /// Changes attributes, and in the same transaction the mode and an xattr that depend on each
    /// other, as a mode and an ACL do.
    pub fn set_attributes_with(
        &self,
        id: InodeId,
        changes: &SetAttributes,
        with: &ModeAndXattr<'_>,
    ) -> Result<Attributes> {
        self.ops.set_attributes_with(id, changes, with)
    }

    /// Sets those of the [`SETTABLE_FLAGS`](crate::SETTABLE_FLAGS) that are in `wanted` and clears
    /// the others. The nocow flag (`chattr +C`) changes only for empty files, and for directories,
    /// whose new files inherit it; for other files it stays as it is.
    pub fn set_flags(&self, id: InodeId, wanted: u64) -> Result<()> {
        self.ops.set_flags(id, wanted)
    }

    /// The same; `plan` returns the flags once the inode is locked.
    pub fn set_flags_as(&self, id: InodeId, plan: &FlagsPlan<'_>) -> Result<()> {
        self.ops.set_flags_as(id, plan)
    }

    /// Sets flags, and in the same transaction an xattr of `room` bytes at the most: both or
    /// neither (invariant 23).
    pub fn set_flags_with(&self, id: InodeId, name: &[u8], room: usize, plan: &FlagsAndXattrPlan<'_>) -> Result<()> {
        self.ops.set_flags_with(id, name, room, plan)
    }

    /// Whether writes of the file are to be durable when they return (`chattr +S`).
    pub fn is_synchronous(&self, id: InodeId) -> bool {
        self.ops.is_synchronous(id)
    }

    /// The value of an xattr. `ENODATA` if there is none.
    pub fn get_xattr(&self, id: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        self.ops.get_xattr(id, name)
    }

    /// The names of all xattrs.
    pub fn list_xattrs(&self, id: InodeId) -> Result<Vec<Vec<u8>>> {
        self.ops.list_xattrs(id)
    }

    /// Sets an xattr as setxattr(2) does: an ACL changes the mode, and `btrfs.compression` the
    /// flags. `EOPNOTSUPP` for namespaces that there are not, or that the inode can't have,
    /// `EINVAL` for values that mean nothing, `EPERM` for attributes of users on what is neither
    /// file nor directory.
    pub fn put_xattr(&self, id: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.ops.put_xattr(id, name, value, mode)
    }

    /// Removes an xattr as removexattr(2) does. `ENODATA` if there is none; not for ACLs.
    pub fn drop_xattr(&self, id: InodeId, name: &[u8]) -> Result<()> {
        self.ops.drop_xattr(id, name)
    }

    /// Sets an inode's own ACL, of which this is the xattr's value, and its mode accordingly.
    /// `kill_group_id`: who sets it may not keep the set-group-id bit.
    pub fn put_access_acl(&self, id: InodeId, value: &[u8], kill_group_id: bool) -> Result<()> {
        self.ops.put_access_acl(id, value, kill_group_id)
    }

    /// The property `btrfs.compression` that new files and directories inherit from a directory.
    pub fn inherited_property(&self, dir: InodeId) -> Result<Option<&'static [u8]>> {
        self.ops.inherited_property(dir)
    }

    /// Sets an xattr, whatever it means: the mode and the flags stay as they are.
    pub fn set_xattr(&self, id: InodeId, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.ops.set_xattr(id, name, value, mode)
    }

    /// Removes an xattr. `ENODATA` if there is none.
    pub fn remove_xattr(&self, id: InodeId, name: &[u8]) -> Result<()> {
        self.ops.remove_xattr(id, name)
    }
}
