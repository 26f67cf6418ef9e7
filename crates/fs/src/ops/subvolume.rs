//! Creates subvolumes and snapshots, deletes them, and changes their properties.
//!
//! A subvolume is created by the commit of the transaction in which it is requested: that
//! transaction contains all that a snapshot holds. The call returns when this is durable, and until
//! then the directory keeps the name free. A deletion removes the entry and marks the root item, in
//! one transaction. Programs that have files of the subvolume open go on, and the tree is dropped
//! in the background after that.

use std::sync::Arc;

use ubtrfs_format::items::{InodeFlags, RootFlags, Timespec};
use ubtrfs_format::posix::S_IFDIR;
use ubtrfs_format::{Generation, ItemType, Key, TreeId, Uuid};

use super::LockedInodes;
use super::checks::{check_mutable, check_name, check_real, check_removable_from};
use super::create::{NewInode, remove_entry};
use super::entries::name_demand;
use super::operations::SubvolumeOperations;
use crate::committed::Committed;
use crate::error::{Errno, Result};
use crate::faults::CommitFault;
use crate::fs_info::FsInfo;
use crate::inode::{InodeId, Name};
use crate::item_sizes::{INODE_ITEM, xattr_item};
use crate::subvolume_changes::{NewContent, NewSubvolume};
use crate::subvolume_entries::EntryLocation;
use crate::transaction::Transaction;
use crate::tree_roots::TreeRoot;
use ubtrfs_space::{Demand, UseOfGlobalReserve};

/// Bytes of a root item, of the references in both directions and of the UUID item, without the
/// name.
const ROOT_ITEMS: u64 = 464 + 2 * 43 + 33;

/// Bytes of a key pointer to a child.
const CHILD_POINTER: u64 = 33;
/// Upper bound of the bytes of an item that refers to a tree block or to data.
const TREE_REFERENCE: u64 = 53;

/// Flags that the root directory of a new subvolume inherits, together with xattrs, from the root
/// directory of the subvolume in which it is created.
const INHERITED: u64 = InodeFlags::NOCOMPRESS | InodeFlags::COMPRESS;

/// The properties of a subvolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubvolumeInfo {
    /// Its id.
    pub id: TreeId,
    /// The directory and the name of its entry; `None` for the top level.
    pub entry: Option<(InodeId, Vec<u8>)>,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Its UUID.
    pub uuid: Uuid,
    /// The UUID of the subvolume that it is a snapshot of.
    pub parent_uuid: Uuid,
    /// The UUID of the subvolume that it was received from.
    pub received_uuid: Uuid,
    /// The transaction that last changed its tree.
    pub generation: Generation,
    /// Transactions of the last change, creation, send and receipt.
    pub transids: [u64; 4],
    /// Times of the last change, creation, send and receipt.
    pub times: [Timespec; 4],
    /// Flags of the root item.
    pub flags: u64,
    /// Bytes of its tree's blocks, including shared ones.
    pub bytes_used: u64,
}

impl SubvolumeOperations {
    /// Makes all changes up to those of this generation durable.
    pub fn wait_for_generation(&self, generation: Generation) -> Result<()> {
        self.committer.commit_through(generation)
    }

    /// Returns the subvolume that is mounted by default, as of the last commit.
    pub fn default_subvolume(&self) -> Result<TreeId> {
        self.info.committed().default_subvolume()
    }

    /// Deletes a subvolume by its entry, with all that is in it. The deletion is durable after the
    /// next commit, and the space is freed in the background. `EINVAL` if the entry is not a
    /// subvolume, `EPERM` for the default subvolume, `EBUSY` for the mounted one (unless [more is
    /// shown](crate::Filesystem::show_whole)), `ENOTEMPTY` if it contains others.
    pub fn delete_subvolume(&self, dir: InodeId, name: &[u8]) -> Result<TreeId> {
        self.delete_expected(dir, name, None)
    }

