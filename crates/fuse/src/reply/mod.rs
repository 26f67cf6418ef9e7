//! The objects by which requests are answered.
//!
//! Each method of [`Filesystem`](crate::Filesystem) gets one of these objects and owns it: it may
//! answer before it returns, or move the object elsewhere and answer later, from any thread. An
//! object that is dropped unanswered answers EIO, so that no caller waits forever.

mod directory;
mod file_reads;
mod route;
mod waits;

use std::io::IoSlice;
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::IntoBytes;

pub use directory::{ReplyDirectory, ReplyDirectoryPlus};
pub use file_reads::{FileRead, FileReads};
pub(crate) use route::{Reply, Responder};
pub(crate) use waits::{Waiter, Waits};

use crate::abi::flags::OpenFlags;
use crate::abi::messages as m;
use crate::attributes::{Attributes, Entry, StatFs, Statx};

macro_rules! replies {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* })*) => {
        $($(#[$doc])*
        #[derive(Debug)]
        #[must_use = "a reply that is dropped answers EIO"]
        pub struct $name {
            reply: Reply,
            $($field: $kind,)*
        }

        impl $name {
            pub(crate) fn new(reply: Reply $(, $field: $kind)*) -> Self {
                Self { reply $(, $field)* }
            }

            /// Answers with an error. ENOSYS lasts: the kernel sends most kinds of requests never
            /// again on this mount after it.
            pub fn error(self, errno: Errno) {
                self.reply.error(errno);
            }
        })*
    };
}

replies! {
    /// Success or failure, nothing else.
    ReplyEmpty {}
    /// The inode that a name refers to.
    ReplyEntry {}
    /// Attributes.
    ReplyAttr {}
    /// Attributes, and those that only statx(2) shows.
    ReplyStatx {}
    /// An opened file or directory.
    ReplyOpen {}
    /// A new file, opened.
    ReplyCreate {}
    /// Bytes of a file, or the target of a symbolic link.
    ReplyData { limit: usize }
    /// How much was written.
    ReplyWrite {}
    /// How much was copied.
    ReplyCopy { wide: bool }
    /// The size of the filesystem.
    ReplyStatFs {}
    /// A value or a list of extended attributes.
    ReplyXattr { room: u32 }
    /// A position.
    ReplyLseek {}
    /// What ioctl(2) returns.
    ReplyIoctl { room: u32 }
}

impl ReplyEmpty {
    /// Answers that the operation has succeeded.
    pub fn ok(self) {
        self.reply.send(&[]);
    }
}

impl ReplyEntry {
    /// Answers with the entry. The kernel counts one more lookup of the node.
    pub fn entry(self, entry: &Entry) {
        self.reply.send(&[entry.to_abi().as_bytes()]);
    }

    /// Answers that there is no such name, which the kernel may remember for `ttl` (LOOKUP only).
    /// It doesn't remember ENOENT.
    pub fn negative(self, ttl: Duration) {
        self.reply.send(&[Entry::negative(ttl).as_bytes()]);
    }
}

impl ReplyAttr {
    /// The attributes, which the kernel may keep for `ttl`.
    pub fn attributes(self, attributes: &Attributes, ttl: Duration) {
        self.reply.send(&[attributes.to_reply(ttl).as_bytes()]);
    }
}

impl ReplyStatx {
    /// The attributes, which the kernel may keep for `ttl`.
    pub fn statx(self, statx: &Statx, ttl: Duration) {
        self.reply.send(&[statx.to_reply(ttl).as_bytes()]);
    }
}

impl ReplyOpen {
    /// Answers that it is open. Requests on it will carry `handle`.
    pub fn opened(self, handle: u64, flags: OpenFlags) {
        self.reply.send(&[open_out(handle, flags).as_bytes()]);
    }
}

impl ReplyCreate {
    /// Answers that the file is created and open. The kernel counts one more lookup of the node.
    pub fn created(self, entry: &Entry, handle: u64, flags: OpenFlags) {
        self.reply.send(&[entry.to_abi().as_bytes(), open_out(handle, flags).as_bytes()]);
    }
}

fn open_out(handle: u64, flags: OpenFlags) -> m::OpenOut {
    m::OpenOut { fh: handle, open_flags: flags.bits(), backing_id: 0 }
}

impl ReplyData {
    /// How many bytes may go back.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Answers with the bytes; those beyond [`limit`](Self::limit) are left out. Fewer bytes than
    /// requested mean the end of the file.
    pub fn data(self, data: &[u8]) {
        let data = data.get(..self.limit).unwrap_or(data);
        self.reply.send(&[data]);
    }

