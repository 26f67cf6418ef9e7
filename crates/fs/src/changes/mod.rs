//! What two subvolumes don't have alike, file by file, and what changed in one since a commit.
//!
//! The trees are compared by [`Tree::differences`](ubtrfs_tree::Tree::differences), which leaves
//! out what they share. Items come in the order of inodes: what differs of one is gathered, and
//! shown when the next begins.

mod content;
mod file;
mod gather;
mod limits;
mod paths;
mod since;

pub use file::{
    ChangedAttribute, ChangedContent, ChangedSubvolume, ChangedXattr, Content, FileChange, FileName, WhatChanged,
};
pub(crate) use limits::memory;

use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId};
use ubtrfs_tree::Snapshot;

use crate::committed::Committed;
use crate::error::{Errno, Result};
use gather::Gathered;
use paths::Names;
use since::GatheredSince;

/// Items of inodes.
fn inodes() -> std::ops::RangeInclusive<Key> {
    let first = Key::new(Ino::ROOT_DIR.0, ItemType::INODE_ITEM, 0);
    first..=Key::new(Ino::LAST_FREE.0, ItemType(u8::MAX), u64::MAX)
}

fn subvolume(committed: &Committed, id: TreeId) -> Result<Snapshot> {
    if committed.has_subvolume(id) { committed.tree(id) } else { Err(Errno::NOENT.into()) }
}

/// Shows every inode that two subvolumes don't have alike, until `visit` returns false.
pub(crate) fn compare(
    committed: &Committed,
    (old, new): (TreeId, TreeId),
    visit: &mut dyn FnMut(FileChange) -> bool,
) -> Result<()> {
    let (old, new) = (subvolume(committed, old)?, subvolume(committed, new)?);
    let (mut old_names, mut new_names) = (Names::new(old.clone()), Names::new(new.clone()));
    let mut gathered: Option<Gathered> = None;
    for difference in old.differences(&new, &inodes()) {
        let difference = difference?;
        let ino = Ino(difference.key.objectid);
        if let Some(done) = gathered.take_if(|gathered| gathered.ino != ino)
            && !done.show(&mut old_names, &mut new_names, visit)?
        {
            return Ok(());
        }
        let gathered = match &mut gathered {
            Some(gathered) => gathered,
            None => gathered.insert(Gathered::new(&new, &difference)?),
        };
        gathered.add(&difference)?;
    }
    if let Some(done) = gathered {
        done.show(&mut old_names, &mut new_names, visit)?;
    }
    Ok(())
}

/// Shows every inode of a subvolume that this generation or a later one changed, as far as the tree
/// tells, until `visit` returns false.
pub(crate) fn since(
    committed: &Committed,
    (id, generation): (TreeId, Generation),
    visit: &mut dyn FnMut(FileChange) -> bool,
) -> Result<()> {
    let tree = subvolume(committed, id)?;
    let mut names = Names::new(tree.clone());
    let mut gathered: Option<GatheredSince> = None;
    for item in tree.written_since(generation, &inodes()) {
        let item = item?;
        let ino = Ino(item.key.objectid);
        if let Some(done) = gathered.take_if(|gathered| gathered.ino != ino)
            && !done.show(&mut names, visit)?
        {
            return Ok(());
        }
        gathered.get_or_insert_with(|| GatheredSince::new(ino, generation)).add(&item)?;
    }
    if let Some(done) = gathered {
        done.show(&mut names, visit)?;
    }
    Ok(())
}
