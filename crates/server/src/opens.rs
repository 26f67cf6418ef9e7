//! Writes to files of read-only subvolumes are refused with EROFS: by open(2) where the kernel asks
//! about it, and otherwise by the first write(2).
//!
//! A mount says once, to the first OPEN, whether the kernel shall ask about every open(2), and the
//! kernel keeps to that as long as the mount lives. With OPEN and RELEASE an open(2) takes many
//! times as long. Where it is not asked, and pages are written back later, write(2) would know of
//! no error. But before it changes a page, write(2) removes the file's capabilities, if there are
//! any (`file_remove_privs`): so a file of a read-only subvolume answers that question as if it had
//! some, their removal fails with EROFS, and so does write(2). A store to a shared mapping asks
//! nothing. Its error comes with msync(2) or close(2), and the pages are discarded.
//!
//! The subvolume may become writable between the two: then the removal of what never was there
//! succeeds, and so does the write. That takes a note of the last questions that were answered so
//! (`refusals`).

use ubtrfs_fuse::reply::{ReplyOpen, ReplyXattr};
use ubtrfs_fuse::{Errno, OFlags, OpenFlags};

use crate::counters::Kind;
use crate::server::Server;
use crate::xattrs::CAPABILITY;

/// Bytes of `security.capability` in the form that has an owner (`struct vfs_ns_cap_data`).
pub(crate) const CAPABILITY_SIZE: usize = 24;

impl Server {
    /// Answers OPEN; with ENOSYS the kernel sends no more of them.
    pub(crate) fn answer_open(&self, node: u64, flags: OFlags, reply: ReplyOpen) {
        let _timed = self.count(Kind::Open);
        if !self.shared().checks_opens() {
            return reply.error(Errno::NOSYS);
        }
        let writes = flags & OFlags::RWMODE != OFlags::RDONLY;
        match self.inode(node) {
            Ok(id) if writes && self.engine().is_in_read_only_subvolume(id) => reply.error(Errno::ROFS),
            // By invariant 57; the kernel says so, too.
            Ok(id) if writes && self.engine().has_verity(id) => reply.error(Errno::PERM),
            Ok(_) if self.shared().facts().strict_atime => reply.opened(0, OpenFlags::empty()),
            Ok(_) => reply.opened(0, OpenFlags::KEEP_CACHE),
            Err(errno) => reply.error(errno),
        }
    }

    /// Whether GETXATTR is the question, before a write, for capabilities that are to be removed,
    /// and their removal is to fail.
    pub(crate) fn refuses_write(&self, node: u64, name: &[u8], reply: &ReplyXattr) -> bool {
        let refuses = reply.room() == 0
            && name == CAPABILITY
            && self.inode(node).is_ok_and(|id| {
                let engine = self.engine();
                engine.is_in_read_only_subvolume(id) || engine.uses_verity() && engine.has_verity(id)
            });
        if refuses {
            self.shared().refusals.note(node);
        }
        refuses
    }

    /// The result of a REMOVEXATTR: what the kernel was shown, and was not there, is gone.
    pub(crate) fn removed(&self, node: u64, name: &[u8], result: Result<(), Errno>) -> Result<(), Errno> {
        if name != CAPABILITY {
            return result;
        }
        let was_shown = self.shared().refusals.take(node);
        if was_shown && result == Err(Errno::NODATA) { Ok(()) } else { result }
    }
}
