//! Calls the method that serves a request.

use std::sync::Arc;

use rustix::io::Errno;

use crate::abi::opcode;
use crate::filesystem::Filesystem;
use crate::reply::{
    Reply, ReplyAttr, ReplyCopy, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatFs, ReplyStatx, ReplyWrite, ReplyXattr, Responder,
};
use crate::request::{self, Form, Operation, Request};

/// The longest target of a symbolic link.
const LINK_LIMIT: usize = 4095;

/// Serves one message of the kernel. DESTROY calls `destroy`.
pub fn message(
    filesystem: &impl Filesystem,
    destroy: impl FnOnce(),
    message: &[u8],
    form: Form,
    responder: &Arc<dyn Responder>,
) {
    match Request::parse(message, form) {
        Ok(request) => self::request(filesystem, destroy, &request, responder),
        Err(error) => {
            tracing::error!(%error, "not understood");
            let Some(header) = request::header(message) else { return };
            if !matches!(header.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::NOTIFY_REPLY) {
                Reply::new(header.unique, Arc::clone(responder)).error(Errno::INVAL);
            }
        }
    }
}

/// Serves one request.
pub fn request(
    filesystem: &impl Filesystem,
    destroy: impl FnOnce(),
    request: &Request<'_>,
    responder: &Arc<dyn Responder>,
) {
    let fs = filesystem;
    let caller = &request.caller();
    let node = request.nodeid;
    let reply = || Reply::new(request.unique, Arc::clone(responder));
    match &request.op {
        Operation::Lookup { name } => fs.lookup(caller, node, name, ReplyEntry::new(reply())),
        Operation::Forget(forgets) => fs.forget(forgets),
        Operation::GetAttr { handle } => fs.getattr(caller, node, *handle, ReplyAttr::new(reply())),
        Operation::SetAttr(change) => fs.setattr(caller, node, change, ReplyAttr::new(reply())),
        Operation::ReadLink => fs.readlink(caller, node, ReplyData::new(reply(), LINK_LIMIT)),
        Operation::SymLink { name, target } => fs.symlink(caller, node, name, target, ReplyEntry::new(reply())),
        Operation::MkNod(what) => fs.mknod(caller, node, what, ReplyEntry::new(reply())),
        Operation::MkDir { name, mode, umask } => {
            fs.mkdir(caller, node, name, *mode, *umask, ReplyEntry::new(reply()));
        }
        Operation::Unlink { name } => fs.unlink(caller, node, name, ReplyEmpty::new(reply())),
        Operation::RmDir { name } => fs.rmdir(caller, node, name, ReplyEmpty::new(reply())),
        Operation::Rename(what) => fs.rename(caller, node, what, ReplyEmpty::new(reply())),
        Operation::Link { node: old, name } => fs.link(caller, *old, node, name, ReplyEntry::new(reply())),
        Operation::Open(how) => fs.open(caller, node, how, ReplyOpen::new(reply())),
        Operation::Read(what) => fs.read(caller, node, what, ReplyData::new(reply(), what.size as usize)),
        Operation::Write(what) => fs.write(caller, node, what, ReplyWrite::new(reply())),
        Operation::StatFs => fs.statfs(caller, node, ReplyStatFs::new(reply())),
        Operation::Release(what) => fs.release(caller, node, what, ReplyEmpty::new(reply())),
        Operation::Fsync { handle, data_only } => {
            fs.fsync(caller, node, *handle, *data_only, ReplyEmpty::new(reply()));
        }
        Operation::SetXattr(what) => fs.setxattr(caller, node, what, ReplyEmpty::new(reply())),
        Operation::GetXattr { name, size } => fs.getxattr(caller, node, name, ReplyXattr::new(reply(), *size)),
        Operation::ListXattr { size } => fs.listxattr(caller, node, ReplyXattr::new(reply(), *size)),
        Operation::RemoveXattr { name } => fs.removexattr(caller, node, name, ReplyEmpty::new(reply())),
        Operation::Flush { handle, lock_owner } => {
            fs.flush(caller, node, *handle, *lock_owner, ReplyEmpty::new(reply()));
        }
        // A second INIT on a running session.
        Operation::Init(_) => reply().error(Errno::PROTO),
        Operation::OpenDir(how) => fs.opendir(caller, node, how, ReplyOpen::new(reply())),
        Operation::ReadDir(what) => fs.readdir(caller, node, what, ReplyDirectory::new(reply(), what.size)),
        Operation::ReadDirPlus(what) => {
            fs.readdirplus(caller, node, what, ReplyDirectoryPlus::new(reply(), what.size));
        }
        Operation::ReleaseDir(what) => fs.releasedir(caller, node, what, ReplyEmpty::new(reply())),
        Operation::FsyncDir { handle, data_only } => {
            fs.fsyncdir(caller, node, *handle, *data_only, ReplyEmpty::new(reply()));
        }
        Operation::Access { mask } => fs.access(caller, node, *mask, ReplyEmpty::new(reply())),
        Operation::Create(what) => fs.create(caller, node, what, ReplyCreate::new(reply())),
        Operation::Interrupt { unique } => {
            if let Err(errno) = fs.interrupt(*unique) {
                reply().error(errno);
            }
        }
        Operation::Destroy => {
            let reply = ReplyEmpty::new(reply());
            destroy();
            reply.ok();
        }
        Operation::Ioctl(what) => fs.ioctl(caller, node, what, ReplyIoctl::new(reply(), what.reply_size)),
        Operation::Fallocate(what) => fs.fallocate(caller, node, what, ReplyEmpty::new(reply())),
        Operation::Lseek(what) => fs.lseek(caller, node, what, ReplyLseek::new(reply())),
        Operation::CopyFileRange(what) => fs.copy_file_range(caller, node, what, ReplyCopy::new(reply(), what.wide)),
        Operation::SyncFs => fs.syncfs(caller, node, ReplyEmpty::new(reply())),
        Operation::TmpFile(what) => fs.tmpfile(caller, node, what, ReplyCreate::new(reply())),
        Operation::Statx { handle, flags, mask } => {
            fs.statx(caller, node, *handle, *flags, *mask, ReplyStatx::new(reply()));
        }
        Operation::NotifyReply => {}
        Operation::Unknown { opcode } => {
            tracing::debug!(opcode, "not served");
            reply().error(Errno::NOSYS);
        }
    }
}
