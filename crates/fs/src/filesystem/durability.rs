//! What makes changes durable, and what ends changing.

use super::Filesystem;
use crate::error::Result;
use crate::fsync_group::Done;
use crate::inode::InodeId;

impl Filesystem {
    /// Makes everything durable that was changed before.
    pub fn sync(&self) -> Result<()> {
        self.ops.sync()
    }

    /// Makes an inode durable: content, attributes and names; of a directory, its entries and the
    /// inodes that new ones lead to.
    pub fn fsync(&self, id: InodeId) -> Result<()> {
        self.ops.fsync(id)
    }

    /// The same, but for changes of times alone.
    pub fn fdatasync(&self, id: InodeId) -> Result<()> {
        self.ops.fdatasync(id)
    }

    /// Makes an inode durable as [`Self::fsync`] does, or as [`Self::fdatasync`]. `done` is told
    /// when it is, by whatever thread finds out. The call itself returns sooner, unless it is the
    /// one that has to write.
    pub fn start_fsync(&self, id: InodeId, data_only: bool, done: Done) {
        self.ops.start_fsync(id, data_only, done);
    }

    /// Makes everything durable, and changes nothing from then on until [`Self::write_again`]. For
    /// a mount that the kernel has made read-only: who changes files must have ended before.
    pub fn stop_writing(&self) -> Result<()> {
        self.ops.stop_writing()
    }

    /// Ends what [`Self::stop_writing`] began. A volume that was opened read-only stays so, and so
    /// does one after an error.
    pub fn write_again(&self) -> Result<()> {
        self.ops.write_again()
    }
}
