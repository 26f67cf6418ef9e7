//! New inodes: files, directories, nodes, symlinks, unnamed files.

use std::sync::Arc;

use ubtrfs_file::{InlinePiece, Piece};
use ubtrfs_format::items::{FileType, InodeFlags, InodeItem, Timespec};
use ubtrfs_format::posix::{S_IFCHR, S_ISGID};
use ubtrfs_format::{DirIndex, ItemType, Key};

use super::checks::{check_mutable, check_name, check_real};
use super::flags::SETTABLE_FLAGS;
use super::operations::DirectoryOperations;
use crate::error::{Errno, Result};
use crate::inode::{Inode, InodeId, InodeState, Name, OrphanEdit, Target};
use crate::item_sizes::{INLINE_EXTENT_ITEM, INODE_ITEM, ORPHAN_ITEM, name_items, xattr_item};
use crate::transaction::Transaction;
use ubtrfs_space::Demand;

/// The attributes of an inode to be created.
#[derive(Clone, Debug, Default)]
pub struct NewInode {
    /// Type and permissions.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group. It is ignored if the directory has the set-group-id bit: the inode gets the
    /// directory's group.
    pub gid: u32,
    /// Device number of device nodes.
    pub rdev: u64,
    /// The target of a symlink.
    pub symlink_target: Vec<u8>,
    /// Its first xattrs, such as an inherited ACL.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// The flags of a regular file or directory, instead of those that it would get from its
    /// directory and the mount. Allowed are the [`SETTABLE_FLAGS`] and `NODATASUM`.
    pub flags: Option<u64>,
}

/// Flags that new inodes inherit from their directory.
const INHERITED: u64 = InodeFlags::NODATACOW | InodeFlags::NODATASUM | InodeFlags::NOCOMPRESS | InodeFlags::COMPRESS;

impl DirectoryOperations {
    /// Creates an inode with its first name. The caller gets a reference to it, as from a lookup.
    pub fn create(&self, dir: InodeId, name: &[u8], new: &NewInode) -> Result<InodeId> {
        check_name(name)?;
        let is_regular = FileType::from_mode(new.mode) == FileType::Regular;
        check_real(dir).map_err(|_| if is_regular { Errno::ACCESS } else { Errno::PERM })?;
        let subvolume = self.info.check_writable(dir.subvolume)?;
        let new = &*self.inodes.with_property(dir, new)?;
        self.check_new_inode(new)?;
        let _reservation = self.reserver.reserve(creation_demand(name, new, self.has_joined(dir)?))?;
        let parent = self.info.inode(dir)?;
        let mut parent_state = parent.write();
        self.entries.check_can_add(dir, &parent_state, name)?;
        let index = self.names.next_index(dir, &mut parent_state)?;
        let id = InodeId::new(dir.subvolume, subvolume.new_ino()?);
        let time = self.info.now();
        let child_state = self.new_state(&parent_state, new, time);
        let file_type = child_state.file_type();
        let child = Arc::new(Inode::new(id, child_state));
        {
            let mut child_state = child.write();
            // The inode is in the table before a commit has its item, so that a lookup by number
            // finds it there.
            self.info.inodes.reference(id);
            self.info.inodes.insert_new(&child);
            let transaction = self.info.gate.enter();
            parent_state.join(&parent, &transaction);
            self.be_born(&child, &mut child_state, new, &transaction);
            let name: Name = name.into();
            child_state.pending.add_ref(dir.ino, name.clone(), index);
            add_entry(&mut parent_state, name, index, inode_target(id, file_type), time);
        }
        Ok(id)
    }

    /// Creates a file without a name (`O_TMPFILE`). The caller gets a reference to it. Unless the
    /// file gets a link, it is deleted with the last reference.
    pub fn create_unnamed(&self, dir: InodeId, new: &NewInode) -> Result<InodeId> {
        check_real(dir).map_err(|_| Errno::OPNOTSUPP)?;
        let subvolume = self.info.check_writable(dir.subvolume)?;
        let new = &*self.inodes.with_property(dir, new)?;
        self.check_new_inode(new)?;
        let _reservation = self.reserver.reserve(creation_demand(b"", new, true))?;
        let parent = self.info.inode(dir)?;
        let parent_state = parent.read();
        if !parent_state.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        check_mutable(&parent_state)?;
        let id = InodeId::new(dir.subvolume, subvolume.new_ino()?);
        let mut state = self.new_state(&parent_state, new, self.info.now());
        state.item.nlink = 0;
        let child = Arc::new(Inode::new(id, state));
        let mut child_state = child.write();
        // The inode is in the table before a commit has its item. The code that frees the orphans
        // that a crash left finds it there, and so knows that it is not one of them.
        self.info.inodes.reference(id);
        self.info.inodes.insert_new(&child);
        let transaction = self.info.gate.enter();
        self.be_born(&child, &mut child_state, new, &transaction);
        child_state.pending.orphan = OrphanEdit::Add;
        Ok(id)
    }

    fn check_new_inode(&self, new: &NewInode) -> Result<()> {
        self.room.check_symlink_fits(&new.symlink_target)?;
        self.room.check_first_xattrs_fit(&new.xattrs)?;
        if FileType::from_mode(new.mode) == FileType::Symlink && new.symlink_target.is_empty() {
            return Err(Errno::NOENT.into());
        }
        Ok(())
    }

