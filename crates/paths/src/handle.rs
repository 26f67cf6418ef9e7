//! A reference to an inode, which is released when it is dropped.

use std::sync::Arc;

use ubtrfs_fs::{Filesystem, InodeId, Result};

/// A reference to an inode. As long as it lives, the inode exists, with or without a name.
pub(crate) struct Handle {
    fs: Arc<Filesystem>,
    id: InodeId,
}

impl Handle {
    /// Takes another reference.
    pub(crate) fn new(fs: &Arc<Filesystem>, id: InodeId) -> Self {
        fs.references().reference(id);
        Self::adopt(fs, id)
    }

    /// Takes over the reference that a lookup or a creation has given.
    pub(crate) fn adopt(fs: &Arc<Filesystem>, id: InodeId) -> Self {
        Self { fs: fs.clone(), id }
    }

    pub(crate) fn fs(&self) -> &Arc<Filesystem> {
        &self.fs
    }

    pub(crate) fn id(&self) -> InodeId {
        self.id
    }

    /// The root of the mounted subvolume.
    pub(crate) fn root(&self) -> Self {
        Self::new(&self.fs, self.fs.root())
    }

    /// The parent directory; that of the root is the root itself.
    pub(crate) fn parent(&self) -> Result<Self> {
        Ok(Self::new(&self.fs, self.fs.directories().parent(self.id)?))
    }

    /// Looks up a name in this directory.
    pub(crate) fn lookup(&self, name: &[u8]) -> Result<Self> {
        Ok(Self::adopt(&self.fs, self.fs.directories().lookup(self.id, name)?))
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(&self.fs, self.id)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.fs.references().forget(self.id, 1);
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.id.fmt(f)
    }
}
