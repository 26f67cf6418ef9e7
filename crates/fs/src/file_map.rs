//! The map of a file: layouts of the open transaction and of the commit in flight, over the extents
//! of the committed tree.

use std::sync::Arc;

use ubtrfs_file::{CommittedExtents, PieceSource, Stack, Unborn};

use crate::committed::Committed;
use crate::error::Result;
use crate::inode::{InodeId, InodeState};

/// The layers below the pending layout of a file, for as long as its lock is held.
pub(crate) struct FileMap {
    bottom: Box<dyn PieceSource>,
    /// Keeps the space of the tree that `bottom` reads from being reused.
    _committed: Arc<Committed>,
}

impl FileMap {
    pub(crate) fn new(committed: &Arc<Committed>, id: InodeId, state: &InodeState) -> Result<Self> {
        let bottom: Box<dyn PieceSource> = if state.committed {
            let sector_size = committed.superblock.sector_size;
            Box::new(CommittedExtents::new(committed.tree(id.subvolume)?, id.ino, sector_size))
        } else {
            Box::new(Unborn)
        };
        Ok(Self { bottom, _committed: committed.clone() })
    }

    /// Calls `look` with all layers.
    pub(crate) fn with_stack<T>(&self, state: &InodeState, look: impl FnOnce(Stack<'_>) -> T) -> T {
        match &state.frozen {
            Some(frozen) => look(Stack::new(&[&state.pending.layout, &frozen.batch.layout], &*self.bottom)),
            None => look(Stack::new(&[&state.pending.layout], &*self.bottom)),
        }
    }

    /// Calls `look` with the layers below the pending one.
    pub(crate) fn with_lower<T>(&self, state: &InodeState, look: impl FnOnce(Stack<'_>) -> T) -> T {
        match &state.frozen {
            Some(frozen) => look(Stack::new(&[&frozen.batch.layout], &*self.bottom)),
            None => look(Stack::new(&[], &*self.bottom)),
        }
    }

    /// Returns the committed tree's layer.
    pub(crate) fn bottom(&self) -> &dyn PieceSource {
        &*self.bottom
    }

    /// Returns the layers below the frozen one.
    pub(crate) fn committed(&self) -> Stack<'_> {
        Stack::new(&[], &*self.bottom)
    }
}
