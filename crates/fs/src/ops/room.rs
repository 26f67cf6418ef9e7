//! Checks that what an operation adds still fits in the item that it goes to: no item outgrows its
//! leaf (invariant 24).
//!
//! Entries of a directory, xattrs, and extended references share an item if the hashes of their
//! names are equal, and names can be chosen so that they are. Neither a commit nor a log can write
//! an item that is larger than a leaf. So every operation checks this while it can still be
//! refused, with the inodes locked and before anything is changed.
//!
//! The committed trees are behind by up to two transactions. A commit merges each transaction as a
//! whole, removals before additions, so after a merge an item has the names of one point in time,
//! and only the newest state has to be checked. A sum that counts names twice or includes removed
//! ones is fast, and sufficient as long as it fits. Only if it does not fit, the names are checked
//! one by one.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs_format::items::{DIR_ENTRY_HEADER, EXTREF_HEADER, INLINE_DATA_OFFSET, INODE_REF_HEADER, MAX_NAME_LEN};
use ubtrfs_format::{Incompat, ItemType, extref_hash, name_hash};

use crate::error::{Errno, Result};
use crate::fs_info::FsInfo;
use crate::inode::{InodeId, InodeState};
use crate::names::{LookupResult, Names};

/// The most names that an inode may have.
pub(super) const MAX_LINKS: u32 = 65535;

/// Checks that an item has room for what is added.
pub(crate) struct ItemRoom {
    pub(super) info: Arc<FsInfo>,
    pub(super) names: Arc<Names>,
}

impl ItemRoom {
    /// `ENAMETOOLONG` for a symlink's target that can't be an inline extent: it must fit in an
    /// item, and the format requires that it is shorter than a sector.
    pub(super) fn check_symlink_fits(&self, target: &[u8]) -> Result<()> {
        let is_below_sector = target.len() < self.info.volume.sector_size() as usize;
        let fits = is_below_sector && self.info.has_room(INLINE_DATA_OFFSET + target.len());
        if fits { Ok(()) } else { Err(Errno::NAMETOOLONG.into()) }
    }

    /// `EOVERFLOW` if the item for the hash of a new name has no room left. The directory is
    /// locked, and `lookup` is the result of looking up the name.
    pub(crate) fn check_collisions(
        &self,
        dir: InodeId,
        state: &InodeState,
        name: &[u8],
        lookup: LookupResult,
    ) -> Result<()> {
        if state.is_reserved_name(name) {
            return Err(Errno::EXIST.into());
        }
        let hash = name_hash(name);
        let size = |name: &[u8]| DIR_ENTRY_HEADER + name.len();
        let changed: usize = state.batches().map(|batch| batch.entries.bytes_of_hash(hash)).sum();
        let committed = self.names.committed_bytes(dir, state, name, lookup)?;
        if self.info.has_room(size(name) + changed + committed) {
            return Ok(());
        }
        let mut names = self.info.view(dir, state).entries_with_hash(hash)?;
        names.insert(name.to_vec());
        if self.info.has_room(names.iter().map(|name| size(name)).sum()) { Ok(()) } else { Err(Errno::OVERFLOW.into()) }
    }

    /// Checks whether a locked inode may get another name. `EMLINK` if it has the maximum number of
    /// names, or if the item that all its names in a directory share has no room left; `EOVERFLOW`
    /// if the item that names of the same hash share has none.
    pub(crate) fn check_name_fits(&self, id: InodeId, state: &InodeState, dir: InodeId, name: &[u8]) -> Result<()> {
        // If all names fit in one item, any of them does.
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
        let item = self.info.view(id, state).committed_item(ItemType::INODE_REF, dir.ino.0)?;
        bytes += item.map_or(0, |item| item.len());
        // Names that were removed since are still counted, so a name that would fit may be refused,
        // but no name that does not fit is accepted.
        for batch in state.batches() {
            let added = batch.refs.iter().filter(|((parent, _), change)| *parent == dir.ino && change.now.is_some());
            bytes += added.map(|((_, name), _)| INODE_REF_HEADER + name.len()).sum::<usize>();
        }
        if self.info.has_room(bytes) { Ok(()) } else { Err(Errno::MLINK.into()) }
    }

    /// The extended item of a hash has names in all directories. Which uncommitted names it gets
    /// depends on later changes, so all of them are counted.
    fn check_extended_name_fits(&self, id: InodeId, state: &InodeState, dir: InodeId, name: &[u8]) -> Result<()> {
        let hash = extref_hash(dir.ino, name);
        let size = |name: &[u8]| EXTREF_HEADER + name.len();
        let view = self.info.view(id, state);
        let item = view.committed_item(ItemType::INODE_EXTREF, hash)?;
        let changed: usize = state.batches().map(|batch| batch.refs.bytes_of_hash(hash)).sum();
        if self.info.has_room(size(name) + changed + item.as_ref().map_or(0, |item| item.len())) {
            return Ok(());
        }
        let mut names = view.names_with_hash(hash)?;
        names.insert((dir.ino, name.to_vec()));
        let bytes = names.iter().map(|(_, name)| size(name)).sum();
        if self.info.has_room(bytes) { Ok(()) } else { Err(Errno::OVERFLOW.into()) }
    }

    /// `ENOSPC` if an item has no room for an xattr of a locked inode. All xattrs whose names have
    /// the same hash share an item.
    pub(crate) fn check_xattr_fits(&self, id: InodeId, state: &InodeState, name: &[u8], value: &[u8]) -> Result<()> {
        let hash = name_hash(name);
        let mut xattrs = self.info.view(id, state).xattr_lengths(hash)?;
        xattrs.insert(name.to_vec(), value.len());
        self.check_xattr_item(xattrs.iter().map(|(name, len)| name.len() + len))
    }

    /// Does the same for the first xattrs of a new inode.
    pub(super) fn check_first_xattrs_fit(&self, xattrs: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        let mut items: BTreeMap<u64, BTreeMap<&[u8], usize>> = BTreeMap::new();
        for (name, value) in xattrs {
            items.entry(name_hash(name)).or_default().insert(name, value.len());
        }
        let items = items.values().map(|item| item.iter().map(|(name, len)| name.len() + len));
        items.into_iter().try_for_each(|item| self.check_xattr_item(item))
    }

    /// `ENOSPC` unless an item has room for xattrs whose names and values have these lengths.
    fn check_xattr_item(&self, lengths: impl Iterator<Item = usize>) -> Result<()> {
        let bytes = lengths.map(|len| DIR_ENTRY_HEADER + len).sum();
        if self.info.has_room(bytes) { Ok(()) } else { Err(Errno::NOSPC.into()) }
    }
}
