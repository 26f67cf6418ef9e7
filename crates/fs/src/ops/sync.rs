//! Making changes durable.

use std::sync::atomic::Ordering;

use crate::error::{Errno, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeId;

impl Filesystem {
    /// Makes everything durable that was changed before.
    pub fn sync(&self) -> Result<()> {
        if self.is_read_only() && self.abort_reason().is_none() {
            return Ok(());
        }
        self.commit()
    }

    /// Makes an inode durable: content, attributes and names. For now by a commit, unless nothing of it changed.
    pub fn fsync(&self, id: InodeId) -> Result<()> {
        self.counters.fsyncs.fetch_add(1, Ordering::Relaxed);
        let inode = self.inode(id)?;
        let (pending, frozen) = {
            let mut state = inode.write();
            if std::mem::take(&mut state.write_error) {
                return Err(Errno::IO.into());
            }
            (!state.pending.is_clean() || !state.dirty.is_empty(), state.frozen.is_some())
        };
        if pending {
            return self.commit();
        }
        if frozen {
            // All of it is in the commit in flight.
            drop(self.commit_place.lock());
        } else {
            self.counters.fsyncs_without_work.fetch_add(1, Ordering::Relaxed);
        }
        if self.abort_reason().is_some() { Err(Errno::IO.into()) } else { Ok(()) }
    }
}
