//! Knows which files the kernel may have pages of, and has it write these back.
//!
//! Each write(2) is sent to the server at once, so only stores to mappings make pages dirty. The
//! kernel does not tell the server about these, nor about open(2) and mmap(2). But it has got each
//! page of a file by a READ, also where the file has a hole, or has kept it from a WRITE.
//!
//! The engine notes these inodes beside the references to them (`InodeTable`): the note ends when
//! the kernel forgets the inode, and takes no memory of its own. Files that were only looked up, by
//! `ls` or `find`, have no note, so that a snapshot of their subvolume need not read their
//! attributes, which may take a read from the device for each.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use ubtrfs_format::TreeId;
use ubtrfs_format::items::FileType;
use ubtrfs_fuse::{Errno, kernel_pages};

use crate::shared::Shared;

impl Shared {
    /// Notes that the kernel may have pages of the file from now on. Called before it gets the
    /// answer to the READ or WRITE.
    pub(crate) fn note_pages(&self, node: u64) {
        if let Ok(id) = self.inode(node) {
            self.engine().references().note_pages(id);
        }
    }

    /// Has the kernel write back the dirty pages of all files that it has some of, in any process's
    /// mapping, and drop them. Counts the files in `done`. Threads that serve requests must not
    /// call this.
    ///
    /// Directories are left out: a process that lists one may lock its pages without a limit.
    pub fn take_pages(&self, done: &AtomicU64) {
        for node in self.regular_files() {
            self.invalidate_pages(node);
            done.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The nodes of the regular files that the kernel may have pages of, in the order of the trees.
    pub(crate) fn regular_files(&self) -> impl Iterator<Item = u64> {
        self.engine()
            .references()
            .with_pages()
            .into_iter()
            .filter(|id| self.engine().inodes().attributes(*id).is_ok_and(|of| of.file_type == FileType::Regular))
            .map(|id| self.numbers.node(id))
    }

    /// Has the kernel write back the dirty pages of a subvolume's files, and drop them. Threads
    /// that serve requests must not call this.
    pub(crate) fn take_pages_of(&self, subvolume: TreeId) {
        for (node, _) in self.files_of(subvolume) {
            self.invalidate_pages(node);
        }
    }

    /// The node and generation of each such file in a subvolume.
    fn files_of(&self, subvolume: TreeId) -> impl Iterator<Item = (u64, u64)> {
        let with_pages =
            self.engine().references().with_pages().into_iter().filter(move |id| id.subvolume == subvolume);
        with_pages.filter_map(|id| {
            let is = self.engine().inodes().attributes(id).ok().filter(|is| is.file_type == FileType::Regular)?;
            Some((self.numbers.node(id), is.generation.0))
        })
    }

    /// Has the kernel write back the dirty pages of a subvolume's files. It keeps them, if `open`,
    /// a directory of the mount, may be used to open files by their handles. Otherwise it drops
    /// them, too. Threads that serve requests must not call this.
    pub(crate) fn write_pages_of(&self, subvolume: TreeId, open: impl AsFd) {
        let mut open = kernel_pages::reopen(open).ok().filter(|_| kernel_pages::waits_for_writeback());
        for (node, generation) in self.files_of(subvolume) {
            let written = open.as_ref().map(|open| kernel_pages::write_back(open, node, generation));
            match written {
                Some(Ok(())) => continue,
                Some(Err(Errno::PERM)) => open = None,
                _ => {}
            }
            self.invalidate_pages(node);
        }
    }
}
