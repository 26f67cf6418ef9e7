//! Subvolumes that a commit creates, and its changes of other subvolumes in the root tree.
//!
//! A snapshot is a copy of the root node of its source, once the transaction has been merged into
//! the source; each child of the node gets one more reference. All nodes that were merged until
//! then are sealed. The entries of new subvolumes are merged afterwards, so that a snapshot inside
//! its own source does not contain its own entry; if they change nodes that are shared by then,
//! those are copied as in any later commit. Both root items record this commit as the last
//! snapshot. So a snapshot is complete or absent, and shares nothing that changes (invariant 29).

use std::collections::BTreeMap;

use ubtrfs_format::items::InodeRef;
use ubtrfs_format::items::{
    DirEntry, FileType, InodeFlags, InodeItem, RootFlags, RootItem, Timespec, encode_dir_entry, encode_inode_ref,
};
use ubtrfs_format::{DirIndex, Generation, Ino, ItemType, Key, TreeId, Uuid, name_hash, objectid};
use ubtrfs_tree::{EditBatch, NodeRef, Patch, Reader, Root, WorkingTree, merge};

use super::data_refs::By;
use super::merge_trees::Merging;
use super::uuid_tree::UuidEdits;
use crate::error::{Error, Result};
use crate::faults::CommitFault;
use crate::inode::InodeId;
use crate::subvolume_changes::{NewContent, NewSubvolume, Received, SubvolumeChanges};
use crate::subvolume_entries::{EntryLocation, edits_of_moved};
use crate::tree_roots::TreeRoot;

/// The later of two times.
fn later(one: Timespec, other: Timespec) -> Timespec {
    let order = |time: Timespec| (time.sec.cast_signed(), time.nsec);
    if order(other) > order(one) { other } else { one }
}

/// Removes what a subvolume was received from, since it is no longer as it was received. Returns
/// it.
fn forget_received(item: &mut RootItem) -> Uuid {
    (item.transids[2], item.transids[3]) = (0, 0);
    (item.times[2], item.times[3]) = (Timespec::default(), Timespec::default());
    std::mem::take(&mut item.received_uuid)
}

/// Returns the directory entry of a subvolume.
fn subvolume_entry(id: TreeId, name: &[u8], transid: Generation) -> DirEntry<'_> {
    let location = Key::new(id.0, ItemType::ROOT_ITEM, u64::MAX);
    DirEntry { location, transid, file_type: FileType::Directory, name, value: b"" }
}

