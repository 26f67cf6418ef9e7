//! Messages to the kernel that answer no request.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::flags::EXPIRE_ONLY;
use crate::abi::messages::{DeleteOut, InvalEntryOut, InvalInodeOut, RetrieveOut};
use crate::abi::opcode::notify;
use crate::arrivals::Arrivals;
use crate::device::Device;

/// Invalidates caches of the kernel. Cheap to clone; any thread may use it.
///
/// It is no error if nothing is cached. In the kernel, the calls that name an entry take the lock
/// of its directory: a thread that is serving a request on that directory, or for which such a
/// request waits, must not make them, or both wait forever. The same holds for the data of an inode
/// and a thread that serves a READ of it.
#[derive(Debug, Clone)]
pub struct Notifier {
    /// The connection ends with the session, however long this lives.
    device: Weak<Device>,
    /// Keeps track of requests over `/dev/fuse`. `None` if requests arrive over rings.
    arrivals: Option<Arc<Arrivals>>,
    most_in_background: u64,
}

impl Notifier {
    pub(crate) fn new(device: &Arc<Device>, arrivals: Option<Arc<Arrivals>>, most_in_background: u16) -> Self {
        Self { device: Arc::downgrade(device), arrivals, most_in_background: most_in_background.into() }
    }

    /// A duplicate of the connection's `/dev/fuse`, with which root mounts the same file system
    /// once more (see [`Detached::of_connection`](crate::mount::Detached::of_connection)). It keeps
    /// the connection from ending with its server, so it is to be closed soon. `None` once the
    /// session has ended.
    pub fn connection(&self) -> Option<OwnedFd> {
        self.device.upgrade()?.as_fd().try_clone_to_owned().ok()
    }

    /// Waits until all dirty pages that the kernel takes for written have been written: before
    /// Linux 6.16 their WRITEs may not even have arrived. Threads that serve requests must not call
    /// this. Over rings it waits for nothing, since no marker is queued behind the requests of all
    /// rings. `files` finds regular files that the kernel may know; it is called if the file that
    /// was written last is not known.
    pub fn settle<I: IntoIterator<Item = u64>>(&self, files: impl Fn() -> I) -> Result<(), Errno> {
        let Some(arrivals) = &self.arrivals else { return Ok(()) };
        arrivals.settle(self.most_in_background, |number| {
            if let Some(node) = arrivals.remembered()
                && self.mark(node, number)?
            {
                return Ok(true);
            }
            for node in files() {
                if self.mark(node, number)? {
                    arrivals.remember(node);
                    return Ok(true);
                }
            }
            // Without a file there is no dirty page.
            Ok(false)
        })
    }

    /// Has the kernel queue the answer to a RETRIEVE of zero bytes, which is the marker of that
    /// number. Returns whether the kernel knows the file.
    fn mark(&self, node: u64, number: u64) -> Result<bool, Errno> {
        let out = RetrieveOut { notify_unique: number, nodeid: node, ..RetrieveOut::default() };
        let device = self.device.upgrade().ok_or(Errno::NODEV)?;
        match device.write(0, notify::RETRIEVE, &[IoSlice::new(out.as_bytes())]) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::INVAL) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Invalidates the attributes and cached data of `node`: `length` bytes from `offset` on (zero:
    /// to the end).
    pub fn inval_inode(&self, node: u64, offset: u64, length: u64) -> Result<(), Errno> {
        let out = InvalInodeOut {
            ino: node,
            off: i64::try_from(offset).map_err(|_| Errno::INVAL)?,
            len: i64::try_from(length).map_err(|_| Errno::INVAL)?,
        };
        self.send(notify::INVAL_INODE, &[out.as_bytes()])
    }

    /// Invalidates the attributes of `node`, but not its data.
    pub fn inval_attributes(&self, node: u64) -> Result<(), Errno> {
        let out = InvalInodeOut { ino: node, off: -1, len: 0 };
        self.send(notify::INVAL_INODE, &[out.as_bytes()])
    }

    /// Invalidates the cached entry of `name` in `parent`, also a negative one, and the attributes
    /// of `parent`.
    pub fn inval_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.entry(parent, name, 0)
    }

    /// Like [`inval_entry`](Self::inval_entry), but mounts and open files below stay: the name is
    /// only looked up again.
    pub fn expire_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        self.entry(parent, name, EXPIRE_ONLY)
    }

    /// Tells the kernel that the entry `name` of `child` in `parent` was deleted.
    pub fn delete(&self, parent: u64, child: u64, name: &[u8]) -> Result<(), Errno> {
        let out = DeleteOut { parent, child, namelen: name.len() as u32, padding: 0 };
        self.send(notify::DELETE, &[out.as_bytes(), name, &[0]])
    }

    /// Invalidates all cached names (kernels of FUSE 7.44 and later; EINVAL before).
    pub fn inval_all_entries(&self) -> Result<(), Errno> {
        self.send(notify::INC_EPOCH, &[])
    }

    fn entry(&self, parent: u64, name: &[u8], flags: u32) -> Result<(), Errno> {
        let out = InvalEntryOut { parent, namelen: name.len() as u32, flags };
        self.send(notify::INVAL_ENTRY, &[out.as_bytes(), name, &[0]])
    }

    fn send(&self, code: i32, parts: &[&[u8]]) -> Result<(), Errno> {
        let parts: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let device = self.device.upgrade().ok_or(Errno::NODEV)?;
        match device.write(0, code, &parts) {
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }
}
