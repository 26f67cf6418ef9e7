//! Whether what an operation adds still fits the item that it goes to. Invariant 24: no item
//! outgrows its leaf.
//!
//! Entries of a directory, xattrs, and references beside an inode's first ones share an item if the
//! hashes of their names are equal, and whoever chooses names can make them so. An item that is
//! larger than a leaf can't be written, by no commit and no log. So every operation asks here while
//! it can still be refused, with the inodes locked and before anything is changed.
//!
//! The trees are behind by up to two transactions. Each is merged as a whole, removals before
//! additions, so what an item holds after a merge are names that existed at one moment; the newest
//! state is the one to look at. Sums that count names twice or count removed ones are quick to get,
//! and enough as long as they fit; only if they don't the names are looked at one by one.

use std::collections::{BTreeMap, BTreeSet};

use ubtrfs_format::items::{
    DIR_ENTRY_HEADER, EXTREF_HEADER, INLINE_DATA_OFFSET, INODE_REF_HEADER, MAX_NAME_LEN, dir_entries, extrefs,
};
use ubtrfs_format::{Incompat, Ino, ItemType, Key, extref_hash, name_hash};

use super::operations::Operations;
use crate::error::{Errno, Result};
use crate::inode::{InodeBatch, InodeId, InodeState};
use crate::names::LookupResult;

/// The most names that an inode may have.
pub(super) const MAX_LINKS: u32 = 65535;

/// What no commit has yet of an inode, the older changes first.
fn layers(state: &InodeState) -> impl Iterator<Item = &InodeBatch> {
    state.frozen.iter().map(|frozen| &*frozen.batch).chain([&*state.pending])
}

impl Operations {
    /// `ENAMETOOLONG` for a symlink's target that is no inline extent: it must fit an item, and the
    /// format keeps it below a sector.
    pub(super) fn check_symlink_fits(&self, target: &[u8]) -> Result<()> {
        let is_below_sector = target.len() < self.info.volume.sector_size() as usize;
        let fits = is_below_sector && self.info.has_room(INLINE_DATA_OFFSET + target.len());
        if fits { Ok(()) } else { Err(Errno::NAMETOOLONG.into()) }
    }

    /// `EOVERFLOW` for a new name of a directory, locked, whose hash has no room left. `lookup` is
    /// what the directory has of the name.
    pub(crate) fn check_collisions(
        &self,
        dir: InodeId,
        state: &InodeState,
        name: &[u8],
        lookup: LookupResult,
    ) -> Result<()> {
        let hash = name_hash(name);
        let size = |name: &[u8]| DIR_ENTRY_HEADER + name.len();
        let changed: usize = layers(state).map(|batch| batch.entries.bytes_of_hash(hash)).sum();
        let committed = self.names.committed_bytes(dir, state, name, lookup)?;
        if self.info.has_room(size(name) + changed + committed) {
            return Ok(());
        }
        let key = Key::new(dir.ino.0, ItemType::DIR_ITEM, hash);
        let committed = self.info.committed();
        let item = if state.committed { committed.tree(dir.subvolume)?.get(&key)? } else { None };
        let mut names = BTreeSet::from([name]);
        for entry in item.iter().flat_map(|item| dir_entries(item)) {
            names.insert(entry?.name);
        }
        for batch in layers(state) {
            for (other, change) in &batch.entries.by_name {
                if change.now.is_none() && **other != *name {
                    names.remove(&**other);
                } else if name_hash(other) == hash {
                    names.insert(other);
                }
            }
        }
        if self.info.has_room(names.into_iter().map(size).sum()) { Ok(()) } else { Err(Errno::OVERFLOW.into()) }
    }

    /// An error for a further name of an inode, locked: `EMLINK` if it has as many as it may, or if
    /// all its names in a directory have to share an item that has no room left; `EOVERFLOW` if
    /// names of the same hash have to.
    pub(crate) fn check_name_fits(&self, id: InodeId, state: &InodeState, dir: InodeId, name: &[u8]) -> Result<()> {
        // All its names in one item would be no more than this.
        let names = state.item.nlink as usize + 1;
        if self.info.has_room(names.saturating_mul(EXTREF_HEADER + MAX_NAME_LEN)) {
            return Ok(());
        }
        let is_extended = self.info.committed().superblock.incompat.contains(Incompat::EXTENDED_IREF);
        if is_extended {
            self.check_extended_name_fits(id, state, dir, name)
        } else {
            self.check_listed_name_fits(id, state, dir, name)
        }
    }

