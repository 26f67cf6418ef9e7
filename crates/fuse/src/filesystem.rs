//! The trait that a filesystem implements.

use rustix::fs::StatxFlags;
use rustix::io::Errno;

use crate::negotiate::Granted;
use crate::reply::{
    ReplyAttr, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatFs, ReplyStatx, ReplyWrite, ReplyXattr,
};
use crate::request::{
    Caller, CopyFileRange, Create, Fallocate, Forgets, Ioctl, Lseek, MkNod, Open, Read, Release, Rename, Request,
    SetAttr, SetXattr, Write,
};

/// A filesystem, with one method for each request. Several threads call the methods at a time.
///
/// The default of a method answers ENOSYS, and **ENOSYS sticks**: for most requests the kernel
/// concludes that the filesystem doesn't have them, never sends them again on this mount, and
/// silently does something of its own instead (FSYNC, FSYNCDIR and FLUSH succeed; FALLOCATE and the
/// extended attributes' requests fail with EOPNOTSUPP; OPEN and OPENDIR succeed if the capability
/// was granted; CREATE becomes MKNOD and OPEN; STATX becomes GETATTR; TMPFILE and SYNCFS are not
/// tried again). To fail just this once, answer something else.
///
/// Methods should answer soon, since the thread that calls them reads no further request before
/// they return. A method that takes long should move its reply object to another thread. Where
/// requests arrive over rings, [`try_nonblocking`](Filesystem::try_nonblocking) says which of them
/// the rings' threads may serve. Borrowed arguments (names, data) live until the method returns.
#[allow(unused_variables, reason = "the default methods need no arguments; their names are documentation")]
pub trait Filesystem: Send + Sync {
    /// Called when the mount begins, before any request. An error ends the mount.
    fn init(&self, granted: &Granted) -> Result<(), Errno> {
        Ok(())
    }

    /// Called when the kernel's connection has ended, since the filesystem was unmounted or the
    /// connection aborted: no answer reaches anybody then. `is_serving` says that threads still
    /// serve requests. May be called more than once.
    fn disconnected(&self, _is_serving: bool) {}

    /// Called once when the mount has ended, in whatever way. With `fuseblk`, umount(2) waits until
    /// this returns, and only FORGETs come after it; with plain `fuse` it is called when all
    /// threads have ended.
    fn destroy(&self) {}