    /// Does the same if the name refers to the subvolume `id`, for callers that have looked it up
    /// before. `EAGAIN` if the name refers to another one.
    pub fn delete_subvolume_if(&self, dir: InodeId, name: &[u8], id: TreeId) -> Result<TreeId> {
        self.delete_expected(dir, name, Some(id))
    }

    /// Deletes a subvolume by its entry. The space is freed in the background, when there are no
    /// more references to inodes of it. `EPERM` for the default subvolume, `ENOTEMPTY` if it
    /// contains others, `EINVAL` if the entry is not a subvolume, `EAGAIN` if it is not the
    /// `expected` one.
    pub(super) fn delete_expected(&self, dir: InodeId, name: &[u8], expected: Option<TreeId>) -> Result<TreeId> {
        self.info.check_writable(dir.subvolume)?;
        let demand = Demand { global_reserve: UseOfGlobalReserve::All, ..name_demand(name) };
        let id = self.reserver.with_reserved(demand, || self.delete_reserved(dir, name, expected, false))?;
        self.references.release_if_unused(id);
        Ok(id)
    }

    /// Creates an empty subvolume with an entry `name` in `dir`. Its root directory has these
    /// permissions and this owner and group. It is durable when this returns. Errors are those of
    /// mkdir(2).
    pub fn create_subvolume(&self, dir: InodeId, name: &[u8], mode: u32, owner: (u32, u32)) -> Result<TreeId> {
        let root = NewInode { mode, uid: owner.0, gid: owner.1, ..NewInode::default() };
        self.create_subvolume_with(dir, name, &root)
    }

    /// Does the same, and creates the root directory with xattrs. As with the kernel's driver, the
    /// root directory inherits neither the directory's group nor its flags.
    pub fn create_subvolume_with(&self, dir: InodeId, name: &[u8], root: &NewInode) -> Result<TreeId> {
        let flags = if root.xattrs.is_empty() {
            0
        } else {
            self.info.inode(InodeId::root_of(dir.subvolume))?.read().item.flags & INHERITED
        };
        let content = NewContent::Empty { mode: S_IFDIR | (root.mode & 0o7777), uid: root.uid, gid: root.gid, flags };
        self.make_subvolume(dir, name, content, &root.xattrs, false)
    }

    /// Creates a snapshot of the subvolume `source`, with an entry `name` in `dir`. It contains all
    /// changes made before the call, and is durable when this returns. Subvolumes inside the source
    /// appear in it as empty directories.
    pub fn snapshot(&self, source: TreeId, dir: InodeId, name: &[u8], read_only: bool) -> Result<TreeId> {
        self.check_subvolume(source)?;
        let id = self.make_subvolume(dir, name, NewContent::Snapshot(source), &[], read_only)?;
        self.inactivator.free_orphans_of(id);
        Ok(id)
    }

    pub(super) fn check_subvolume(&self, id: TreeId) -> Result<()> {
        let is_there = self.info.committed().has_subvolume(id) && !self.info.is_deleted(id);
        if is_there && !self.info.subvolume(id)?.is_replaced() { Ok(()) } else { Err(Errno::NOENT.into()) }
    }

