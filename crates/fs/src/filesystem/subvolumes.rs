//! Subvolumes and snapshots.

use ubtrfs_format::items::Timespec;
use ubtrfs_format::{Generation, TreeId};

use super::Filesystem;
use crate::error::Result;
use crate::inode::InodeId;
use crate::ops::{NewInode, SubvolumeInfo};
use crate::subvolume_changes::Received;

impl Filesystem {
    /// Makes an empty subvolume with an entry `name` in `dir`, whose root directory has these
    /// permissions and this owner and group. It is durable when this returns. Errors are those of
    /// mkdir(2).
    pub fn create_subvolume(&self, dir: InodeId, name: &[u8], mode: u32, owner: (u32, u32)) -> Result<TreeId> {
        let root = NewInode { mode, uid: owner.0, gid: owner.1, ..NewInode::default() };
        self.ops.create_subvolume(dir, name, &root)
    }

    /// The same, with xattrs of the root directory, which it has from the beginning.
    pub fn create_subvolume_with(&self, dir: InodeId, name: &[u8], root: &NewInode) -> Result<TreeId> {
        self.ops.create_subvolume(dir, name, root)
    }

    /// Makes a snapshot of the subvolume `source`, with an entry `name` in `dir`. It holds all that
    /// was done before the call, and is durable when this returns. Subvolumes inside the source are
    /// empty directories in it.
    pub fn snapshot(&self, source: TreeId, dir: InodeId, name: &[u8], read_only: bool) -> Result<TreeId> {
        self.ops.snapshot(source, dir, name, read_only)
    }

    /// Deletes a subvolume by its entry, with all that is in it. Its space comes back in the
    /// background; the deletion is durable after the next commit. `EINVAL` for what is no
    /// subvolume, `EPERM` for the default subvolume, `EBUSY` for the one that is mounted
    /// (unless [more is shown](Self::show_whole)), `ENOTEMPTY` for one in which there are others.
    pub fn delete_subvolume(&self, dir: InodeId, name: &[u8]) -> Result<TreeId> {
        self.ops.delete_subvolume(dir, name, None)
    }

    /// The same, of the subvolume `id` alone: `EAGAIN` if the name refers to another one. For
    /// callers who have looked at it before.
    pub fn delete_subvolume_if(&self, dir: InodeId, name: &[u8], id: TreeId) -> Result<TreeId> {
        self.ops.delete_subvolume(dir, name, Some(id))
    }

    /// Puts a writable snapshot of the subvolume `source` in place of the subvolume that the entry
    /// `name` of `dir` refers to, in one step, which is durable when this returns: the name refers
    /// to the old one or to the new one at any time, and after any crash. What refers to inodes of
    /// the old one is `ESTALE` from then on, and its space comes back in the background. If it was
    /// the default subvolume, the new one is. Returns the number of the new one.
    ///
    /// `EINVAL` for what is no subvolume, and for `source` itself; `EROFS` if the old one is
    /// read-only, `EBUSY` for the one that is mounted (unless [more is shown](Self::show_whole)),
    /// `ENOTEMPTY` for one in which there are others.
    pub fn reset_subvolume(&self, dir: InodeId, name: &[u8], source: TreeId) -> Result<TreeId> {
        self.ops.reset_subvolume(dir, name, None, source)
    }

    /// The same, if the name refers to the subvolume `id`: `EAGAIN` if it refers to another one.
    pub fn reset_subvolume_if(&self, dir: InodeId, name: &[u8], id: TreeId, source: TreeId) -> Result<TreeId> {
        self.ops.reset_subvolume(dir, name, Some(id), source)
    }

    /// Makes a subvolume read-only or writable. Durable when this returns.
    pub fn set_subvolume_read_only(&self, id: TreeId, read_only: bool) -> Result<()> {
        self.ops.set_subvolume_read_only(id, read_only)
    }

    /// Notes of a subvolume what it was received from, and when, as a program does that has
    /// applied a stream to it. Durable when this returns. Returns the transaction and the time.
    /// `EROFS` if the subvolume is read-only already.
    pub fn set_received(&self, id: TreeId, received: &Received) -> Result<(Generation, Timespec)> {
        self.ops.set_received(id, received)
    }

    /// The subvolume that is mounted if none is asked for, as of the last commit.
    pub fn default_subvolume(&self) -> Result<TreeId> {
        self.info.committed().default_subvolume()
    }

    /// Changes [`Self::default_subvolume`]. Durable when this returns.
    pub fn set_default_subvolume(&self, id: TreeId) -> Result<()> {
        self.ops.set_default_subvolume(id)
    }

    /// What is known of a subvolume, as of the last commit.
    pub fn subvolume_info(&self, id: TreeId) -> Result<SubvolumeInfo> {
        self.ops.subvolume_info(id)
    }

    /// The subvolumes that there are, by number.
    pub fn subvolumes(&self) -> Vec<TreeId> {
        self.ops.subvolumes()
    }

    /// Subvolumes that were deleted and still take space. Those that can't be dropped, because a
    /// block of theirs can't be read, stay among them until the next mount tries again
    /// ([`Stats::subvolumes_undropped`](crate::Stats::subvolumes_undropped)).
    pub fn deleted_subvolumes(&self) -> Vec<TreeId> {
        self.ops.deleted_subvolumes()
    }

    /// Commits if the tree of roots lacks what was deleted or has got another name: for programs
    /// that list subvolumes by [`search_tree`](Self::search_tree).
    pub fn commit_subvolume_entries(&self) -> Result<()> {
        self.ops.commit_subvolume_entries()
    }

    /// Makes all changes up to those of this generation durable.
    pub fn wait_for_generation(&self, generation: Generation) -> Result<()> {
        self.committer.commit_through(generation)
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::{Ino, TreeId};

    use crate::{Errno, Filesystem, NewInode, Options};

    #[test]
    fn a_subvolume_beyond_the_last_number_is_refused_and_leaves_nothing() {
        let device = crate::filesystem::new_volume();
        let open = || Filesystem::open_devices(vec![device.clone()], Options::default()).unwrap();
        let fs = open();
        let last = TreeId(Ino::LAST_FREE.0);
        fs.info.subvolumes.give_ids_from(last);
        assert_eq!(fs.create_subvolume(fs.root(), b"last", 0o755, (0, 0)).unwrap(), last);
        let ask = |fs: &Filesystem| {
            [
                fs.create_subvolume(fs.root(), b"one more", 0o755, (0, 0)),
                fs.snapshot(TreeId::FS, fs.root(), b"one more", false),
                fs.reset_subvolume(fs.root(), b"last", TreeId::FS),
            ]
            .map(|refused| refused.unwrap_err().errno())
        };
        assert_eq!(ask(&fs), [Errno::NOSPC; 3]);
        fs.close().unwrap();
        drop(fs);
        // The numbers that are given go on behind those that are there.
        let fs = open();
        assert_eq!(ask(&fs), [Errno::NOSPC; 3]);
        fs.create(fs.root(), b"one more", &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
        assert!(fs.lookup(fs.root(), b"last").is_ok_and(|id| id.subvolume == last));
        fs.close().unwrap();
        assert_eq!(fs.abort_reason(), None);
    }
}
