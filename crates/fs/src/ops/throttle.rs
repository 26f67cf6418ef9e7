//! Dirty data: when its writeback begins, and when writers wait because there is too much of it.

use std::sync::Arc;

use super::operations::FileOperations;
use crate::error::{Error, Result};
use crate::inode::{Inode, InodeState};
use crate::writeback::{Cause, Packed};

impl FileOperations {
    /// Throttles writers when there is too much dirty data.
    pub(super) fn throttle(&self) -> Result<()> {
        self.writeback.limit_all_in_flight()?;
        let dirty = self.info.dirty_bytes();
        let budget = (self.info.options.memory / 4) as u64;
        if dirty > budget {
            ubtrfs_tree::ensure_may_block()?;
            self.reserver.commit()?;
        } else if dirty > budget / 2 {
            self.info.commit_request.ask();
        }
        Ok(())
    }

    /// Starts writeback of an inode's pending dirty data. Returns whether it did. If a commit began
    /// just now, that commit writes the data back.
    pub(super) fn start_writeback(
        &self,
        inode: &Arc<Inode>,
        state: &mut InodeState,
        cause: Cause,
        packed: Packed,
    ) -> Result<bool> {
        self.writeback.limit_in_flight(state)?;
        let transaction = self.info.gate.enter();
        if state.pending.generation != transaction.generation {
            return Ok(false);
        }
        let written = self.writeback.write_back_pending(inode, state, &transaction, cause, packed);
        // Data that was taken out of memory is lost, so no later change may become durable.
        written.map_err(|error| Error::Shared(self.info.abort(error)))?;
        Ok(true)
    }
}