    fn make_subvolume(
        &self,
        dir: InodeId,
        name: &[u8],
        content: NewContent,
        xattrs: &[(Vec<u8>, Vec<u8>)],
        read_only: bool,
    ) -> Result<TreeId> {
        check_name(name)?;
        check_real(dir).map_err(|_| Errno::PERM)?;
        self.info.check_writable(dir.subvolume)?;
        let xattr_bytes: u64 = xattrs.iter().map(|(name, value)| xattr_item(name, value.len())).sum();
        let demand = self.subvolume_demand(name, content)?;
        let demand = Demand { item_bytes: demand.item_bytes + xattr_bytes, ..demand };
        let (id, generation) = self.reserver.with_reserved(demand, || {
            // Neither the source nor the subvolume of the directory is deleted meanwhile.
            let _no_deletion = self.entries.lock_renames()?;
            if let NewContent::Snapshot(source) = content {
                self.check_subvolume(source)?;
            }
            let parent = self.info.inode(dir)?;
            self.check_subvolume(dir.subvolume)?;
            self.info.check_writable(dir.subvolume)?;
            let mut state = parent.write();
            self.entries.check_can_add(dir, &state, name)?;
            let index = self.names.next_index(dir, &mut state)?;
            let id = self.info.new_tree_id()?;
            let entry = EntryLocation { dir, name: name.into(), index };
            let uuid = self.info.new_uuid(id);
            let new = NewSubvolume {
                id,
                uuid,
                entry,
                replaces: None,
                content,
                xattrs: xattrs.to_vec(),
                read_only,
                time: self.info.now(),
            };
            let transaction = self.info.gate.enter();
            state.join(&parent, &transaction);
            state.reserve_name(name.into());
            transaction.forbid_log();
            transaction.subvolumes().new.push(new);
            Ok((id, transaction.generation))
        })?;
        self.committer.commit_through(generation)?;
        Ok(id)
    }

    /// Returns the reservation for creating a subvolume: its items, the entry, and for a snapshot a
    /// reference to each child of the root node. The root node may get one more child for each
    /// change before the commit.
    pub(super) fn subvolume_demand(&self, name: &[u8], content: NewContent) -> Result<Demand> {
        let node_size = u64::from(self.info.volume.node_size());
        let children = match content {
            NewContent::Empty { .. } => 0,
            NewContent::Snapshot(source) => {
                let changes: u64 = self.info.open_transactions().iter().map(|open| open.changes()).sum();
                let children = self.info.committed().children_of_root(source)?;
                (children + changes).min(node_size / CHILD_POINTER)
            }
        };
        let entry = name_demand(name);
        Ok(Demand {
            edits: entry.edits + 8 + children,
            item_bytes: entry.item_bytes + ROOT_ITEMS + 2 * INODE_ITEM + TREE_REFERENCE * children + 2 * node_size,
            ..Demand::default()
        })
    }

    /// Deletes a subvolume. With `if_empty`, only if its root directory has no entry.
    pub(super) fn delete_reserved(
        &self,
        dir: InodeId,
        name: &[u8],
        expected: Option<TreeId>,
        if_empty: bool,
    ) -> Result<TreeId> {
        // The lock keeps other operations from creating subvolumes in it or moving subvolumes there
        // meanwhile.
        let _no_moves = self.entries.lock_renames()?;
        loop {
            let parent = self.info.inode(dir)?;
            let named = self.entries.find_named(&parent, name)?.ok_or(Errno::NOENT)?;
            if !named.is_subvolume() {
                return Err(Errno::INVAL.into());
            }
            check_removable_from(&parent, &named.inode)?;
            let id = named.inode.id.subvolume;
            if expected.is_some_and(|expected| expected != id) {
                return Err(Errno::AGAIN.into());
            }
            let mut locked = LockedInodes::lock(&[&parent, &named.inode]);
            if if_empty && !locked.get(named.inode.id).is_empty_dir() {
                return Err(Errno::NOTEMPTY.into());
            }
            self.check_deletable(id)?;
            check_mutable(locked.get(dir))?;
            let Some(index) = self.entries.still_named(dir, locked.get(dir), name, &named)? else { continue };
            // An operation that waits for the lock of the subvolume's root directory finds this
            // mark and adds no entry.
            self.info.deleted.add(id);
            let transaction = self.info.gate.enter();
            locked.join_one(dir, &transaction);
            transaction.forbid_log();
            transaction.subvolumes().deleted.push(id);
            let name: Name = name.into();
            remove_entry(locked.get_mut(dir), name, index, named.target, self.info.now());
            return Ok(id);
        }
    }

    /// Fails if a subvolume may not be deleted. The caller holds the rename lock, so that no other
    /// subvolume is added to it.
    fn check_deletable(&self, id: TreeId) -> Result<()> {
        if id == TreeId::FS || self.may_be_default(id)? {
            return Err(Errno::PERM.into());
        }
        self.check_replaceable(id)
    }

