//! Lists directories.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use ubtrfs_format::DirIndex;
use ubtrfs_format::items::FileType;
use ubtrfs_fs::{Attributes, DirectoryEntry, InodeId, Result};

use crate::handle::Handle;

/// How many entries are listed at once.
const BATCH: usize = 256;

/// The entries of a directory without `.` and `..`, in the order in which they were made. An entry
/// that is made or removed meanwhile may or may not be listed; every other one is listed once.
#[derive(Debug)]
pub struct ReadDir {
    dir: Handle,
    /// The last entry of the directory when the listing began.
    end: DirIndex,
    after: DirIndex,
    batch: VecDeque<DirectoryEntry>,
    is_done: bool,
}

impl ReadDir {
    pub(crate) fn new(dir: Handle) -> Result<Self> {
        let end = dir.fs().directories().last_index(dir.id())?;
        Ok(Self { dir, end, after: DirIndex(0), batch: VecDeque::new(), is_done: false })
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.batch.is_empty() && !self.is_done {
            match self.dir.fs().directories().list(self.dir.id(), self.after, self.end, BATCH) {
                Ok(entries) => self.batch = entries.into(),
                Err(error) => {
                    self.is_done = true;
                    return Some(Err(error));
                }
            }
            match self.batch.back() {
                Some(last) => self.after = last.index,
                None => self.is_done = true,
            }
        }
        let entry = self.batch.pop_front()?;
        Some(Ok(DirEntry { dir: self.dir.clone(), entry }))
    }
}

/// An entry of a directory.
#[derive(Debug)]
pub struct DirEntry {
    dir: Handle,
    entry: DirectoryEntry,
}

impl DirEntry {
    /// The name.
    pub fn file_name(&self) -> &OsStr {
        OsStr::from_bytes(&self.entry.name)
    }

    /// The type of the inode that it refers to.
    pub fn file_type(&self) -> FileType {
        self.entry.file_type
    }

    /// The inode that it refers to.
    pub fn id(&self) -> InodeId {
        self.entry.inode
    }

    /// The attributes of the inode that has the name now. A symbolic link is not followed.
    pub fn metadata(&self) -> Result<Attributes> {
        let inode = self.dir.lookup(&self.entry.name)?;
        inode.fs().inodes().attributes(inode.id())
    }
}
