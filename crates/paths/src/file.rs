//! Open files.

use std::io;

use ubtrfs_fs::{Attributes, Errno, InodeId, Result, SetAttributes, WriteAt};

use crate::handle::Handle;
use crate::open_options::OpenOptions;

/// How many bytes are read or written at once.
const MAX_AT_ONCE: usize = 1 << 20;

/// An open file, like [`std::fs::File`]. The inode exists until this is dropped, with or without a
/// name.
///
/// Written data is kept in memory and visible to everybody at once. [`sync_all`](Self::sync_all) or
/// the next commit makes it durable. Dropping the file writes nothing and loses nothing;
/// [`close`](Self::close) does the same and reports whether the file system has failed meanwhile.
#[derive(Debug)]
pub struct File {
    inode: Handle,
    is_readable: bool,
    is_writable: bool,
    appends: bool,
    /// The offset at which [`io::Read`] and [`io::Write`] continue.
    position: u64,
}

impl File {
    pub(crate) fn new(inode: Handle, how: &OpenOptions) -> Self {
        Self { inode, is_readable: how.read, is_writable: how.may_write(), appends: how.append, position: 0 }
    }

    /// The inode, for operations of [`Filesystem`](ubtrfs_fs::Filesystem) that take inodes: xattrs,
    /// flags, holes, reflinks. It is valid as long as the file is open.
    pub fn id(&self) -> InodeId {
        self.inode.id()
    }

    /// Reads into `buf` from an offset on, and returns how many bytes were read: fewer than
    /// requested at the end of the file, or for a long read.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        if !self.is_readable {
            return Err(Errno::BADF.into());
        }
        let len = buf.len().min(MAX_AT_ONCE);
        self.inode.fs().files().read_into(self.id(), offset, &mut buf[..len])
    }

    /// Reads all bytes from an offset on.
    pub fn read_from(&self, mut offset: u64) -> Result<Vec<u8>> {
        if !self.is_readable {
            return Err(Errno::BADF.into());
        }
        let mut all = Vec::new();
        loop {
            let part = self.inode.fs().files().read(self.id(), offset, MAX_AT_ONCE)?;
            if part.is_empty() {
                return Ok(all);
            }
            offset += part.len() as u64;
            all.extend(part);
        }
    }

    /// Writes at an offset (or at the end, if the file was opened to append), and returns how many
    /// bytes were written, which for a long write is not all. Clears set-id bits and capabilities.
    ///
    /// With the flag of `chattr +S`, the write is durable when this returns.
    pub fn write_at(&self, data: &[u8], offset: u64) -> Result<usize> {
        if !self.is_writable {
            return Err(Errno::BADF.into());
        }
        let fs = self.inode.fs();
        let at = if self.appends { WriteAt::End } else { WriteAt::Offset(offset) };
        let written = fs.files().write(self.id(), at, &data[..data.len().min(MAX_AT_ONCE)], true)?;
        if fs.inodes().is_synchronous(self.id()) {
            fs.durability().fsync(self.id())?;
        }
        Ok(written)
    }

    /// Writes all bytes at an offset (or at the end, if the file was opened to append). If this
    /// fails, some may have been written.
    pub fn write_all_at(&self, mut data: &[u8], mut offset: u64) -> Result<()> {
        while !data.is_empty() {
            let written = self.write_at(data, offset)?;
            data = &data[written..];
            offset += written as u64;
        }
        Ok(())
    }

    /// Truncates the file to so many bytes, or extends it to them with a hole.
    pub fn set_len(&self, len: u64) -> Result<()> {
        if !self.is_writable {
            return Err(Errno::BADF.into());
        }
        let size = SetAttributes { size: Some(len), kill_privileges: true, ..SetAttributes::default() };
        self.inode.fs().inodes().set_attributes(self.id(), &size).map(drop)
    }

    /// The file's attributes.
    pub fn metadata(&self) -> Result<Attributes> {
        self.inode.fs().inodes().attributes(self.id())
    }

    /// Makes the file durable (fsync): content, attributes, and the names that refer to it.
    pub fn sync_all(&self) -> Result<()> {
        self.inode.fs().durability().fsync(self.id())
    }

    /// Makes the file durable except for its times (fdatasync).
    pub fn sync_data(&self) -> Result<()> {
        self.inode.fs().durability().fdatasync(self.id())
    }

    /// Closes the file, which makes nothing durable. Returns an error if the file system has turned
    /// read-only after an error: then data that was written and not fsynced may be lost.
    pub fn close(self) -> Result<()> {
        self.inode.fs().check_aborted()
    }
}

impl io::Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.read_at(buf, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl io::Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        let written = self.write_at(data, self.position)?;
        self.position = if self.appends { self.metadata()?.size } else { self.position + written as u64 };
        Ok(written)
    }

    /// Does nothing: written data is visible already, and [`File::sync_all`] makes it durable.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for File {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let position = match to {
            io::SeekFrom::Start(position) => Some(position),
            io::SeekFrom::Current(by) => self.position.checked_add_signed(by),
            io::SeekFrom::End(by) => self.metadata()?.size.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}
