//! What a server asks before it decides which thread serves a request.

use super::Filesystem;
use crate::fsync_group::Done;
use crate::inode::InodeId;
use crate::ops::FsyncLeader;

/// What a server asks before it decides which thread serves a request, and fsyncs in two parts.
pub trait Scheduling {
    /// Whether somebody holds a reference to an inode: [`Filesystem::lookup`] and the like give
    /// them, [`Filesystem::forget`] takes them.
    fn is_referenced(&self, id: InodeId) -> bool;

    /// Whether somebody works on an inode, perhaps for long: whoever only looks at it (or,
    /// `to_change`, changes it) might have to wait.
    fn is_busy(&self, id: InodeId, to_change: bool) -> bool;

    /// Does of [`Filesystem::start_fsync`] what takes no waiting, if [`Self::is_fsync_short`].
    /// Whoever gets a leader has to see to it that [`Self::lead_fsync`] is called with it, soon, by
    /// whatever thread: others come to wait for that.
    fn join_fsync(&self, id: InodeId, data_only: bool, done: Done) -> Option<FsyncLeader>;

    /// Writes what a group of fsyncs asks for.
    fn lead_fsync(&self, leader: FsyncLeader);

    /// Whether nobody works on an inode, and little of it is dirty: then an fsync starts in an
    /// instant.
    fn is_fsync_short(&self, id: InodeId) -> bool;

    /// Whether all of a range has been written lately, so that reading it takes no device. Says no
    /// if it would have to wait to know.
    fn is_dirty(&self, id: InodeId, offset: u64, len: u64) -> bool;

    /// Whether truncating a file to `size` bytes is done in steps, with commits between them.
    fn is_truncated_in_steps(&self, id: InodeId, size: u64) -> bool;
}

impl Scheduling for Filesystem {
    fn is_referenced(&self, id: InodeId) -> bool {
        self.info.is_referenced(id)
    }

    fn is_busy(&self, id: InodeId, to_change: bool) -> bool {
        self.info.is_busy(id, to_change)
    }

    fn join_fsync(&self, id: InodeId, data_only: bool, done: Done) -> Option<FsyncLeader> {
        self.ops.join_fsync(id, data_only, done)
    }

    fn lead_fsync(&self, leader: FsyncLeader) {
        self.ops.lead_fsync(leader);
    }

    fn is_fsync_short(&self, id: InodeId) -> bool {
        self.ops.is_fsync_short(id)
    }

    fn is_dirty(&self, id: InodeId, offset: u64, len: u64) -> bool {
        self.ops.is_dirty(id, offset, len)
    }

    fn is_truncated_in_steps(&self, id: InodeId, size: u64) -> bool {
        self.ops.is_truncated_in_steps(id, size)
    }
}
