//! The questions of a server before it decides which thread serves a request.

use super::Filesystem;
use crate::deferred_reads::BegunRead;
use crate::error::{Error, Result};
use crate::fsync_group::Done;
use crate::inode::InodeId;
use crate::ops::FsyncLeader;

/// The questions of a server before it decides which thread serves a request, and fsyncs in two
/// parts.
pub trait Scheduling {
    /// Whether an inode has references: [`Filesystem::lookup`] and others take them,
    /// [`Filesystem::forget`] drops them.
    fn is_referenced(&self, id: InodeId) -> bool;

    /// Whether an inode is locked, perhaps for long, so that reading it (or, `to_change`, changing
    /// it) might block.
    fn is_busy(&self, id: InodeId, to_change: bool) -> bool;

    /// Makes an inode durable as [`Filesystem::fsync`] does, or as [`Filesystem::fdatasync`].
    /// `done` is called at the end, by any thread. The call itself returns sooner,
    /// unless it is the one that has to write.
    fn start_fsync(&self, id: InodeId, data_only: bool, done: Done);

    /// Does of [`Self::start_fsync`] what takes no waiting, if [`Self::is_fsync_short`].
    /// A caller that gets a leader must have some thread call [`Self::lead_fsync`] with it soon, by
    /// whatever thread: others come to wait for that.
    fn join_fsync(&self, id: InodeId, data_only: bool, done: Done) -> Option<FsyncLeader>;

    /// Writes the log of a group of fsyncs.
    fn lead_fsync(&self, leader: FsyncLeader);

    /// Has the inode's next fsync fail with `error`: what a program stored to a mapping may not be
    /// written, and no other program shall hear of that.
    fn fail_next_fsync(&self, id: InodeId, error: Error) -> Result<()>;

    /// Whether an inode is unlocked and little of it is dirty, so that an fsync can start without
    /// blocking.
    fn is_fsync_short(&self, id: InodeId) -> bool;

    /// Whether two files are unlocked, and so small that
    /// [`clone_range`](Filesystem::clone_range) between them takes no time.
    fn is_clone_short(&self, source: InodeId, target: InodeId) -> bool;

    /// Begins to read from `offset` on into `buf`, whose memory is aligned to 4096 bytes, as
    /// [`Filesystem::read_into`] does (or, if not `seen`, [`Filesystem::read_into_unseen`]), but
    /// leaves what only devices have to the caller. `EAGAIN` where that is impossible, or would
    /// block: the file is to be read by one of those two then.
    fn begin_read(&self, id: InodeId, offset: u64, buf: &mut [u8], seen: bool) -> Result<BegunRead>;

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

    fn start_fsync(&self, id: InodeId, data_only: bool, done: Done) {
        self.ops.start_fsync(id, data_only, done);
    }

    fn join_fsync(&self, id: InodeId, data_only: bool, done: Done) -> Option<FsyncLeader> {
        self.ops.join_fsync(id, data_only, done)
    }

    fn lead_fsync(&self, leader: FsyncLeader) {
        self.ops.lead_fsync(leader);
    }

    fn fail_next_fsync(&self, id: InodeId, error: Error) -> Result<()> {
        self.ops.fail_next_fsync(id, error)
    }

    fn is_fsync_short(&self, id: InodeId) -> bool {
        self.ops.is_fsync_short(id)
    }

    fn is_clone_short(&self, source: InodeId, target: InodeId) -> bool {
        self.ops.is_clone_short(source, target)
    }

    fn begin_read(&self, id: InodeId, offset: u64, buf: &mut [u8], seen: bool) -> Result<BegunRead> {
        self.ops.begin_read(id, offset, buf, seen)
    }

    fn is_truncated_in_steps(&self, id: InodeId, size: u64) -> bool {
        self.ops.is_truncated_in_steps(id, size)
    }
}