    fn new_state(&self, parent: &InodeState, new: &NewInode, time: Timespec) -> InodeState {
        let file_type = FileType::from_mode(new.mode);
        let inherits_group = parent.item.mode & S_ISGID != 0;
        let mut flags = parent.item.flags & INHERITED;
        if !matches!(file_type, FileType::Regular | FileType::Directory) {
            flags = 0;
        }
        if file_type == FileType::Regular {
            flags |= self.info.file_defaults.flags_of_new_files();
        }
        if let Some(wanted) = new.flags.filter(|_| matches!(file_type, FileType::Regular | FileType::Directory)) {
            flags = wanted & (SETTABLE_FLAGS | InodeFlags::NODATASUM);
        }
        if file_type == FileType::Regular && flags & InodeFlags::NODATACOW != 0 {
            flags |= InodeFlags::NODATASUM;
        }
        let item = InodeItem {
            nlink: 1,
            uid: new.uid,
            gid: if inherits_group { parent.item.gid } else { new.gid },
            mode: if inherits_group && file_type == FileType::Directory { new.mode | S_ISGID } else { new.mode },
            rdev: new.rdev,
            flags,
            atime: time,
            ctime: time,
            mtime: time,
            otime: time,
            size: new.symlink_target.len() as u64,
            nbytes: new.symlink_target.len() as u64,
            ..InodeItem::default()
        };
        InodeState::new(item, false, true, self.info.volume.sector_size())
    }

    /// Makes a new inode part of the transaction.
    fn be_born(&self, child: &Arc<Inode>, state: &mut InodeState, new: &NewInode, transaction: &Transaction) {
        state.join(child, transaction);
        state.item.generation = transaction.generation;
        for (name, value) in &new.xattrs {
            state.no_xattrs = false;
            state.pending.set_xattr(name.as_slice().into(), Some(value.as_slice().into()));
        }
        if !new.symlink_target.is_empty() {
            let target = InlinePiece::plain(new.symlink_target.as_slice().into(), transaction.generation);
            let sector = u64::from(self.info.volume.sector_size());
            state.pending.layout.replace(0, sector, Piece::Inline(target));
        }
    }
}

/// Returns the reservation for a new name and a new inode. All items of new inodes follow those of
/// existing ones, so they change adjacent leaves, however many inodes there are. `joined` says that
/// the directory has changed in the open transaction already, so that space for its inode item and
/// the end of its entries is reserved.
fn creation_demand(name: &[u8], new: &NewInode, joined: bool) -> Demand {
    let xattrs: u64 = new.xattrs.iter().map(|(name, value)| xattr_item(name, value.len())).sum();
    let symlink = INLINE_EXTENT_ITEM + new.symlink_target.len() as u64;
    Demand {
        edits: if joined { 2 } else { 4 },
        item_bytes: INODE_ITEM + name_items(name) + ORPHAN_ITEM + symlink + xattrs,
        ..Demand::default()
    }
}

/// Returns the target of an entry that refers to an inode.
pub(crate) fn inode_target(id: InodeId, file_type: FileType) -> Target {
    Target { location: Key::new(id.ino.0, ItemType::INODE_ITEM, 0), file_type }
}

/// Adds an entry to a directory that has joined the transaction, with the directory's next index.
pub(crate) fn add_entry(dir: &mut InodeState, name: Name, index: DirIndex, target: Target, time: Timespec) {
    dir.item.size = dir.item.size.saturating_add(2 * name.len() as u64);
    names_change(dir, time);
    dir.pending.put_new_entry(name, index, target);
}

/// Removes an entry from a directory that has joined the transaction.
pub(crate) fn remove_entry(dir: &mut InodeState, name: Name, index: DirIndex, target: Target, time: Timespec) {
    dir.item.size = dir.item.size.saturating_sub(2 * name.len() as u64);
    names_change(dir, time);
    dir.pending.remove_entry(name, index, target);
}

fn names_change(dir: &mut InodeState, time: Timespec) {
    dir.content_changed(time);
    dir.listings.names_change();
    dir.name_changes += 1;
}

impl DirectoryOperations {
    /// Whether an inode has changed in the open transaction.
    fn has_joined(&self, id: InodeId) -> Result<bool> {
        let open = self.info.gate.current().generation;
        Ok(self.info.inode(id)?.read().pending.generation == open)
    }

    /// Returns the whiteout that a rename leaves in a directory.
    pub(super) fn new_whiteout(&self, id: InodeId, (uid, gid): (u32, u32), parent: &InodeState) -> Arc<Inode> {
        let new = NewInode { mode: S_IFCHR, uid, gid, ..NewInode::default() };
        Arc::new(Inode::new(id, self.new_state(parent, &new, self.info.now())))
    }

    /// Adds a [new](Self::new_whiteout) whiteout, whose `state` is locked. The caller adds its
    /// entry.
    pub(super) fn add_whiteout(
        &self,
        child: &Arc<Inode>,
        state: &mut InodeState,
        (dir, name, index): (InodeId, &Name, DirIndex),
        transaction: &Transaction,
    ) {
        self.be_born(child, state, &NewInode::default(), transaction);
        state.pending.add_ref(dir.ino, name.clone(), index);
        self.info.inodes.insert_new(child);
    }
}
