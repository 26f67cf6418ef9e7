//! Writes to files of read-only subvolumes are refused with EROFS: by open(2) where the kernel asks
//! about it, and otherwise by the first write(2).
//!
//! A mount says once, to the first OPEN, whether the kernel shall ask about every open(2), and the
//! kernel keeps to that as long as the mount lives. With OPEN and RELEASE an open(2) takes many
//! times as long. Where it is not asked, and pages are written back later, write(2) would know of
//! no error. But before it changes a page, write(2) removes the file's capabilities, if there are
//! any (`file_remove_privs`): so a file of a read-only subvolume answers that question as if it had
//! some, their removal fails with EROFS, and so does write(2). A store to a shared mapping asks
//! nothing. Its pages are discarded when they are written back, and the file's next fsync or msync
//! fails. The kernel gets no error: it would report that to every syncfs(2), so that who
//! owns a file could have the syncs of all others fail.
//!
//! The subvolume may become writable between the two: then the removal of what never was there
//! succeeds, and so does the write. That takes a note of the last questions that were answered so
//! (`refusals`).
//!
//! access(2) is answered by the kernel alone, which knows no read-only subvolumes, unless it checks
//! no permissions; then it asks, and hears of EROFS.
//!
//! Where the kernel asks, open(2) refuses what the flags of files forbid, too (`chattr +i`, `+a`).

use ubtrfs::InodeId;
use ubtrfs::xattr_names::CAPABILITY;
use ubtrfs_format::items::{FileType, InodeFlags};
use ubtrfs_fuse::reply::{ReplyEmpty, ReplyOpen, ReplyXattr};
use ubtrfs_fuse::{Errno, OFlags, OpenFlags};

use crate::counters::Kind;
use crate::permissions::WRITE;
use crate::server::Server;
use crate::shared::errno;

/// Bytes of `security.capability` in the form that has an owner (`struct vfs_ns_cap_data`).
pub(crate) const CAPABILITY_SIZE: usize = 24;

impl Server {
    /// Answers OPEN; with ENOSYS the kernel sends no more of them.
    pub(crate) fn answer_open(&self, node: u64, flags: OFlags, reply: ReplyOpen) {
        let _timed = self.count(Kind::Open);
        if !self.shared().checks_opens() {
            return reply.error(Errno::NOSYS);
        }
        match self.inode(node).and_then(|id| self.check_open(id, flags)) {
            Ok(()) if self.shared().facts().strict_atime => reply.opened(0, OpenFlags::empty()),
            Ok(()) => reply.opened(0, OpenFlags::KEEP_CACHE),
            Err(errno) => reply.error(errno),
        }
    }

    /// Answers ACCESS, which comes only where the kernel checks no permissions; with ENOSYS it
    /// sends no more of them, and grants everything. Only an open decides whether opens are
    /// checked: until then a read-only subvolume may come.
    pub(crate) fn answer_access(&self, node: u64, mask: u32, reply: ReplyEmpty) {
        let _timed = self.count(Kind::Access);
        if self.shared().leaves_opens_unchecked() {
            return reply.error(Errno::NOSYS);
        }
        let writes = mask & u32::from(WRITE) != 0;
        match self.inode(node).and_then(|id| if writes { self.check_writable(id) } else { Ok(()) }) {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    /// `EROFS` for what belongs to a read-only subvolume, or after an error. Pipes, sockets and
    /// devices only have their names there.
    fn check_writable(&self, id: InodeId) -> Result<(), Errno> {
        let engine = self.engine();
        if !engine.is_read_only() && !engine.is_in_read_only_subvolume(id) {
            return Ok(());
        }
        let is = engine.inodes().attributes(id).map_err(|error| errno(&error))?;
        match is.file_type {
            FileType::Regular | FileType::Directory => Err(Errno::ROFS),
            _ => Ok(()),
        }
    }

    /// Whether a file may be opened for writing, as the VFS decides it: `EPERM` where the file's
    /// flags forbid it, which the kernel does not know of FUSE's files, `EROFS` in a read-only
    /// subvolume.
    fn check_open(&self, id: InodeId, flags: OFlags) -> Result<(), Errno> {
        let writes = flags & OFlags::RWMODE != OFlags::RDONLY;
        if !writes && !flags.contains(OFlags::TRUNC) {
            return Ok(());
        }
        let forbidding = self.shared().flags_of(id)? & InodeFlags::PROTECTING;
        if forbidding & InodeFlags::IMMUTABLE != 0 {
            return Err(Errno::PERM);
        }
        if self.engine().is_in_read_only_subvolume(id) {
            return Err(Errno::ROFS);
        }
        // By invariant 57; the kernel says so, too.
        if writes && self.engine().files().has_verity(id) {
            return Err(Errno::PERM);
        }
        let only_appends = flags.contains(OFlags::APPEND) && !flags.contains(OFlags::TRUNC);
        if forbidding & InodeFlags::APPEND != 0 && !only_appends { Err(Errno::PERM) } else { Ok(()) }
    }

    /// Whether GETXATTR is the question, before a write, for capabilities that are to be removed,
    /// and their removal is to fail.
    pub(crate) fn refuses_write(&self, node: u64, name: &[u8], reply: &ReplyXattr) -> bool {
        let refuses = reply.room() == 0
            && name == CAPABILITY
            && self.inode(node).is_ok_and(|id| {
                let engine = self.engine();
                engine.is_in_read_only_subvolume(id) || engine.uses_verity() && engine.files().has_verity(id)
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