    /// Without extended references all names in one directory share an item.
    fn check_listed_name_fits(&self, id: InodeId, state: &InodeState, dir: InodeId, name: &[u8]) -> Result<()> {
        let mut bytes = INODE_REF_HEADER + name.len();
        if state.committed {
            let key = Key::new(id.ino.0, ItemType::INODE_REF, dir.ino.0);
            bytes += self.info.committed().tree(id.subvolume)?.get(&key)?.map_or(0, |item| item.len());
        }
        // Names removed since are counted still: a name too many is refused rather than one too
        // few.
        for batch in layers(state) {
            let added = batch.refs.iter().filter(|((parent, _), change)| *parent == dir.ino && change.now.is_some());
            bytes += added.map(|((_, name), _)| INODE_REF_HEADER + name.len()).sum::<usize>();
        }
        if self.info.has_room(bytes) { Ok(()) } else { Err(Errno::MLINK.into()) }
    }

    /// The extended item of a hash holds names of all directories. Which of the names that no
    /// commit has yet go there depends on what comes and goes until then, so all of them are
    /// counted.
    fn check_extended_name_fits(&self, id: InodeId, state: &InodeState, dir: InodeId, name: &[u8]) -> Result<()> {
        let hash = extref_hash(dir.ino, name);
        let size = |name: &[u8]| EXTREF_HEADER + name.len();
        let key = Key::new(id.ino.0, ItemType::INODE_EXTREF, hash);
        let committed = self.info.committed();
        let item = if state.committed { committed.tree(id.subvolume)?.get(&key)? } else { None };
        let changed: usize = layers(state).map(|batch| batch.refs.bytes_of_hash(hash)).sum();
        if self.info.has_room(size(name) + changed + item.as_ref().map_or(0, |item| item.len())) {
            return Ok(());
        }
        let mut names: BTreeSet<(Ino, &[u8])> = BTreeSet::from([(dir.ino, name)]);
        for entry in item.iter().flat_map(|item| extrefs(item)) {
            let entry = entry?;
            names.insert((entry.parent, entry.name));
        }
        for batch in layers(state) {
            for ((parent, other), change) in batch.refs.iter() {
                if change.now.is_none() {
                    names.remove(&(*parent, &**other));
                } else if extref_hash(*parent, other) == hash {
                    names.insert((*parent, other));
                }
            }
        }
        names.insert((dir.ino, name));
        let bytes = names.into_iter().map(|(_, name)| size(name)).sum();
        if self.info.has_room(bytes) { Ok(()) } else { Err(Errno::OVERFLOW.into()) }
    }

    /// `ENOSPC` for an xattr of an inode, locked, that no item has room for: all whose names have
    /// one hash share it.
    pub(crate) fn check_xattr_fits(&self, id: InodeId, state: &InodeState, name: &[u8], value: &[u8]) -> Result<()> {
        let hash = name_hash(name);
        let key = Key::new(id.ino.0, ItemType::XATTR_ITEM, hash);
        let committed = self.info.committed();
        let is_there = state.committed && !state.no_xattrs;
        let item = if is_there { committed.tree(id.subvolume)?.get(&key)? } else { None };
        let mut xattrs = BTreeMap::new();
        for entry in item.iter().flat_map(|item| dir_entries(item)) {
            let entry = entry?;
            xattrs.insert(entry.name, entry.value.len());
        }
        for batch in layers(state) {
            for (other, value) in batch.xattrs.with_hash(hash) {
                match value {
                    None => drop(xattrs.remove(&**other)),
                    Some(value) => drop(xattrs.insert(other, value.len())),
                }
            }
        }
        xattrs.insert(name, value.len());
        self.check_xattr_item(&xattrs)
    }

    /// The same for those that a new inode is born with.
    pub(super) fn check_first_xattrs_fit(&self, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let mut items: BTreeMap<u64, BTreeMap<&[u8], usize>> = BTreeMap::new();
        for (name, value) in xattrs {
            items.entry(name_hash(name)).or_default().insert(name, value.len());
        }
        items.values().try_for_each(|item| self.check_xattr_item(item))
    }

    /// `ENOSPC` unless an item has room for xattrs of these names, with values of these lengths.
    fn check_xattr_item(&self, xattrs: &BTreeMap<&[u8], usize>) -> Result<()> {
        let bytes = xattrs.iter().map(|(name, value)| DIR_ENTRY_HEADER + name.len() + value).sum();
        if self.info.has_room(bytes) { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }
}
