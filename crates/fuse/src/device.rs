//! The transport over `/dev/fuse`: one message per read, one reply per write.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::ioctl::{Setter, ioctl, opcode};
use zerocopy::IntoBytes;

use crate::abi::OUT_HEADER;
use crate::abi::messages::OutHeader;
use crate::reply::Responder;

/// `FUSE_DEV_IOC_CLONE`: makes a freshly opened device one more queue of a mount.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);
/// Replies up to this length are put together on the stack and written at once.
const SHORT: usize = 512;
/// The most parts that one write takes.
const MAX_PARTS: usize = 1024;

/// An open `/dev/fuse`, which belongs to a mount once that is mounted.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
}

impl Device {
    /// Opens `/dev/fuse`.
    pub fn open() -> io::Result<Self> {
        let file: File = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        Ok(Self { fd: file.into() })
    }

    /// A device that is connected to no kernel, for tests.
    #[cfg(test)]
    #[allow(clippy::unwrap_used, reason = "a test fails by it")]
    pub(crate) fn unconnected() -> Arc<Self> {
        Arc::new(Self { fd: File::open("/dev/null").unwrap().into() })
    }

    /// Opens one more queue of the same mount, for another thread. Requests must be answered on the
    /// queue that delivered them.
    pub fn another(&self) -> io::Result<Self> {
        let new = Self::open()?;
        // SAFETY: the command reads one u32, the number of an open descriptor, and changes no
        // memory.
        unsafe { ioctl(&new.fd, Setter::<CLONE, u32>::new(self.fd.as_raw_fd() as u32))? };
        Ok(new)
    }

    /// Returns whether the device belongs to a mount.
    pub(crate) fn is_mounted(&self) -> io::Result<bool> {
        let mut poll = [PollFd::new(&self.fd, PollFlags::IN)];
        rustix::event::poll(&mut poll, Some(&Timespec::default()))?;
        Ok(!poll[0].revents().contains(PollFlags::ERR))
    }

    /// Waits for a message, reads it into `buffer`, and returns its length. Returns `None` once the
    /// filesystem is unmounted or aborted.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(0) | Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(None),
                Ok(length) => return Ok(Some(length)),
                // ENOENT: the request was withdrawn while it was being read.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Writes one message: a reply, or a notification (with `unique` zero, and its code as
    /// `error`).
    pub(crate) fn write(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let length = OUT_HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        let len = u32::try_from(length).map_err(|_| Errno::MSGSIZE)?;
        let header = OutHeader { len, error, unique };
        let header = header.as_bytes();
        if length <= SHORT {
            let mut message = [0; SHORT];
            let mut at = 0;
            for part in std::iter::once(header).chain(parts.iter().map(|part| &**part)) {
                message[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            rustix::io::write(&self.fd, &message[..length])?;
        } else if let [part] = parts {
            rustix::io::writev(&self.fd, &[IoSlice::new(header), IoSlice::new(part)])?;
        } else if parts.len() < MAX_PARTS {
            let all: Vec<_> = std::iter::once(IoSlice::new(header)).chain(parts.iter().copied()).collect();
            rustix::io::writev(&self.fd, &all)?;
        } else {
            let all: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
            rustix::io::writev(&self.fd, &[IoSlice::new(header), IoSlice::new(&all)])?;
        }
        Ok(())
    }
}

impl From<OwnedFd> for Device {
    fn from(fd: OwnedFd) -> Self {
        Self { fd }
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Responder for Device {
    fn send(&self, unique: u64, error: i32, parts: &[IoSlice<'_>]) {
        match self.write(unique, error, parts) {
            // No process waits for the answer any more.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(errno) => {
                tracing::error!(request = unique, %errno, "the kernel refused a reply");
                // The caller would wait forever.
                let _ = self.write(unique, -Errno::IO.raw_os_error(), &[]);
            }
        }
    }
}

/// Returns the device as the route by which replies go back.
pub(crate) fn responder(device: &Arc<Device>) -> Arc<dyn Responder> {
    Arc::clone(device) as Arc<dyn Responder>
}
