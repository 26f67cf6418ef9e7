//! References to data extents: the sum of what a commit adds and removes, resolved against the
//! extent items.

use std::collections::{BTreeMap, HashMap};

use ubtrfs_format::items::{DataRef, FileExtent, FileExtentKind};
use ubtrfs_format::{Generation, Ino, ItemType, Key, Leaf, Logical, TreeId};
use ubtrfs_tree::{EditBatch, Snapshot};

use super::extent_refs::{ExtentRefs, User};
use crate::error::{Error, Result};

/// What a commit changes of the references to one extent.
#[derive(Debug, Default)]
pub(super) struct ExtentDelta {
    pub(super) length: u64,
    changes: HashMap<User, i64>,
}

/// … to all extents.
#[derive(Debug, Default)]
pub(super) struct DataRefDeltas(BTreeMap<Logical, ExtentDelta>);

impl DataRefDeltas {
    pub(super) fn add(&mut self, extent: Logical, length: u64, user: User, count: i64) {
        let delta = self.0.entry(extent).or_default();
        delta.length = length;
        *delta.changes.entry(user).or_default() += count;
    }

    /// Adds `count` references to all extents that a leaf points to: by its files in `subvolume`,
    /// or by the leaf's address.
    pub(super) fn add_leaf(&mut self, leaf: &Leaf<'_>, by: By, count: i64) -> Result<()> {
        for (key, item) in leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_DATA) {
            if let Some((extent, length, offset)) = extent_of(item)? {
                let user = match by {
                    By::Tree(subvolume) => file_user(subvolume, &key, offset),
                    By::Address(leaf) => User::Leaf(leaf),
                };
                self.add(extent, length, user, count);
            }
        }
        Ok(())
    }

    /// Adds all of `other`.
    pub(super) fn append(&mut self, other: Self) {
        for (extent, delta) in other.0 {
            for (user, count) in delta.changes {
                self.add(extent, delta.length, user, count);
            }
        }
    }

    /// Notes that a file extent item is no longer in a subvolume's tree.
    pub(super) fn item_removed(&mut self, subvolume: TreeId, key: &Key, item: &[u8]) -> Result<()> {
        if let Some((extent, length, offset)) = extent_of(item)? {
            self.add(extent, length, file_user(subvolume, key, offset), -1);
        }
        Ok(())
    }

    /// Takes what changes of one extent.
    pub(super) fn take(&mut self, extent: Logical) -> Option<ExtentDelta> {
        self.0.remove(&extent)
    }

    /// Takes all remaining changes.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = (Logical, ExtentDelta)> + use<> {
        std::mem::take(&mut self.0).into_iter()
    }
}

/// What the references of a block name.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// A tree's; for data, its files'.
    Tree(TreeId),
    /// The block's own, by its address.
    Address(Logical),
}

/// Address and length of the extent that a file extent item refers to, and the offset in it.
fn extent_of(item: &[u8]) -> Result<Option<(Logical, u64, u64)>> {
    Ok(match FileExtent::parse(item)?.kind {
        FileExtentKind::Regular { disk_bytenr, disk_num_bytes, offset, .. } if disk_bytenr.0 != 0 => {
            Some((disk_bytenr, disk_num_bytes, offset))
        }
        _ => None,
    })
}

fn file_user(subvolume: TreeId, key: &Key, offset: u64) -> User {
    User::File(DataRef { root: subvolume, ino: Ino(key.objectid), offset: key.offset.wrapping_sub(offset) })
}

/// The extent item of an extent that this commit allocated and that files refer to; `false` if none
/// does.
pub(super) fn put_new_extent(
    start: Logical,
    delta: &ExtentDelta,
    generation: Generation,
    node_size: usize,
    edits: &mut EditBatch,
) -> Result<bool> {
    let mut extent = ExtentRefs::new_data(start, delta.length, generation);
    for (user, count) in &delta.changes {
        extent.change(None, *user, *count, node_size)?;
    }
    if extent.is_unused() {
        return Ok(false);
    }
    extent.emit(edits);
    Ok(true)
}

/// Applies changes to a committed extent; returns whether nothing refers to it any more.
pub(super) fn change_extent(
    tree: &Snapshot,
    start: Logical,
    delta: &ExtentDelta,
    node_size: usize,
    edits: &mut EditBatch,
) -> Result<bool> {
    if delta.changes.values().all(|count| *count == 0) {
        return Ok(false);
    }
    let key = Key::new(start.0, ItemType::EXTENT_ITEM, delta.length);
    let mut extent = ExtentRefs::load(tree, key)?.ok_or(Error::MissingItem { tree: TreeId::EXTENT, key })?;
    // Additions first, so that a reference that moves does not make the count pass through zero.
    let mut changes: Vec<_> = delta.changes.iter().filter(|(_, count)| **count != 0).collect();
    changes.sort_by_key(|(user, count)| (-**count, **user));
    for (user, count) in changes {
        extent.change(Some(tree), *user, *count, node_size)?;
    }
    extent.emit(edits);
    Ok(extent.is_unused())
}