    /// Whether a subvolume is the default one once all open transactions are committed.
    pub(super) fn becomes_default(&self, id: TreeId) -> Result<bool> {
        // This is read before the committed trees, which contain every transaction that has left
        // this list.
        let open = self.info.open_transactions();
        let newest = open.iter().filter_map(|open| Some((open.generation, open.subvolumes().default?))).max();
        match newest {
            Some((_, newest)) => Ok(newest == id),
            None => Ok(id == self.info.committed().default_subvolume()?),
        }
    }

    /// Whether a subvolume is the default one, or a change in progress may make it so.
    pub(super) fn may_be_default(&self, id: TreeId) -> Result<bool> {
        // This is read before the committed trees, which contain every transaction that has left
        // this list.
        let open = self.info.open_transactions();
        let becomes_default = |transaction: &Arc<Transaction>| transaction.subvolumes().default == Some(id);
        Ok(id == self.info.committed().default_subvolume()? || open.iter().any(becomes_default))
    }

    /// Fails if a subvolume may not be replaced while its entry stays.
    pub(super) fn check_replaceable(&self, id: TreeId) -> Result<()> {
        // This is read before the committed trees, as above.
        let open = self.info.open_transactions();
        let committed = self.info.committed();
        if self.info.has_to_stay(id) {
            return Err(Errno::BUSY.into());
        }
        let mut inside = children(&committed, id)?;
        for transaction in open {
            let changes = transaction.subvolumes();
            if changes.new.iter().any(|new| new.entry.dir.subvolume == id) {
                return Err(Errno::NOTEMPTY.into());
            }
            inside.extend(changes.moved.keys());
        }
        for child in inside {
            let is_elsewhere = self.names.subvolume_entry(child)?.is_none_or(|entry| entry.dir.subvolume != id);
            if !is_elsewhere && !self.info.is_deleted(child) {
                return Err(Errno::NOTEMPTY.into());
            }
        }
        Ok(())
    }

    /// Makes a subvolume read-only or writable. The change is durable when this returns.
    pub fn set_subvolume_read_only(&self, id: TreeId, read_only: bool) -> Result<()> {
        self.check_subvolume(id)?;
        if self.info.is_read_only() {
            self.info.check_writable(TreeId::FS)?;
        }
        let demand = Demand { edits: 2, item_bytes: ROOT_ITEMS, ..Demand::default() };
        let subvolume = self.info.subvolume(id)?;
        let generation = self.reserver.with_reserved(demand, || {
            let _no_deletion = self.entries.lock_renames()?;
            self.check_subvolume(id)?;
            let transaction = self.info.gate.enter();
            transaction.forbid_log();
            FsInfo::change_read_only(&transaction, id, &subvolume, read_only);
            Ok(transaction.generation)
        })?;
        self.committer.commit_through(generation)?;
        if !read_only {
            if self.info.options.faults().in_commit(CommitFault::ReadOnlyAfterPublish) {
                subvolume.set_read_only(false);
            }
            self.inactivator.free_orphans_of(id);
        }
        Ok(())
    }

    /// Makes a subvolume the default one. The change is durable when this returns.
    pub fn set_default_subvolume(&self, id: TreeId) -> Result<()> {
        self.check_subvolume(id)?;
        self.info.check_writable(TreeId::FS)?;
        let demand = Demand { edits: 2, item_bytes: 100, ..Demand::default() };
        let generation = self.reserver.with_reserved(demand, || {
            let _no_deletion = self.entries.lock_renames()?;
            self.check_subvolume(id)?;
            let transaction = self.info.gate.enter();
            transaction.forbid_log();
            transaction.subvolumes().default = Some(id);
            Ok(transaction.generation)
        })?;
        self.committer.commit_through(generation)
    }