    /// Calls `serve`, which calls the request's method, if that method can answer without waiting
    /// for a device, for another request or for a lock that is held long. Only the threads of rings
    /// call this; threads that may wait serve the requests for which it does not call `serve`. The
    /// default never calls `serve`.
    ///
    /// If a method that is called this way finds that it would have to wait, it answers EAGAIN and
    /// must have changed nothing: a thread that may wait calls it once more. `serve` returns false
    /// then. (Elsewhere EAGAIN is an answer like any other.)
    fn try_nonblocking(&self, request: &Request<'_>, serve: &mut dyn FnMut() -> bool) {}

    /// Looks a name up in `parent`. A negative entry lets the kernel remember that there is none.
    fn lookup(&self, caller: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// The kernel forgets lookups. No request names a node whose lookup count reaches zero until it
    /// is looked up again. Has no reply.
    fn forget(&self, forgets: &Forgets<'_>) {}

    /// Attributes of `node`.
    fn getattr(&self, caller: &Caller<'_>, node: u64, handle: Option<u64>, reply: ReplyAttr) {
        reply.error(Errno::NOSYS);
    }

    /// Attributes of `node`, as statx(2) shows them: `mask` is what the caller wants, `flags` are
    /// `AT_STATX_*`.
    fn statx(
        &self,
        caller: &Caller<'_>,
        node: u64,
        handle: Option<u64>,
        flags: u32,
        mask: StatxFlags,
        reply: ReplyStatx,
    ) {
        reply.error(Errno::NOSYS);
    }

    /// Changes attributes of `node`, also its size; the answer has all attributes. The kernel also
    /// sends changes of nothing (before a WRITE that clears set-id bits), which are answered like
    /// any other.
    fn setattr(&self, caller: &Caller<'_>, node: u64, change: &SetAttr, reply: ReplyAttr) {
        reply.error(Errno::NOSYS);
    }

    /// The target of a symbolic link.
    fn readlink(&self, caller: &Caller<'_>, node: u64, reply: ReplyData) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a symbolic link.
    fn symlink(&self, caller: &Caller<'_>, parent: u64, name: &[u8], target: &[u8], reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file, device node, FIFO or socket.
    fn mknod(&self, caller: &Caller<'_>, parent: u64, what: &MkNod<'_>, reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a directory; `mode` may lack the type.
    fn mkdir(&self, caller: &Caller<'_>, parent: u64, name: &[u8], mode: u32, umask: u32, reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Removes a name that isn't a directory's.
    fn unlink(&self, caller: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller<'_>, parent: u64, name: &[u8], reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Renames `what.name` in `parent`. Flags of RENAME2 that the filesystem doesn't know must be
    /// refused with EINVAL.
    fn rename(&self, caller: &Caller<'_>, parent: u64, what: &Rename<'_>, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Gives `node` one more name in `parent`; the answer is `node`'s entry (and counts as a
    /// lookup).
    fn link(&self, caller: &Caller<'_>, node: u64, parent: u64, name: &[u8], reply: ReplyEntry) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a file. With `NO_OPEN_SUPPORT` granted, ENOSYS means that no file needs opening, ever;
    /// from then on nothing is released either, not even what CREATE and TMPFILE open.
    fn open(&self, caller: &Caller<'_>, node: u64, how: &Open, reply: ReplyOpen) {
        reply.error(Errno::NOSYS);
    }

    /// Reads from a file. Fewer bytes than asked for mean that the file ends there.
    fn read(&self, caller: &Caller<'_>, node: u64, what: &Read, reply: ReplyData) {
        reply.error(Errno::NOSYS);
    }

    /// Writes to a file.
    fn write(&self, caller: &Caller<'_>, node: u64, what: &Write<'_>, reply: ReplyWrite) {
        reply.error(Errno::NOSYS);
    }

    /// The size of the filesystem. It must succeed in any case: the default answers zeros.
    fn statfs(&self, caller: &Caller<'_>, node: u64, reply: ReplyStatFs) {
        reply.statfs(&crate::attributes::StatFs { block_size: 4096, name_length: 255, ..Default::default() });
    }

    /// Called when the last user of an OPEN's handle has closed it. No program sees the answer. The
    /// default does nothing.
    fn release(&self, caller: &Caller<'_>, node: u64, what: &Release, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Makes a file durable.
    fn fsync(&self, caller: &Caller<'_>, node: u64, handle: u64, data_only: bool, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Sets an extended attribute.
    fn setxattr(&self, caller: &Caller<'_>, node: u64, what: &SetXattr<'_>, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// The value of an extended attribute.
    fn getxattr(&self, caller: &Caller<'_>, node: u64, name: &[u8], reply: ReplyXattr) {
        reply.error(Errno::NOSYS);
    }

    /// The names of the extended attributes, each with a NUL at its end.
    fn listxattr(&self, caller: &Caller<'_>, node: u64, reply: ReplyXattr) {
        reply.error(Errno::NOSYS);
    }

    /// Removes an extended attribute.
    fn removexattr(&self, caller: &Caller<'_>, node: u64, name: &[u8], reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Called when a file descriptor is closed.
    fn flush(&self, caller: &Caller<'_>, node: u64, handle: u64, lock_owner: u64, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Opens a directory. With `NO_OPENDIR_SUPPORT` granted, ENOSYS means that no directory needs
    /// opening, ever. The default opens with handle zero.
    fn opendir(&self, caller: &Caller<'_>, node: u64, how: &Open, reply: ReplyOpen) {
        reply.opened(0, crate::abi::flags::OpenFlags::empty());
    }

    /// Lists a directory from `what.offset`, which is zero or the `next` of an entry listed
    /// earlier.
    fn readdir(&self, caller: &Caller<'_>, node: u64, what: &Read, reply: ReplyDirectory) {
        reply.error(Errno::NOSYS);
    }

    /// Lists a directory with attributes.
    fn readdirplus(&self, caller: &Caller<'_>, node: u64, what: &Read, reply: ReplyDirectoryPlus) {
        reply.error(Errno::NOSYS);
    }

    /// Called when the last user of an OPENDIR's handle has closed it. The default does nothing.
    fn releasedir(&self, caller: &Caller<'_>, node: u64, what: &Release, reply: ReplyEmpty) {
        reply.ok();
    }

    /// Makes a directory durable.
    fn fsyncdir(&self, caller: &Caller<'_>, node: u64, handle: u64, data_only: bool, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// access(2), requested only without `default_permissions`.
    fn access(&self, caller: &Caller<'_>, node: u64, mask: u32, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file and opens it. It may exist unless the flags have `O_EXCL`.
    fn create(&self, caller: &Caller<'_>, parent: u64, what: &Create<'_>, reply: ReplyCreate) {
        reply.error(Errno::NOSYS);
    }

    /// Makes a file without a name and opens it.
    fn tmpfile(&self, caller: &Caller<'_>, parent: u64, what: &Create<'_>, reply: ReplyCreate) {
        reply.error(Errno::NOSYS);
    }

    /// A signal came for the process that waits for request `unique`. Returns `Ok` if the request
    /// will be answered sooner, perhaps by EINTR; EAGAIN if the request isn't known (yet), so that
    /// the kernel sends the interrupt again; ENOSYS, the default, if the filesystem handles no
    /// interrupts.
    fn interrupt(&self, unique: u64) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// ioctl(2), with an argument whose size the command encodes.
    fn ioctl(&self, caller: &Caller<'_>, node: u64, what: &Ioctl<'_>, reply: ReplyIoctl) {
        reply.error(Errno::NOTTY);
    }

    /// Reserves space, punches a hole or zeroes a range.
    fn fallocate(&self, caller: &Caller<'_>, node: u64, what: &Fallocate, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }

    /// Finds data or a hole.
    fn lseek(&self, caller: &Caller<'_>, node: u64, what: &Lseek, reply: ReplyLseek) {
        reply.error(Errno::NOSYS);
    }

    /// Copies from `node` to `what.node_out`.
    fn copy_file_range(&self, caller: &Caller<'_>, node: u64, what: &CopyFileRange, reply: ReplyCopy) {
        reply.error(Errno::NOSYS);
    }

    /// Makes everything durable (only on `fuseblk`; `node` is the root).
    fn syncfs(&self, caller: &Caller<'_>, node: u64, reply: ReplyEmpty) {
        reply.error(Errno::NOSYS);
    }
}
