//! Decides which requests a ring's thread may serve.
//!
//! A ring's thread must not block, since every request of its processor would wait with it. It
//! tries requests that usually need only memory, and in this thread the engine fails with `EAGAIN`
//! rather than wait for a device, a commit or the inactivator; a thread that may block then serves
//! the request again. Requests that are known to block, or to take long, are not tried.

use ubtrfs_fuse::{Operation, Request};

use crate::control;
use crate::server::Server;

/// Longer writes are not tried, in bytes: another thread copies their data.
const MAX_WRITE: usize = 256 << 10;
/// Longer reads are not tried either, in bytes.
const MAX_READ: u32 = 1 << 20;

impl Server {
    /// Returns whether it is worth trying to serve a request in non-blocking mode.
    pub(crate) fn is_quick(&self, request: &Request<'_>) -> bool {
        let node = request.nodeid;
        match &request.op {
            // Directories are rarely locked for long; a lookup in memory takes no time.
            Operation::Lookup { .. }
            | Operation::Open(_)
            | Operation::Release(_)
            | Operation::Flush { .. }
            | Operation::OpenDir(_)
            | Operation::StatFs
            | Operation::Ioctl(_)
            | Operation::Access { .. } => true,
            Operation::GetXattr { name, .. } => !name.starts_with(control::NAMESPACE) && !self.is_busy(node, false),
            Operation::GetAttr { .. }
            | Operation::Statx { .. }
            | Operation::ReadLink
            | Operation::ListXattr { .. }
            | Operation::ReadDir(_)
            | Operation::ReadDirPlus(_) => !self.is_busy(node, false),
            Operation::SymLink { .. }
            | Operation::MkNod(_)
            | Operation::MkDir { .. }
            | Operation::Create(_)
            | Operation::TmpFile(_)
            | Operation::Unlink { .. }
            | Operation::RmDir { .. }
            | Operation::Rename(_)
            | Operation::SetXattr(_)
            | Operation::RemoveXattr { .. } => !self.is_busy(node, true),
            Operation::Link { node: old, .. } => !self.is_busy(*old, true) && !self.is_busy(node, true),
            // Truncating a file to a size other than zero has to examine everything beyond that
            // size.
            Operation::SetAttr(change) => matches!(change.size, None | Some(0)) && !self.is_busy(node, true),
            Operation::Fsync { .. } | Operation::FsyncDir { .. } => {
                let shared = self.shared();
                shared.inode(node).is_ok_and(|id| shared.engine().durability().is_fsync_short(id))
            }
            Operation::Write(what) => what.data.len() <= MAX_WRITE && !self.is_busy(node, true),
            Operation::CopyFileRange(what) => {
                let shared = self.shared();
                let ends = shared.inode(node).and_then(|source| Ok((source, shared.inode(what.node_out)?)));
                ends.is_ok_and(|(source, target)| shared.engine().files().is_clone_short(source, target))
            }
            // The ring's thread reads the device without waiting for it.
            Operation::Read(what) => what.size <= MAX_READ && !self.is_busy(node, false),
            _ => false,
        }
    }

    fn is_busy(&self, node: u64, to_change: bool) -> bool {
        let shared = self.shared();
        shared.inode(node).is_ok_and(|id| shared.engine().references().is_busy(id, to_change))
    }
}