impl Merging<'_> {
    /// Makes the transaction's new subvolumes, and carries out its other changes of subvolumes.
    pub(super) fn make_subvolumes(&mut self) -> Result<()> {
        let changes = self.transaction.subvolumes().clone();
        let SubvolumeChanges { new, moved, deleted, read_only, received, default, .. } = changes;
        self.root_edits.append(edits_of_moved(self.committed, &moved)?)?;
        let mut uuids = UuidEdits::new(self.committed, self.committer.info.most_of_item());
        if !new.is_empty() {
            let entries_come_first = self.committer.info.options.faults().in_commit(CommitFault::EntryFirst);
            if entries_come_first {
                self.put_entries(&new)?;
            }
            if new.iter().any(|new| matches!(new.content, NewContent::Snapshot(_))) {
                self.tree.nodes.seal(&mut self.tree.dirty)?;
            }
            for new in &new {
                self.make_subvolume(new)?;
                uuids.add(&new.uuid, new.id);
                let received = self.roots.change(new.id).map_or(Uuid::NIL, |tree| tree.item.received_uuid);
                if received != Uuid::NIL {
                    uuids.add_received(&received, new.id)?;
                }
            }
            if !entries_come_first {
                self.put_entries(&new)?;
            }
        }
        for (id, read_only) in read_only {
            self.set_read_only(id, read_only, &mut uuids)?;
        }
        for (id, (from, time)) in received {
            self.set_received(id, &from, time, &mut uuids)?;
        }
        // Deletions come last, since they remove what the other changes have put into the UUID
        // tree.
        for id in deleted {
            self.delete(id, moved.get(&id), &mut uuids)?;
        }
        if let Some(id) = default {
            self.set_default(id);
        }
        if self.committed.has_tree(TreeId::UUID) {
            self.tree.update(&mut self.roots, TreeId::UUID, &uuids.finish())?;
        }
        Ok(())
    }

    /// Sets or clears the read-only flag of a subvolume. A subvolume that becomes writable is no
    /// longer as it was received.
    fn set_read_only(&mut self, id: TreeId, read_only: bool, uuids: &mut UuidEdits<'_>) -> Result<()> {
        let Some(mut tree) = self.roots.change(id) else { return Ok(()) };
        let item = &mut tree.item;
        if read_only {
            item.flags |= RootFlags::RDONLY;
            return Ok(());
        }
        item.flags &= !RootFlags::RDONLY;
        let received = forget_received(item);
        if received == Uuid::NIL { Ok(()) } else { uuids.remove_received(&received, id) }
    }

    /// Notes what a subvolume was received from.
    fn set_received(&mut self, id: TreeId, from: &Received, time: Timespec, uuids: &mut UuidEdits<'_>) -> Result<()> {
        let generation = self.transaction.generation;
        let Some(mut tree) = self.roots.change(id) else { return Ok(()) };
        let item = &mut tree.item;
        let before = std::mem::replace(&mut item.received_uuid, from.uuid);
        (item.transids[2], item.transids[3]) = (from.transid, generation.0);
        (item.times[2], item.times[3]) = (from.sent, time);
        if before == from.uuid {
            return Ok(());
        }
        if before != Uuid::NIL {
            uuids.remove_received(&before, id)?;
        }
        if from.uuid == Uuid::NIL { Ok(()) } else { uuids.add_received(&from.uuid, id) }
    }

    fn make_subvolume(&mut self, new: &NewSubvolume) -> Result<()> {
        let generation = self.transaction.generation;
        let (mut item, root, key_offset) = match new.content {
            NewContent::Empty { mode, uid, gid, flags } => {
                let root = self.empty_tree(new, (mode, uid, gid, flags))?;
                (self.empty_root_item(new.time), root, 0)
            }
            NewContent::Snapshot(source) => {
                let root = self.copy_root(source, new.id)?;
                (self.snapshot_root_item(source, new)?, root, generation.0)
            }
        };
        item.uuid = new.uuid;
        item.flags = if new.read_only { item.flags | RootFlags::RDONLY } else { item.flags & !RootFlags::RDONLY };
        (item.transids[1], item.times[1]) = (generation.0, new.time);
        let key = Key::new(new.id.0, ItemType::ROOT_ITEM, key_offset);
        self.roots.add(TreeRoot { key, item }, root);
        let reference = new.entry.to_item();
        let (parent, child) = (new.entry.dir.subvolume, new.id);
        self.root_edits.put(Key::new(parent.0, ItemType::ROOT_REF, child.0), reference.clone());
        self.root_edits.put(Key::new(child.0, ItemType::ROOT_BACKREF, parent.0), reference);
        Ok(())
    }

    /// Returns a tree with an empty root directory.
    fn empty_tree(&mut self, new: &NewSubvolume, (mode, uid, gid, flags): (u32, u32, u32, u64)) -> Result<Root> {
        let (generation, time) = (self.transaction.generation, new.time);
        let dir = InodeItem {
            generation,
            transid: generation,
            nlink: 1,
            mode,
            uid,
            gid,
            flags,
            atime: time,
            ctime: time,
            mtime: time,
            otime: time,
            ..InodeItem::default()
        };
        let ino = Ino::ROOT_DIR.0;
        let mut edits = EditBatch::new();
        edits.put(Key::new(ino, ItemType::INODE_ITEM, 0), dir.to_bytes().to_vec());
        let mut name = Vec::new();
        encode_inode_ref(&mut name, InodeRef { index: DirIndex(0), name: b".." });
        edits.put(Key::new(ino, ItemType::INODE_REF, ino), name);
        for (name, value) in &new.xattrs {
            let (name, value) = (name.clone(), value.clone());
            let key = Key::new(ino, ItemType::XATTR_ITEM, name_hash(&name));
            let file_type = FileType::Xattr;
            let patch = Patch::PutEntry { location: Key::default(), transid: generation, file_type, name, value };
            edits.patch(key, patch)?;
        }
        let cache = &self.committer.info.cache;
        let (dirty, nodes) = (&mut self.tree.dirty, &mut self.tree.nodes);
        Ok(merge(cache, None, new.id, &edits, dirty, nodes, Generation(0), &mut |_, _| {})?)
    }

    /// Returns the root item of a new empty subvolume.
    fn empty_root_item(&self, time: Timespec) -> RootItem {
        let node_size = u64::from(self.committed.superblock.node_size);
        RootItem {
            inode: InodeItem {
                generation: Generation(1),
                size: 3,
                nbytes: node_size,
                nlink: 1,
                mode: 0o040_755,
                flags: InodeFlags::ROOT_ITEM_INIT,
                ..InodeItem::default()
            },
            root_dirid: Ino::ROOT_DIR,
            refs: 1,
            transids: [self.transaction.generation.0, 0, 0, 0],
            times: [time, Timespec::default(), Timespec::default(), Timespec::default()],
            ..RootItem::default()
        }
    }

    /// Returns the root item of a snapshot, from that of its source. Both record this commit as
    /// their last snapshot.
    fn snapshot_root_item(&mut self, source: TreeId, new: &NewSubvolume) -> Result<RootItem> {
        let generation = self.transaction.generation;
        let node_size = i64::from(self.committed.superblock.node_size);
        // The snapshot's root node does not count as grown: it corresponds to the one that it was
        // copied from.
        self.tree.nodes.balance.remove(&new.id);
        let grown = self.tree.nodes.balance.get(&source).copied().unwrap_or(0) * node_size;
        let missing = Error::MissingItem { tree: TreeId::ROOT, key: Key::new(source.0, ItemType::ROOT_ITEM, 0) };
        let mut tree = self.roots.change(source).ok_or(missing)?;
        let item = &mut tree.item;
        if !self.committer.info.options.faults().in_commit(CommitFault::ForgetLastSnapshot) {
            item.last_snapshot = generation;
        }
        let mut item = RootItem {
            parent_uuid: item.uuid,
            bytes_used: item.bytes_used.saturating_add_signed(grown),
            drop_progress: Key::default(),
            drop_level: 0,
            ..item.clone()
        };
        if !new.read_only {
            forget_received(&mut item);
        }
        Ok(item)
    }

    /// Copies the root node of a tree for another tree. Each child gets one more reference.
    fn copy_root(&mut self, source: TreeId, copy: TreeId) -> Result<Root> {
        let root = self.roots.get(source)?;
        let block = self.committer.info.cache.fetch(&NodeRef::root(&root))?;
        assert!(
            root.generation < self.transaction.generation || self.tree.dirty.get(root.bytenr).is_none(),
            "invariant 29: a snapshot shares nodes that may still change"
        );
        let bytenr = ubtrfs_tree::NodeAllocator::allocate(&mut self.tree.nodes, copy, root.level)?;
        self.tree.dirty.insert_copy(&block, bytenr, copy)?;
        if !self.committer.info.options.faults().in_commit(CommitFault::ForgetSharedReferences) {
            let refs = self.tree.nodes.block_refs();
            refs.change_children(&block.node()?, root.level, By::Tree(copy), 1)?;
        }
        self.refs.append(self.tree.nodes.take_data_refs());
        Ok(Root { owner: copy, bytenr, generation: self.transaction.generation, level: root.level })
    }

    /// Adds the entries of new subvolumes to their directories.
    fn put_entries(&mut self, new: &[NewSubvolume]) -> Result<()> {
        let mut by_dir: BTreeMap<InodeId, Vec<&NewSubvolume>> = BTreeMap::new();
        for new in new {
            by_dir.entry(new.entry.dir).or_default().push(new);
        }
        let mut edits: BTreeMap<TreeId, EditBatch> = BTreeMap::new();
        for (dir, new) in by_dir {
            self.put_entries_of(dir, &new, edits.entry(dir.subvolume).or_default())?;
        }
        for (subvolume, edits) in edits {
            self.merge_subvolume(subvolume, &edits)?;
        }
        Ok(())
    }

    fn put_entries_of(&mut self, dir: InodeId, new: &[&NewSubvolume], edits: &mut EditBatch) -> Result<()> {
        let generation = self.transaction.generation;
        let added = new.iter().filter(|new| new.replaces.is_none());
        let bytes: u64 = added.map(|new| 2 * new.entry.name.len() as u64).sum();
        let Some(time) = new.iter().map(|new| new.time).reduce(later) else { return Ok(()) };
        let root = self.roots.get(dir.subvolume)?;
        let key = Key::new(dir.ino.0, ItemType::INODE_ITEM, 0);
        let item = {
            let tree = WorkingTree::new(&self.committer.info.cache, &self.tree.dirty, root);
            tree.get(&key)?.ok_or(Error::MissingItem { tree: dir.subvolume, key })?
        };
        let item = InodeItem::parse(&item)?;
        let item = InodeItem {
            size: item.size.saturating_add(bytes),
            ctime: later(item.ctime, time),
            mtime: later(item.mtime, time),
            sequence: item.sequence.wrapping_add(1),
            transid: generation,
            ..item
        };
        edits.put(key, item.to_bytes().to_vec());
        for NewSubvolume { id, entry: EntryLocation { name, index, .. }, .. } in new {
            let entry = subvolume_entry(*id, name, generation);
            let DirEntry { location, transid, file_type, .. } = entry;
            let patch = Patch::PutEntry { location, transid, file_type, name: name.to_vec(), value: Vec::new() };
            edits.patch(Key::new(dir.ino.0, ItemType::DIR_ITEM, name_hash(name)), patch)?;
            let mut listed = Vec::new();
            encode_dir_entry(&mut listed, &entry);
            edits.put(Key::new(dir.ino.0, ItemType::DIR_INDEX, index.0), listed);
        }
        let inode = self.committer.info.inode(dir)?;
        let mut state = inode.write();
        state.item.size = state.item.size.saturating_add(bytes);
        // The directory may have changed since the operation was called.
        let (mtime, ctime) = (later(state.item.mtime, time), later(state.item.ctime, time));
        state.content_changed(mtime);
        state.item.ctime = ctime;
        Ok(())
    }

    /// Marks a subvolume as deleted. Only an orphan item points to it from then on, by which the
    /// next mount, ours or the kernel's, drops its tree.
    fn delete(&mut self, id: TreeId, moved: Option<&EntryLocation>, uuids: &mut UuidEdits<'_>) -> Result<()> {
        let committed = EntryLocation::committed(self.committed, id)?;
        for entry in [committed.as_ref(), moved].into_iter().flatten() {
            let parent = entry.dir.subvolume;
            self.root_edits.delete(Key::new(parent.0, ItemType::ROOT_REF, id.0));
            self.root_edits.delete(Key::new(id.0, ItemType::ROOT_BACKREF, parent.0));
        }
        let Some(mut tree) = self.roots.change(id) else { return Ok(()) };
        let item = &mut tree.item;
        item.refs = 0;
        item.flags |= RootFlags::DEAD;
        (item.drop_progress, item.drop_level) = (Key::default(), 0);
        let (uuid, received) = (item.uuid, item.received_uuid);
        uuids.remove(&uuid);
        if received != Uuid::NIL {
            uuids.remove_received(&received, id)?;
        }
        self.root_edits.put(Key::new(objectid::ORPHAN, ItemType::ORPHAN_ITEM, id.0), Vec::new());
        Ok(())
    }

    /// Makes the entry `default` of the root tree's directory point to a subvolume.
    fn set_default(&mut self, id: TreeId) {
        let dir = self.committed.superblock.root_dir_objectid;
        let name = b"default";
        let mut item = Vec::new();
        encode_dir_entry(&mut item, &subvolume_entry(id, name, self.transaction.generation));
        self.root_edits.put(Key::new(dir, ItemType::DIR_ITEM, name_hash(name)), item);
        self.roots.has_default_subvolume = true;
    }
}
