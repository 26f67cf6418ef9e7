//! Names: looking up, listing, creating, linking, renaming.

use std::collections::BTreeMap;

use ubtrfs_format::{DirIndex, Ino, TreeId};

use super::Filesystem;
use crate::error::Result;
use crate::inode::InodeId;
use crate::names::DirectoryEntry;
use crate::ops::{NewInode, RenameFlags};

impl Filesystem {
    /// The parent of a directory: the inode that `..` refers to. The root of the mounted subvolume
    /// is its own parent.
    pub fn parent(&self, dir: InodeId) -> Result<InodeId> {
        self.parent_within(self.root().subvolume, dir)
    }

    /// The same where more is shown than the mounted subvolume: the root of `shown` is its own
    /// parent. That of another subvolume's root is the directory with its entry.
    pub fn parent_within(&self, shown: TreeId, dir: InodeId) -> Result<InodeId> {
        if dir == InodeId::root_of(shown) { Ok(dir) } else { self.names.parent(dir) }
    }

    /// The name that paths of an inode show, and its directory in the same subvolume: the oldest
    /// name in the directory with the highest number. Of a root directory it is `..` in itself.
    /// `ENOENT` if there is none, or the subvolume was deleted.
    pub fn shown_name(&self, id: InodeId) -> Result<(Ino, Vec<u8>)> {
        self.ops.shown_name(id)
    }

    /// The highest entry number of a directory now: a listing that starts now stops there, so that
    /// entries that are renamed during it don't appear again and again.
    pub fn last_index(&self, dir: InodeId) -> Result<DirIndex> {
        self.names.last_index(dir)
    }

    /// Begins a listing that is read in several calls, and records where it ends: at the current
    /// [`Self::last_index`].
    pub fn begin_listing(&self, dir: InodeId) -> Result<DirIndex> {
        self.names.begin_listing(dir)
    }

    /// Where the listing ends that was begun last: for one that can't remember its own end. So a
    /// later beginning moves the end of such ones further out, and none loses a name.
    pub fn listing_end(&self, dir: InodeId) -> Result<DirIndex> {
        self.names.listing_end(dir)
    }

    /// A listing has been read to its end. Returns whether all listings that may be in progress
    /// show the same names, since none has changed since they began. If not, a listing that is
    /// assembled from several has names that are gone, or lacks some, until
    /// [`Self::forget_listings`].
    pub fn is_listing_whole(&self, dir: InodeId) -> Result<bool> {
        self.names.is_listing_whole(dir)
    }

    /// All cached parts of earlier listings have been dropped.
    pub fn forget_listings(&self, dir: InodeId) -> Result<()> {
        self.names.forget_listings(dir)
    }

    /// What a new inode of a directory is, as the kernel has it: the directory's default ACL
    /// decides on its mode and ACLs, or else the umask on its mode.
    pub fn inheriting(&self, dir: InodeId, new: NewInode, umask: u32) -> Result<NewInode> {
        self.ops.inheriting(dir, new, umask)
    }

    /// What the root directory of a new subvolume in a directory is, as the kernel has it: a
    /// default ACL of the directory limits its mode, beside the umask, and is not handed down; and
    /// a property is that of the subvolume that the directory is in. `owner` is its user and group.
    pub fn inheriting_root(&self, dir: InodeId, owner: (u32, u32), umask: u32) -> Result<NewInode> {
        let root = NewInode { uid: owner.0, gid: owner.1, ..NewInode::default() };
        self.ops.inheriting_root(dir, root, umask)
    }

    /// Makes an inode and its first name. The caller gets a reference to it, as from a lookup.
    pub fn create(&self, dir: InodeId, name: &[u8], new: &NewInode) -> Result<InodeId> {
        self.ops.create(dir, name, new)
    }

    /// Makes a file without a name (`O_TMPFILE`). The caller gets a reference to it; without a
    /// link, the file is deleted with the last reference.
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

    /// Looks a name up. Takes a reference to the inode, which the caller drops with
    /// [`Self::forget`].
    pub fn lookup(&self, dir: InodeId, name: &[u8]) -> Result<InodeId> {
        self.ops.lookup(dir, name)
    }

    /// Looks up an inode that is known by its number alone, as one that a file handle names. Takes
    /// a reference to it, which the caller drops with [`Self::forget`]. `ENOENT` if it is deleted
    /// or has no name: a program that has a nameless file open does not need this, and its forget
    /// may arrive later than this call.
    pub fn lookup_inode(&self, id: InodeId) -> Result<()> {
        self.ops.lookup_inode(id)
    }

    /// Lists entries numbered above `after` and up to `last`, at most `limit` of them, in the order
    /// of their numbers.
    pub fn list(&self, dir: InodeId, after: DirIndex, last: DirIndex, limit: usize) -> Result<Vec<DirectoryEntry>> {
        self.ops.list(dir, after, last, limit)
    }

    /// Says that entries of a directory, as [`Self::list`] returns them, will be looked up: what
    /// that needs is read from devices where reading takes long, at once and in the background.
    pub fn will_look_up(&self, dir: InodeId, entries: &[DirectoryEntry]) {
        // A lookup that needs what can't be read says so.
        let _ = self.names.prefetch(dir, entries);
    }