    /// Like [`data`](Self::data), from several slices without copying them together first.
    pub fn gather(self, parts: &[&[u8]]) {
        let mut left = self.limit;
        let slices: Vec<IoSlice<'_>> = parts
            .iter()
            .map(|part| {
                let part = part.get(..left).unwrap_or(part);
                left -= part.len();
                IoSlice::new(part)
            })
            .collect();
        self.reply.send_slices(&slices);
    }

    /// Lets `fill` write into a buffer of [`limit`](Self::limit) bytes, which has old content, and
    /// sends as many bytes as it returns. The buffer is the transport's own where it has one, so
    /// this copies least.
    pub fn fill(self, fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>) {
        self.reply.fill(self.limit, fill);
    }

    /// Returns whether [`read_files`](Self::read_files) may be called, since the transport reads
    /// files by itself. It does so only during the [attempt](crate::Filesystem::try_nonblocking) to
    /// serve a request of a ring without blocking.
    pub fn can_read_files(&self) -> bool {
        self.reply.can_read_files()
    }

    /// Lets `begin` write what it has of the answer into a buffer, as [`fill`](Self::fill) does,
    /// and return what is still to be read from files into it. The calling thread does not wait for
    /// these reads.
    pub fn read_files(self, begin: impl FnOnce(&mut [u8]) -> Result<FileReads, Errno>) {
        self.reply.read_files(self.limit, begin);
    }
}

impl ReplyWrite {
    /// Answers how many bytes were written.
    pub fn written(self, bytes: u32) {
        self.reply.send(&[m::WriteOut { size: bytes, padding: 0 }.as_bytes()]);
    }
}

impl ReplyCopy {
    /// Answers how many bytes were copied.
    pub fn copied(self, bytes: u64) {
        if self.wide {
            self.reply.send(&[m::CopyFileRangeOut { bytes_copied: bytes }.as_bytes()]);
        } else {
            let size = u32::try_from(bytes).unwrap_or(u32::MAX);
            self.reply.send(&[m::WriteOut { size, padding: 0 }.as_bytes()]);
        }
    }
}

impl ReplyStatFs {
    /// The numbers.
    pub fn statfs(self, statfs: &StatFs) {
        self.reply.send(&[statfs.to_abi().as_bytes()]);
    }
}

impl ReplyXattr {
    /// Room for the value; zero if only its length is requested.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Answers with the value (or the list of names, each with a NUL), with its length if only that
    /// was requested, or with ERANGE if there is too little room.
    pub fn value(self, value: &[u8]) {
        if self.room == 0 {
            self.length(value.len());
        } else if value.len() > self.room as usize {
            self.reply.error(Errno::RANGE);
        } else {
            self.reply.send(&[value]);
        }
    }

    /// Answers a request with no [`room`](Self::room) with the value's length, and others with
    /// ERANGE.
    pub fn length(self, length: usize) {
        match u32::try_from(length) {
            Ok(size) if self.room == 0 => self.reply.send(&[m::GetxattrOut { size, padding: 0 }.as_bytes()]),
            _ => self.reply.error(Errno::RANGE),
        }
    }
}

macro_rules! waiting {
    ($($name:ident as $who:ident)*) => {
        $(impl $name {
            /// Returns whether the answer may wait for other requests, as
            /// [`inval_inode`](crate::Notifier::inval_inode) may. If not, it must be given at once:
            /// too many answers wait already, and the requests that they wait for could not arrive.
            pub fn may_wait(&mut self) -> bool {
                self.reply.may_wait(Waiter::$who)
            }
        })*
    };
}

waiting! {
    ReplyLseek as Lseek
    ReplyIoctl as Ioctl
}

impl ReplyLseek {
    /// The position that was found.
    pub fn offset(self, offset: u64) {
        self.reply.send(&[m::LseekOut { offset }.as_bytes()]);
    }
}

impl ReplyIoctl {
    /// How many bytes may go back to the program.
    pub fn room(&self) -> u32 {
        self.room
    }

    /// Answers with what ioctl(2) returns, and with the data that it copies to where its argument
    /// points. If `data` is longer than [`room`](Self::room), this answers EINVAL.
    pub fn result(self, result: i32, data: &[u8]) {
        if data.len() > self.room as usize {
            return self.reply.error(Errno::INVAL);
        }
        self.reply.send(&[m::IoctlOut { result, ..Default::default() }.as_bytes(), data]);
    }
}

#[cfg(test)]
mod tests;
