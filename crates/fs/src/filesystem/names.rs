//! Names: looking up, listing, creating, linking, renaming.

use ubtrfs_format::DirIndex;

use super::Filesystem;
use crate::error::Result;
use crate::inode::InodeId;
use crate::names::DirectoryEntry;
use crate::ops::{NewInode, RenameFlags};

impl Filesystem {
    /// The directory that holds a directory: the inode that `..` refers to. The root of a subvolume
    /// is its own parent, or lies in the directory that holds the subvolume's entry.
    pub fn parent(&self, dir: InodeId) -> Result<InodeId> {
        self.names.parent(dir)
    }

    /// The highest entry number of a directory now: a listing that starts now stops there, so that
    /// entries renamed while it goes on don't come up again and again.
    pub fn last_index(&self, dir: InodeId) -> Result<DirIndex> {
        self.names.last_index(dir)
    }

    /// Begins a listing that comes piece by piece, and remembers where it ends: at
    /// [`Self::last_index`] of now. A later beginning moves the end of those that go on: further
    /// out, so none loses a name.
    pub fn begin_listing(&self, dir: InodeId) -> Result<DirIndex> {
        self.names.begin_listing(dir)
    }

    /// Where the listing ends that was begun last.
    pub fn listing_end(&self, dir: InodeId) -> Result<DirIndex> {
        self.names.listing_end(dir)
    }

    /// A listing has been read to its end. Whether all that may be under way show the same names:
    /// none has changed since they began. If not, whoever joins what was read of several shows
    /// names that are gone, or lacks some, until [`Self::forget_listings`].
    pub fn is_listing_whole(&self, dir: InodeId) -> Result<bool> {
        self.names.is_listing_whole(dir)
    }

    /// Nobody has anything any more of what was listed so far.
    pub fn forget_listings(&self, dir: InodeId) -> Result<()> {
        self.names.forget_listings(dir)
    }

    /// Makes an inode and its first name. The caller gets a reference to it, as from a lookup.
    pub fn create(&self, dir: InodeId, name: &[u8], new: &NewInode) -> Result<InodeId> {
        self.ops.create(dir, name, new)
    }

    /// Makes a file without a name (`O_TMPFILE`). The caller gets a reference to it; without a link
    /// by then, the file goes with the last reference.
    pub fn create_unnamed(&self, dir: InodeId, new: &NewInode) -> Result<InodeId> {
        self.ops.create_unnamed(dir, new)
    }

    /// Gives an inode another name.
    pub fn link(&self, id: InodeId, dir: InodeId, name: &[u8]) -> Result<()> {
        self.ops.link(id, dir, name)
    }

    /// Removes a name of something that is not a directory.
    pub fn unlink(&self, dir: InodeId, name: &[u8]) -> Result<()> {
        self.ops.unlink(dir, name)
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, dir: InodeId, name: &[u8]) -> Result<()> {
        self.ops.rmdir(dir, name)
    }

    /// Looks a name up. Takes a reference to the inode, which the caller gives back with
    /// [`Self::forget`].
    pub fn lookup(&self, dir: InodeId, name: &[u8]) -> Result<InodeId> {
        self.ops.lookup(dir, name)
    }

    /// Looks up an inode that is known by its number alone, as one that a file handle names. Takes
    /// a reference to it, which the caller gives back with [`Self::forget`]. `ENOENT` if it is gone
    /// or has no name: whoever has a file without one open does not have to ask, and that it was
    /// forgotten may be told later than this is asked.
    pub fn lookup_inode(&self, id: InodeId) -> Result<()> {
        self.ops.lookup_inode(id)
    }

    /// Lists entries numbered above `after` and up to `last`, at most `limit` of them, in the order
    /// of their numbers.
    pub fn list(&self, dir: InodeId, after: DirIndex, last: DirIndex, limit: usize) -> Result<Vec<DirectoryEntry>> {
        self.ops.list(dir, after, last, limit)
    }

    /// Adds a reference to an inode, as a lookup does.
    pub fn reference(&self, id: InodeId) {
        self.ops.reference(id);
    }

    /// All inodes that are referenced, in no order.
    pub fn referenced(&self) -> Vec<InodeId> {
        self.info.inodes.referenced()
    }

    /// Gives references back. With the last one an inode without names goes; the caller does not
    /// wait for that.
    pub fn forget(&self, id: InodeId, count: u64) {
        self.ops.forget(id, count);
    }

    /// Gives the inode `name` of `dir` the name `new_name` in `new_dir`. What had that name loses
    /// it, or gets the old one.
    ///
    /// The entries of subvolumes can be moved between subvolumes, all else can't. Until the next
    /// commit no log is written then, as a log can't tell of it.
    pub fn rename(
        &self,
        dir: InodeId,
        name: &[u8],
        new_dir: InodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.ops.rename(dir, name, new_dir, new_name, flags)
    }
}
