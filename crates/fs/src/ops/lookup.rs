//! Looking names up.

use ubtrfs_format::items;
use ubtrfs_format::{Ino, TreeId};

use super::operations::DirectoryOperations;
use crate::error::{Errno, Error, Result};
use crate::inode::InodeId;

impl DirectoryOperations {
    /// Whether this is the root directory of a deleted subvolume.
    pub fn is_deleted_root(&self, dir: InodeId) -> bool {
        self.info.is_deleted_root(dir)
    }

    /// Returns the parent of a directory, where `shown` is the subvolume whose root directory is
    /// its own parent. The parent of another subvolume's root is the directory that contains its
    /// entry.
    pub fn parent_within(&self, shown: TreeId, dir: InodeId) -> Result<InodeId> {
        if dir == InodeId::root_of(shown) { Ok(dir) } else { self.names.parent(dir) }
    }

    /// Returns the parent of a directory: the inode that `..` refers to. The root of the mounted
    /// subvolume is its own parent.
    pub fn parent(&self, dir: InodeId) -> Result<InodeId> {
        self.parent_within(self.info.root().subvolume, dir)
    }

    /// Looks up a name. Takes a reference to the inode, which the caller drops with
    /// [`References::forget`](crate::References::forget).
    pub fn lookup(&self, dir: InodeId, name: &[u8]) -> Result<InodeId> {
        if name.len() > items::MAX_NAME_LEN {
            return Err(Errno::NAMETOOLONG.into());
        }
        let inode = self.info.inode(dir)?;
        let mut stale = None;
        loop {
            let state = inode.read();
            if !state.is_dir() {
                return Err(Errno::NOTDIR.into());
            }
            let found = self.names.find_entry(dir, &state, name)?.ok_or(Errno::NOENT)?;
            let id = self.names.resolve(&self.info.committed(), dir, name, found.target)?;
            drop(state);
            self.info.inodes.reference(id);
            let alive = if id.subvolume != dir.subvolume && self.info.is_deleted(id.subvolume) {
                Err(Errno::STALE.into())
            } else {
                self.info.inode(id).and_then(|inode| if inode.read().dead { Err(Errno::NOENT.into()) } else { Ok(()) })
            };
            let Err(error) = alive else { return Ok(id) };
            self.references.forget(id, 1);
            // The inode was deleted meanwhile, or a commit has put another subvolume there.
            if error.errno() != Errno::STALE || stale.replace(id) == Some(id) {
                return Err(error);
            }
        }
    }

    /// Looks up an inode by its number alone, as a file handle names it. Takes a reference to it,
    /// which the caller drops with [`References::forget`](crate::References::forget). `ENOENT` if
    /// the inode is deleted or has no name: a program that has a nameless file open does not need
    /// this lookup, and its forget may arrive later than this call. `ESTALE` in a subvolume that
    /// was deleted.
    pub fn lookup_inode(&self, id: InodeId) -> Result<()> {
        self.info.inodes.reference(id);
        let alive = if self.info.is_deleted(id.subvolume) {
            Err(Errno::STALE.into())
        } else {
            self.info.inode(id).map(|inode| {
                let state = inode.read();
                !state.dead && state.item.nlink > 0
            })
        };
        if matches!(alive, Ok(true)) {
            return Ok(());
        }
        self.references.forget(id, 1);
        Err(alive.err().unwrap_or(Errno::NOENT.into()))
    }

    /// Returns the name that paths of an inode show, and its directory in the same subvolume. It is
    /// the oldest name in the directory with the highest number; for a root directory it is `..` in
    /// itself. `ENOENT` if there is none, or the subvolume was deleted.
    pub fn shown_name(&self, id: InodeId) -> Result<(Ino, Vec<u8>)> {
        if self.info.is_deleted(id.subvolume) {
            return Err(Errno::NOENT.into());
        }
        let is_gone = |error: &Error| matches!(error.errno(), Errno::NOENT | Errno::STALE);
        let inode = self.info.inode(id).map_err(|error| if is_gone(&error) { Errno::NOENT.into() } else { error })?;
        let state = inode.read();
        self.info.view(id, &state).shown_name()?.ok_or_else(|| Errno::NOENT.into())
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::Ino;

    use crate::{Errno, Filesystem, NewInode, Options, RenameFlags};

    /// The shown name is the oldest one in the last directory, whether names are committed or not.
    #[test]
    fn the_shown_name_is_the_same_before_and_after_a_commit() {
        let device = crate::filesystem::new_volume();
        let fs = Filesystem::open_devices(vec![device], Options::default()).unwrap();
        let root = fs.root();
        let new = |mode| NewInode { mode, ..NewInode::default() };
        let dir = fs.directories().create(root, b"dir", &new(0o040_755)).unwrap();
        let file = fs.directories().create(root, b"z", &new(0o100_644)).unwrap();
        let shown = |wanted: Option<(Ino, &[u8])>| {
            let wanted = wanted.map(|(dir, name)| (dir, name.to_vec()));
            for _ in 0..2 {
                assert_eq!(
                    fs.directories().shown_name(file).map_err(|error| error.errno()),
                    wanted.clone().ok_or(Errno::NOENT)
                );
                fs.durability().sync().unwrap();
            }
        };
        assert_eq!(fs.directories().shown_name(dir).unwrap(), (root.ino, b"dir".to_vec()));
        assert_eq!(fs.directories().shown_name(root).unwrap(), (root.ino, b"..".to_vec()));
        shown(Some((root.ino, b"z")));
        // A younger name in the same directory, whatever its order.
        fs.directories().link(file, root, b"a").unwrap();
        shown(Some((root.ino, b"z")));
        // Two at once in a directory with a higher number.
        fs.directories().link(file, dir, b"y").unwrap();
        fs.directories().link(file, dir, b"b").unwrap();
        shown(Some((dir.ino, b"y")));
        fs.directories().rename(dir, b"y", dir, b"c", RenameFlags::default()).unwrap();
        shown(Some((dir.ino, b"b")));
        fs.directories().unlink(dir, b"b").unwrap();
        shown(Some((dir.ino, b"c")));
        fs.directories().unlink(dir, b"c").unwrap();
        fs.directories().rename(root, b"z", root, b"x", RenameFlags::default()).unwrap();
        shown(Some((root.ino, b"a")));
        fs.directories().unlink(root, b"a").unwrap();
        shown(Some((root.ino, b"x")));
        fs.directories().unlink(root, b"x").unwrap();
        shown(None);
        fs.references().forget(file, 1);
        fs.references().forget(dir, 1);
    }
}
