//! What makes changes durable, and what ends changing.

use super::Filesystem;
use crate::error::Result;
use crate::inode::InodeId;

impl Filesystem {
    /// Makes all earlier changes durable.
    pub fn sync(&self) -> Result<()> {
        self.ops.sync()
    }

    /// Makes an inode durable: content, attributes and names; of a directory, its entries and the
    /// inodes of new ones.
    pub fn fsync(&self, id: InodeId) -> Result<()> {
        self.ops.fsync(id)
    }

    /// The same, but for changes of times alone.
    pub fn fdatasync(&self, id: InodeId) -> Result<()> {
        self.ops.fdatasync(id)
    }

    /// Makes everything durable, and changes nothing from then on until [`Self::write_again`]. For
    /// a mount that the kernel has made read-only: who changes files must have ended before.
    pub fn stop_writing(&self) -> Result<()> {
        self.ops.stop_writing()
    }

    /// Ends the effect of [`Self::stop_writing`]. A volume that was opened read-only stays so, and
    /// so does one after an error.
    pub fn write_again(&self) -> Result<()> {
        self.ops.write_again()
    }
}