    /// Returns the properties of a subvolume as of the last commit.
    pub fn subvolume_info(&self, id: TreeId) -> Result<SubvolumeInfo> {
        self.check_subvolume(id)?;
        let committed = self.info.committed();
        let tree = committed.trees.get(id).ok_or(Errno::NOENT)?;
        let entry = self.names.subvolume_entry(id)?;
        let entry = entry.map(|entry| (entry.dir, entry.name.to_vec()));
        let TreeRoot { item, .. } = tree;
        Ok(SubvolumeInfo {
            id,
            entry,
            read_only: item.flags & RootFlags::RDONLY != 0,
            uuid: item.uuid,
            parent_uuid: item.parent_uuid,
            received_uuid: item.received_uuid,
            generation: item.generation,
            transids: item.transids,
            times: item.times,
            flags: item.flags,
            bytes_used: item.bytes_used,
        })
    }

    /// Commits if the root tree lacks a deletion or a move of a subvolume, for programs that list
    /// subvolumes by [`search_tree`](crate::Filesystem::search_tree).
    pub fn commit_subvolume_entries(&self) -> Result<()> {
        if self.info.is_read_only() {
            return Ok(());
        }
        let has_entries = |open: &&Arc<Transaction>| {
            let changes = open.subvolumes();
            !changes.deleted.is_empty() || !changes.moved.is_empty()
        };
        let open = self.info.open_transactions();
        let newest = open.iter().filter(has_entries).map(|open| open.generation).max();
        newest.map_or(Ok(()), |generation| self.committer.commit_through(generation))
    }

    /// Returns all subvolumes that are not deleted, by id.
    pub fn ids(&self) -> Vec<TreeId> {
        let committed = self.info.committed();
        let alive = committed.subvolumes().filter(|tree| tree.item.refs > 0).map(TreeRoot::id);
        alive.filter(|id| !self.info.is_deleted(*id)).collect()
    }

    /// Returns subvolumes that were deleted and still take space. These include the ones that can't
    /// be dropped because a block of their trees can't be read, until the next mount tries again
    /// ([`Stats::subvolumes_undropped`](crate::Stats::subvolumes_undropped)).
    pub fn deleted_subvolumes(&self) -> Vec<TreeId> {
        let committed = self.info.committed();
        let dead = |tree: &&TreeRoot| tree.item.refs == 0 || self.info.is_deleted(tree.id());
        committed.subvolumes().filter(dead).map(TreeRoot::id).collect()
    }
}

/// Returns the subvolumes that lie in a subvolume according to the root tree.
fn children(committed: &Arc<Committed>, id: TreeId) -> Result<Vec<TreeId>> {
    let key = |offset| Key::new(id.0, ItemType::ROOT_REF, offset);
    let mut children = Vec::new();
    for item in committed.tree(TreeId::ROOT)?.range(key(0)..=key(u64::MAX)) {
        children.push(TreeId(item?.key.offset));
    }
    Ok(children)
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
        assert_eq!(fs.subvolumes().create_subvolume(fs.root(), b"last", 0o755, (0, 0)).unwrap(), last);
        let ask = |fs: &Filesystem| {
            [
                fs.subvolumes().create_subvolume(fs.root(), b"one more", 0o755, (0, 0)),
                fs.subvolumes().snapshot(TreeId::FS, fs.root(), b"one more", false),
                fs.subvolumes().reset_subvolume(fs.root(), b"last", TreeId::FS),
            ]
            .map(|refused| refused.unwrap_err().errno())
        };
        assert_eq!(ask(&fs), [Errno::NOSPC; 3]);
        fs.close().unwrap();
        drop(fs);
        // New ids continue behind the existing ones.
        let fs = open();
        assert_eq!(ask(&fs), [Errno::NOSPC; 3]);
        fs.directories().create(fs.root(), b"one more", &NewInode { mode: 0o100_644, ..NewInode::default() }).unwrap();
        assert!(fs.directories().lookup(fs.root(), b"last").is_ok_and(|id| id.subvolume == last));
        fs.close().unwrap();
        assert_eq!(fs.abort_reason(), None);
    }
}
