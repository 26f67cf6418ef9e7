//! The methods that serve requests, one for each kind.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use ubtrfs::{InodeId, RenameFlags};
use ubtrfs_format::items::InodeFlags;
use ubtrfs_format::posix::{S_IFDIR, S_IFMT, S_IFREG};
use ubtrfs_fuse::caller_file::copies_durably;
use ubtrfs_fuse::reply::{
    ReplyAttr, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatFs, ReplyStatx, ReplyWrite, ReplyXattr,
};
use ubtrfs_fuse::request::{
    CopyFileRange, Create, Fallocate, Forgets, Ioctl, Lseek, MkNod, Open, Read, Rename, SetAttr, SetXattr, Write,
};
use ubtrfs_fuse::{Caller, Capabilities, Errno, Filesystem, Granted, OFlags, OpenFlags, ROOT, Request, StatxFlags};
use ubtrfs_threads::thread;

use crate::answers::{answer, answer_attributes, answer_create, answer_entry};
use crate::attributes as ours;
use crate::control;
use crate::counters::Kind;
use crate::opens::CAPABILITY_SIZE;
use crate::server::Server;
use crate::shared::{TTL, errno};

/// How long the last commit may wait for devices after an unmount by force.
const TIME_TO_COMMIT: Duration = Duration::from_secs(5);

impl Filesystem for Server {
    fn init(&self, granted: &Granted) -> Result<(), Errno> {
        let _ = self.shared().granted.set(*granted);
        Ok(())
    }

    fn disconnected(&self, is_serving: bool) {
        let shared = self.shared();
        shared.disconnected();
        // Programs were waiting when the connection was aborted, and umount(2) waits for them.
        if is_serving || self.is_busy_with_slow_requests() {
            return shared.stop_waiting();
        }
        if shared.is_force_expected() {
            let waiting = Arc::clone(shared);
            let hurry = move || {
                thread::sleep(TIME_TO_COMMIT);
                waiting.stop_waiting();
            };
            if thread::Builder::new().name("hurry".into()).spawn(hurry).is_err() {
                shared.stop_waiting();
            }
        }
    }

    fn destroy(&self) {
        if let Err(error) = self.shared().end() {
            tracing::error!("the last commit failed: {error}");
        }
    }

    fn try_nonblocking(&self, request: &Request<'_>, serve: &mut dyn FnMut() -> bool) {
        if self.is_quick(request) && !ubtrfs::scheduling::nonblocking(serve) {
            drop(self.count(Kind::Postponed));
        }
    }

    fn lookup(&self, caller: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEntry) {
        let _timed = self.count(Kind::Lookup);
        let found = self.inode(parent).and_then(|dir| self.find(dir, name).map_err(|error| errno(&error)));
        match found {
            // A file handle may refer to a deleted inode, for which the kernel must not cache a
            // negative entry.
            Err(Errno::NOENT) if !matches!(name, b"." | b"..") => {
                reply.negative(TTL);
                self.shared().forget_absent_name(caller, parent, name);
            }
            found => answer_entry(reply, found.and_then(|id| self.shared().entry(id))),
        }
    }

    fn forget(&self, forgets: &Forgets<'_>) {
        let _timed = self.count(Kind::Forget);
        for (node, lookups) in forgets.iter().filter(|(node, _)| *node != ROOT) {
            if let Ok(id) = self.inode(node) {
                self.engine().references().forget(id, lookups);
            }
        }
    }

    fn getattr(&self, _: &Caller<'_>, node: u64, _: Option<u64>, reply: ReplyAttr) {
        let _timed = self.count(Kind::GetAttr);
        let found =
            self.inode(node).and_then(|id| self.engine().inodes().attributes(id).map_err(|error| errno(&error)));
        answer_attributes(self.shared(), reply, found);
    }

    fn statx(&self, _: &Caller<'_>, node: u64, _: Option<u64>, _: u32, _: StatxFlags, reply: ReplyStatx) {
        let _timed = self.count(Kind::Statx);
        match self.inode(node).and_then(|id| self.engine().inodes().attributes(id).map_err(|error| errno(&error))) {
            Ok(attributes) => {
                let mut shown = ours::statx(&self.shared().numbers, self.shared().block_size, &attributes);
                self.shared().ownership().show(&mut shown.attributes);
                reply.statx(&shown, TTL);
            }
            Err(errno) => reply.error(errno),
        }
    }

    fn access(&self, _: &Caller<'_>, node: u64, mask: u32, reply: ReplyEmpty) {
        self.answer_access(node, mask, reply);
    }