    /// Adds a reference to an inode, as a lookup does.
    pub fn reference(&self, id: InodeId) {
        self.ops.reference(id);
    }

    /// All inodes that are referenced, in no order.
    pub fn referenced(&self) -> Vec<InodeId> {
        self.info.inodes.referenced()
    }

    /// Notes that the kernel may have pages of a file from now on, until nothing refers to the
    /// inode any more.
    pub fn note_pages(&self, id: InodeId) {
        self.info.inodes.note_pages(id);
    }

    /// All inodes that the kernel may have pages of, by subvolume and number.
    pub fn with_pages(&self) -> Vec<InodeId> {
        self.info.inodes.with_pages()
    }

    /// Names of inodes of a subvolume that are referenced, by directory; of at most `most` inodes,
    /// and of each about so many. Inodes that can't be read are left out.
    pub fn referenced_names(&self, subvolume: TreeId, most: usize) -> BTreeMap<InodeId, Vec<Vec<u8>>> {
        let mut names: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for id in self.info.inodes.referenced_in(subvolume, most) {
            let Ok(inode) = self.info.inode(id) else { continue };
            let found = self.info.view(id, &inode.read()).names(most);
            for (parent, name) in found.into_iter().flatten() {
                names.entry(InodeId::new(subvolume, parent)).or_default().push(name);
            }
        }
        names
    }

    /// Whether this is the root directory of a deleted subvolume.
    pub fn is_deleted_root(&self, dir: InodeId) -> bool {
        self.info.is_deleted_root(dir)
    }

    /// Whether inodes of a subvolume are referenced.
    pub fn is_in_use(&self, subvolume: TreeId) -> bool {
        self.info.inodes.has_references_in(subvolume)
    }

    /// Drops references. With the last one an inode without names is freed; the caller does not
    /// wait for that.
    pub fn forget(&self, id: InodeId, count: u64) {
        self.ops.forget(id, count);
    }

    /// Gives the inode `name` of `dir` the name `new_name` in `new_dir`. What had that name loses
    /// it, or gets the old one.
    ///
    /// The entries of subvolumes can be moved between subvolumes, other entries can't. Until the
    /// next commit no log is written then, since a log can't express it.
    pub fn rename(
        &self,
        dir: InodeId,
        name: &[u8],
        new_dir: InodeId,
        new_name: &[u8],
        flags: RenameFlags,
    ) -> Result<()> {
        self.ops.rename((dir, name), (new_dir, new_name), flags, None)
    }

    /// As [`Self::rename`] without flags, of an inode that the caller knows: `EBUSY` if the old
    /// name is another's by then.
    pub fn rename_inode(&self, id: InodeId, from: (InodeId, &[u8]), to: (InodeId, &[u8])) -> Result<()> {
        self.ops.rename(from, to, RenameFlags::default(), Some(id))
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::Ino;

    use crate::{Errno, Filesystem, NewInode, Options, RenameFlags};

    /// The oldest name of the last directory, of what is committed and of what is not.
    #[test]
    fn the_shown_name_is_the_same_before_and_after_a_commit() {
        let device = crate::filesystem::new_volume();
        let fs = Filesystem::open_devices(vec![device], Options::default()).unwrap();
        let root = fs.root();
        let new = |mode| NewInode { mode, ..NewInode::default() };
        let dir = fs.create(root, b"dir", &new(0o040_755)).unwrap();
        let file = fs.create(root, b"z", &new(0o100_644)).unwrap();
        let shown = |wanted: Option<(Ino, &[u8])>| {
            let wanted = wanted.map(|(dir, name)| (dir, name.to_vec()));
            for _ in 0..2 {
                assert_eq!(fs.shown_name(file).map_err(|error| error.errno()), wanted.clone().ok_or(Errno::NOENT));
                fs.sync().unwrap();
            }
        };
        assert_eq!(fs.shown_name(dir).unwrap(), (root.ino, b"dir".to_vec()));
        assert_eq!(fs.shown_name(root).unwrap(), (root.ino, b"..".to_vec()));
        shown(Some((root.ino, b"z")));
        // A younger name in the same directory, whatever its order.
        fs.link(file, root, b"a").unwrap();
        shown(Some((root.ino, b"z")));
        // Two at once in a directory with a higher number.
        fs.link(file, dir, b"y").unwrap();
        fs.link(file, dir, b"b").unwrap();
        shown(Some((dir.ino, b"y")));
        fs.rename(dir, b"y", dir, b"c", RenameFlags::default()).unwrap();
        shown(Some((dir.ino, b"b")));
        fs.unlink(dir, b"b").unwrap();
        shown(Some((dir.ino, b"c")));
        fs.unlink(dir, b"c").unwrap();
        fs.rename(root, b"z", root, b"x", RenameFlags::default()).unwrap();
        shown(Some((root.ino, b"a")));
        fs.unlink(root, b"a").unwrap();
        shown(Some((root.ino, b"x")));
        fs.unlink(root, b"x").unwrap();
        shown(None);
        fs.forget(file, 1);
        fs.forget(dir, 1);
    }
}
