//! Backrefs of data extents: sums up the references that a commit adds and drops, and applies the
//! sums to the extent items.

use ubtrfs_format::items::{DataRef, FileExtent, FileExtentKind};
use ubtrfs_format::{Generation, Ino, ItemType, Key, Leaf, Logical, TreeId};
use ubtrfs_tree::{EditBatch, Snapshot};

use super::extent_refs::{ExtentRefs, User};
use crate::error::{Error, Result};

/// A change of how often one user refers to an extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct RefChange {
    extent: Logical,
    length: u64,
    user: User,
    count: i64,
}

/// The changes that a commit makes to references to data, in the order in which they happen.
#[derive(Debug, Default)]
pub(super) struct DataRefDeltas(Vec<RefChange>);

/// The changes that a commit makes to the references of one extent.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExtentDelta<'a> {
    pub(super) start: Logical,
    pub(super) length: u64,
    /// The sum for each user, in their order.
    changes: &'a [RefChange],
}

/// The sums of all changes, in the order of extents and users.
#[derive(Debug)]
pub(super) struct RefSums(Vec<RefChange>);

impl RefSums {
    /// Returns the changes of each extent.
    pub(super) fn extents(&self) -> impl Iterator<Item = ExtentDelta<'_>> {
        self.0.chunk_by(|one, next| one.extent == next.extent).filter_map(|changes| {
            let RefChange { extent: start, length, .. } = *changes.last()?;
            Some(ExtentDelta { start, length, changes })
        })
    }
}

impl DataRefDeltas {
    pub(super) fn add(&mut self, extent: Logical, length: u64, user: User, count: i64) {
        self.0.push(RefChange { extent, length, user, count });
    }

    /// Adds `count` references to all extents that a leaf points to. The user is the file in
    /// `subvolume`, or the leaf by its address.
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
    pub(super) fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    /// Notes that a file extent item is no longer in a subvolume's tree.
    pub(super) fn item_removed(&mut self, subvolume: TreeId, key: &Key, item: &[u8]) -> Result<()> {
        if let Some((extent, length, offset)) = extent_of(item)? {
            self.add(extent, length, file_user(subvolume, key, offset), -1);
        }
        Ok(())
    }

    /// Takes the sums of all changes.
    pub(super) fn take_sums(&mut self) -> RefSums {
        let mut changes = std::mem::take(&mut self.0);
        changes.sort_by_key(|change| (change.extent, change.user));
        changes.dedup_by(|next, sum| {
            let is_same = (next.extent, next.user) == (sum.extent, sum.user);
            if is_same {
                (sum.length, sum.count) = (next.length, sum.count + next.count);
            }
            is_same
        });
        RefSums(changes)
    }
}

/// What the references that a block holds name.
#[derive(Clone, Copy, Debug)]
pub(super) enum By {
    /// The tree; for data, a file in it.
    Tree(TreeId),
    /// The address of the block.
    Address(Logical),
}

/// Returns the address and the length of the extent that a file extent item refers to, and the
/// offset in it.
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

/// Writes the extent item of an extent that this commit allocated. Returns `false`, and writes
/// none, if no file refers to the extent.
pub(super) fn put_new_extent(
    delta: &ExtentDelta<'_>,
    generation: Generation,
    node_size: usize,
    edits: &mut EditBatch,
) -> Result<bool> {
    let mut extent = ExtentRefs::new_data(delta.start, delta.length, generation);
    for RefChange { user, count, .. } in delta.changes {
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
    delta: &ExtentDelta<'_>,
    node_size: usize,
    edits: &mut EditBatch,
) -> Result<bool> {
    if delta.changes.iter().all(|change| change.count == 0) {
        return Ok(false);
    }
    let key = Key::new(delta.start.0, ItemType::EXTENT_ITEM, delta.length);
    let mut extent = ExtentRefs::load(tree, key)?.ok_or(Error::MissingItem { tree: TreeId::EXTENT, key })?;
    // Additions come first, so that moving a reference does not make the count pass through zero.
    let (more, fewer) = (|change: &&RefChange| change.count > 0, |change: &&RefChange| change.count < 0);
    for RefChange { user, count, .. } in delta.changes.iter().filter(more).chain(delta.changes.iter().filter(fewer)) {
        extent.change(Some(tree), *user, *count, node_size)?;
    }
    extent.emit(edits);
    Ok(extent.is_unused())
}