    fn setattr(&self, caller: &Caller<'_>, node: u64, change: &SetAttr, reply: ReplyAttr) {
        let _timed = self.count(Kind::SetAttr);
        self.set_attributes(caller, node, change, reply);
    }

    fn readlink(&self, _: &Caller<'_>, node: u64, reply: ReplyData) {
        let _timed = self.count(Kind::ReadLink);
        match self.inode(node).and_then(|id| self.engine().files().read_link(id).map_err(|error| errno(&error))) {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn symlink(&self, caller: &Caller<'_>, parent: u64, name: &[u8], target: &[u8], reply: ReplyEntry) {
        let _timed = self.count(Kind::SymLink);
        let made = self.inode(parent).and_then(|dir| {
            let new = self.shared().new_symlink(caller, target);
            let id = self.engine().directories().create(dir, name, &new).map_err(|error| errno(&error))?;
            self.shared().entry(id)
        });
        answer_entry(reply, made);
    }

    fn mknod(&self, caller: &Caller<'_>, parent: u64, what: &MkNod<'_>, reply: ReplyEntry) {
        let _timed = self.count(Kind::MkNod);
        let made = self.inode(parent).and_then(|dir| {
            let mode = if what.mode & S_IFMT == 0 { what.mode | S_IFREG } else { what.mode };
            let new = self.shared().new_inode(dir, caller, mode, what.umask, what.rdev)?;
            let id = self.engine().directories().create(dir, what.name, &new).map_err(|error| errno(&error))?;
            self.shared().entry(id)
        });
        answer_entry(reply, made);
    }

    fn mkdir(&self, caller: &Caller<'_>, parent: u64, name: &[u8], mode: u32, umask: u32, reply: ReplyEntry) {
        let _timed = self.count(Kind::MkDir);
        let made = self.inode(parent).and_then(|dir| {
            let new = self.shared().new_inode(dir, caller, mode & !S_IFMT | S_IFDIR, umask, 0)?;
            let id = self.engine().directories().create(dir, name, &new).map_err(|error| errno(&error))?;
            self.shared().entry(id)
        });
        answer_entry(reply, made);
    }

    fn unlink(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let _timed = self.count(Kind::Unlink);
        let done = self
            .inode(parent)
            .and_then(|dir| self.engine().directories().unlink(dir, name).map_err(|error| errno(&error)));
        answer(reply, done);
    }

    fn rmdir(&self, _: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        let _timed = self.count(Kind::RmDir);
        let done = self
            .inode(parent)
            .and_then(|dir| self.engine().directories().rmdir(dir, name).map_err(|error| errno(&error)));
        answer(reply, done);
    }

    fn rename(&self, caller: &Caller<'_>, parent: u64, what: &Rename<'_>, reply: ReplyEmpty) {
        use ubtrfs_fuse::RenameFlags as Wanted;
        let _timed = self.count(Kind::Rename);
        if !(Wanted::NOREPLACE | Wanted::EXCHANGE | Wanted::WHITEOUT).contains(what.flags) {
            return reply.error(Errno::INVAL);
        }
        let flags = RenameFlags {
            no_replace: what.flags.contains(Wanted::NOREPLACE),
            exchange: what.flags.contains(Wanted::EXCHANGE),
            whiteout: what.flags.contains(Wanted::WHITEOUT),
            whiteout_owner: (caller.uid, caller.gid),
        };
        let done = self.inode(parent).and_then(|dir| {
            let new_dir = self.inode(what.new_parent)?;
            self.engine()
                .directories()
                .rename(dir, what.name, new_dir, what.new_name, flags)
                .map_err(|error| errno(&error))
        });
        answer(reply, done);
    }

    fn link(&self, _: &Caller<'_>, node: u64, parent: u64, name: &[u8], reply: ReplyEntry) {
        let _timed = self.count(Kind::Link);
        let linked = self.inode(node).and_then(|id| {
            let dir = self.inode(parent)?;
            self.engine().directories().link(id, dir, name).map_err(|error| errno(&error))?;
            self.engine().references().reference(id);
            self.shared().entry(id)
        });
        answer_entry(reply, linked);
    }

    fn open(&self, _: &Caller<'_>, node: u64, what: &Open, reply: ReplyOpen) {
        self.answer_open(node, what.flags, reply);
    }

    fn read(&self, _: &Caller<'_>, node: u64, what: &Read, reply: ReplyData) {
        let _timed = self.count(Kind::Read);
        self.shared().note_pages(node);
        if reply.can_read_files() {
            return reply.read_files(|buffer| self.begin_read(node, what, buffer));
        }
        reply.fill(|buffer| {
            let id = self.inode(node)?;
            let read = if what.flags.contains(OFlags::NOATIME) {
                self.engine().files().read_into_unseen(id, what.offset, buffer)
            } else {
                self.engine().files().read_into(id, what.offset, buffer)
            };
            read.map_err(|error| errno(&error))
        });
    }

    fn write(&self, caller: &Caller<'_>, node: u64, what: &Write<'_>, reply: ReplyWrite) {
        let _timed = self.count(Kind::Write);
        self.shared().note_pages(node);
        let is_synchronous = self.inode(node).is_ok_and(|id| self.engine().inodes().is_synchronous(id));
        match self.write_to(caller, node, what) {
            Ok(bytes) if is_synchronous => self.sync_inode(node, false, move |result| match result {
                Ok(()) => reply.written(bytes),
                Err(errno) => reply.error(errno),
            }),
            Ok(bytes) => reply.written(bytes),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _: &Caller<'_>, _: u64, reply: ReplyStatFs) {
        let _timed = self.count(Kind::StatFs);
        reply.statfs(&ours::statfs(&self.engine().statfs()));
    }

    fn fsync(&self, _: &Caller<'_>, node: u64, _: u64, data_only: bool, reply: ReplyEmpty) {
        let _timed = self.count(Kind::Fsync);
        self.sync_inode(node, data_only, |result| answer(reply, result));
    }

    fn fsyncdir(&self, _: &Caller<'_>, node: u64, _: u64, data_only: bool, reply: ReplyEmpty) {
        let _timed = self.count(Kind::FsyncDir);
        self.sync_inode(node, data_only, |result| answer(reply, result));
    }

    fn syncfs(&self, caller: &Caller<'_>, _: u64, reply: ReplyEmpty) {
        let _timed = self.count(Kind::SyncFs);
        if self.shared().mapped_pages.is_own(caller.pid) {
            return reply.ok();
        }
        let (shared, caller) = (Arc::clone(self.shared()), caller.pid);
        self.syncing.run(move || {
            shared.mapped_pages.write(caller, || shared.take_pages(&AtomicU64::new(0)));
            answer(reply, shared.engine().durability().sync().map_err(|error| errno(&error)));
        });
    }

    fn setxattr(&self, _: &Caller<'_>, node: u64, what: &SetXattr<'_>, reply: ReplyEmpty) {
        let _timed = self.count(Kind::SetXattr);
        answer(reply, self.inode(node).and_then(|id| self.shared().set_xattr(id, what)));
    }

    fn getxattr(&self, _: &Caller<'_>, node: u64, name: &[u8], reply: ReplyXattr) {
        let _timed = self.count(Kind::GetXattr);
        if name.starts_with(control::NAMESPACE) {
            return self.get_statistics(name, reply);
        }
        if self.refuses_write(node, name, &reply) {
            return reply.length(CAPABILITY_SIZE);
        }
        match self.inode(node).and_then(|id| self.shared().get_xattr(id, name)) {
            Ok(value) => reply.value(&value),
            Err(errno) => reply.error(errno),
        }
    }

    fn listxattr(&self, _: &Caller<'_>, node: u64, reply: ReplyXattr) {
        let _timed = self.count(Kind::ListXattr);
        match self.inode(node).and_then(|id| self.shared().list_xattrs(id)) {
            Ok(list) => reply.value(&list),
            Err(errno) => reply.error(errno),
        }
    }

    fn removexattr(&self, _: &Caller<'_>, node: u64, name: &[u8], reply: ReplyEmpty) {
        let _timed = self.count(Kind::RemoveXattr);
        let result = self.inode(node).and_then(|id| self.shared().remove_xattr(id, name));
        answer(reply, self.removed(node, name, result));
    }

    /// Answers OPENDIR with ENOSYS where the kernel supports that. It caches listings, and drops
    /// them when names change.
    fn opendir(&self, _: &Caller<'_>, _: u64, _: &Open, reply: ReplyOpen) {
        let _timed = self.count(Kind::OpenDir);
        if self.shared().has_capability(Capabilities::NO_OPENDIR_SUPPORT) {
            return reply.error(Errno::NOSYS);
        }
        reply.opened(0, OpenFlags::KEEP_CACHE | OpenFlags::CACHE_DIR);
    }

    fn readdir(&self, _: &Caller<'_>, node: u64, what: &Read, reply: ReplyDirectory) {
        let _timed = self.count(Kind::ReadDir);
        self.list_names(node, what, reply);
    }

    fn readdirplus(&self, _: &Caller<'_>, node: u64, what: &Read, reply: ReplyDirectoryPlus) {
        let _timed = self.count(Kind::ReadDirPlus);
        self.list_with_attributes(node, what, reply);
    }

    fn create(&self, caller: &Caller<'_>, parent: u64, what: &Create<'_>, reply: ReplyCreate) {
        let _timed = self.count(Kind::Create);
        answer_create(self.shared(), reply, self.open_file(parent, caller, what));
    }

    fn tmpfile(&self, caller: &Caller<'_>, parent: u64, what: &Create<'_>, reply: ReplyCreate) {
        let _timed = self.count(Kind::TmpFile);
        let made = self.inode(parent).and_then(|dir| {
            let mode = what.mode & !S_IFMT | S_IFREG;
            let new = self.shared().new_inode(dir, caller, mode, what.umask, 0)?;
            let id = self.engine().directories().create_unnamed(dir, &new).map_err(|error| errno(&error))?;
            self.shared().entry(id)
        });
        answer_create(self.shared(), reply, made);
    }

    fn interrupt(&self, unique: u64) -> Result<(), Errno> {
        self.shared().long_ioctls.interrupt(unique);
        Ok(())
    }

    fn ioctl(&self, caller: &Caller<'_>, node: u64, what: &Ioctl<'_>, reply: ReplyIoctl) {
        let _timed = self.count(Kind::Ioctl);
        self.answer_ioctl(caller, node, what, reply);
    }

    /// Answers FALLOCATE, never with ENOSYS, after which the kernel would not send it again: what
    /// is refused depends on the mode.
    fn fallocate(&self, caller: &Caller<'_>, node: u64, what: &Fallocate, reply: ReplyEmpty) {
        let _timed = self.count(Kind::Fallocate);
        self.answer_fallocate(caller, node, what, reply);
    }

    fn lseek(&self, caller: &Caller<'_>, node: u64, what: &Lseek, reply: ReplyLseek) {
        let _timed = self.count(Kind::Lseek);
        self.seek(caller, node, what, reply);
    }

    /// Shares extents. If that is impossible, the kernel copies the data by reading and writing,
    /// for this call only, and not for all as after ENOSYS.
    fn copy_file_range(&self, caller: &Caller<'_>, node: u64, what: &CopyFileRange, reply: ReplyCopy) {
        /// The most that an answer of 32 bits can express, in whole sectors of any size.
        const NARROW: u64 = u32::MAX as u64 & !0xffff;
        let _timed = self.count(Kind::CopyFileRange);
        let length = if what.wide { what.length } else { what.length.min(NARROW) };
        let shared = self.inode(node).and_then(|source| {
            let target = self.inode(what.node_out)?;
            // This comes first: if data had to be copied, the kernel would read the source, and so
            // access it.
            if self.shared().flags_of(target)? & InodeFlags::IMMUTABLE != 0 {
                return Err(Errno::PERM);
            }
            self.drop_privileges(caller, what.node_out, target)?;
            let engine = self.engine();
            // This may copy less than the whole length: programs ask for the rest, and other
            // requests are served in between.
            engine
                .files()
                .clone_some(source, what.offset_in, target, what.offset_out, length)
                .map_err(|error| errno(&error))
        });
        match shared {
            Ok(bytes) if bytes > 0 && self.copies_durably(caller, what.node_out) => {
                self.sync_inode(what.node_out, false, move |result| match result {
                    Ok(()) => reply.copied(bytes),
                    Err(errno) => reply.error(errno),
                });
            }
            Ok(bytes) => reply.copied(bytes),
            Err(errno) => reply.error(errno),
        }
    }
}

impl Server {
    /// Returns whether data that a caller copies into a file must be durable before the answer.
    fn copies_durably(&self, caller: &Caller<'_>, target: u64) -> bool {
        self.inode(target).is_ok_and(|id| {
            let is_target = |number| self.shared().numbers.shown_as(number) == Ok(id);
            self.engine().inodes().is_synchronous(id) || copies_durably(caller.pid, &is_target)
        })
    }

    /// Looks up a name. `.` is the inode itself and `..` its parent; the kernel looks these up for
    /// file handles.
    fn find(&self, dir: InodeId, name: &[u8]) -> ubtrfs::Result<InodeId> {
        let id = match name {
            b"." => dir,
            b".." => self.engine().directories().parent_within(self.shared().numbers.top(), dir)?,
            name => return self.engine().directories().lookup(dir, name),
        };
        self.engine().directories().lookup_inode(id)?;
        Ok(id)
    }
}
