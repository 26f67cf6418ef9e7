//! Refuses writes to files of read-only subvolumes with EROFS: in open(2) if the kernel sends OPEN,
//! and otherwise in the first write(2).
//!
//! The answer to the first OPEN of a mount decides whether the kernel sends OPEN for every open(2),
//! for as long as the mount lives. With OPEN and RELEASE an open(2) takes many times as long.
//! Without OPEN, and with pages written back later, write(2) would get no error. But before it
//! changes a page, write(2) removes the file's capabilities, if there are any
//! (`file_remove_privs`). So for a file of a read-only subvolume the server answers that question
//! as if there were some; their removal fails with EROFS, and so does write(2). A store to a shared
//! mapping sends no request. Its pages are discarded when they are written back, and the file's
//! next fsync or msync fails. The kernel gets no error, since it would report that to every
//! syncfs(2), and so the owner of a file could make the syncs of all others fail.
//!
//! The subvolume may become writable between the question and the removal: then the removal of
//! capabilities that never existed succeeds, and so does the write. For that the server remembers
//! the last questions that it has answered this way (`refusals`).
//!
//! The kernel answers access(2) by itself, without knowledge of read-only subvolumes, if it checks
//! permissions; otherwise it sends ACCESS, and gets EROFS.
//!
//! If the kernel sends OPEN, open(2) also refuses what the flags of files forbid (`chattr +i`,
//! `+a`).

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
    /// Answers OPEN. After ENOSYS the kernel sends no more of them.
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

    /// Answers ACCESS, which comes only where the kernel checks no permissions. After ENOSYS it
    /// sends no more of them, and grants everything. This does not decide whether opens are
    /// checked, only the first OPEN does: a read-only subvolume may be made until then.
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

    /// Returns `EROFS` for an inode of a read-only subvolume, or on a filesystem that is read-only
    /// after an error. Pipes, sockets and devices can be written to, since only their names are in
    /// the subvolume.
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

    /// Checks whether a file may be opened for writing, as the VFS would. Returns `EPERM` if the
    /// file's flags forbid it, which the kernel does not know for FUSE's files, and `EROFS` in a
    /// read-only subvolume.
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
        // By invariant 42, and as in the kernel.
        if writes && self.engine().files().has_verity(id) {
            return Err(Errno::PERM);
        }
        let only_appends = flags.contains(OFlags::APPEND) && !flags.contains(OFlags::TRUNC);
        if forbidding & InodeFlags::APPEND != 0 && !only_appends { Err(Errno::PERM) } else { Ok(()) }
    }

    /// Returns whether a GETXATTR is the question, before a write, for capabilities that are to be
    /// removed, and the removal is to fail.
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

    /// The result of a REMOVEXATTR. It succeeds if there was no such attribute although the server
    /// reported one to the kernel.
    pub(crate) fn removed(&self, node: u64, name: &[u8], result: Result<(), Errno>) -> Result<(), Errno> {
        if name != CAPABILITY {
            return result;
        }
        let was_shown = self.shared().refusals.take(node);
        if was_shown && result == Err(Errno::NODATA) { Ok(()) } else { result }
    }
}
