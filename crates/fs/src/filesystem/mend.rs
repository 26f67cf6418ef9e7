//! Correction of records that can be derived from others, through an ordinary transaction and
//! commit.

use std::sync::Arc;

use ubtrfs_volume::Volume;

use super::Filesystem;
use crate::error::Result;
use crate::inode::{InodeId, OrphanEdit};
use crate::item_sizes::{INODE_ITEM, ORPHAN_ITEM};
use crate::options::Options;
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// Corrections of the attributes of an inode. An attribute that is `None` stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeFix {
    /// The inode.
    pub inode: InodeId,
    /// Its link count.
    pub nlink: Option<u32>,
    /// The size of a directory: twice the bytes of its names.
    pub size: Option<u64>,
    /// Whether the inode has no name and shall get an orphan item, so that the next mount frees it.
    pub orphan: bool,
}

impl Filesystem {
    /// Corrects inodes and, if `recount_space` is set ([`Options::recount_space`]), all counters of
    /// space and the free-space tree. All of it is one commit, which is durable when this returns.
    /// Nothing else of the volume is changed: orphans stay, and a volume with a log is refused.
    pub fn mend(volume: Arc<Volume>, recount_space: bool, inodes: &[InodeFix]) -> Result<()> {
        let options = Options { background_commits: false, tree_log: false, recount_space, ..Options::default() };
        let fs = Self::open(volume, options)?;
        for fix in inodes {
            fs.reserver.with_reserved(
                Demand {
                    edits: 2,
                    item_bytes: 2 * (INODE_ITEM + ORPHAN_ITEM),
                    global_reserve: UseOfGlobalReserve::All,
                    ..Demand::default()
                },
                || fs.mend_inode(fix),
            )?;
        }
        fs.committer.commit()
    }

    fn mend_inode(&self, fix: &InodeFix) -> Result<()> {
        let inode = self.info.inode(fix.inode)?;
        let mut state = inode.write();
        let transaction = self.info.gate.enter();
        state.join(&inode, &transaction);
        if let Some(nlink) = fix.nlink {
            state.item.nlink = nlink;
        }
        if let Some(size) = fix.size {
            state.item.size = size;
        }
        if fix.orphan {
            state.pending.orphan = OrphanEdit::Add;
        }
        Ok(())
    }
}
