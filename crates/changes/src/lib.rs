//! Finds the differences of two subvolumes, file by file, and the changes in one since a commit.
//!
//! [`Tree::differences`](ubtrfs_tree::Tree::differences) compares the trees, and skips what they
//! share. Items come in the order of inodes: the differences of an inode are gathered, and shown
//! when the next inode begins.

mod content;
mod file;
mod gather;
mod limits;
mod paths;
mod since;

pub use file::{
    ChangedAttribute, ChangedContent, ChangedSubvolume, ChangedXattr, Content, FileChange, FileName, WhatChanged,
};
pub use limits::memory;

use ubtrfs_format::{Generation, Ino, ItemType, Key, TreeId};
use ubtrfs_fs::{Errno, Error, Filesystem, KeptCommit, Result};

use gather::Gathered;
use paths::Names;
use since::GatheredSince;

/// The keys of all items of inodes.
fn inodes() -> std::ops::RangeInclusive<Key> {
    let first = Key::new(Ino::ROOT_DIR.0, ItemType::INODE_ITEM, 0);
    first..=Key::new(Ino::LAST_FREE.0, ItemType(u8::MAX), u64::MAX)
}

/// Shows every inode that differs between two subvolumes, in the order of their numbers, until
/// `visit` returns false. Commits first, and compares the committed state.
///
/// Tree nodes that both share are not read, so comparing a snapshot with its source takes time for
/// what changed, not for what is there. `ENOENT` if there is no such subvolume; `ESTALE` if one of
/// them was changed or deleted meanwhile, so that the compared state does not exist any more.
pub fn changes(fs: &Filesystem, old: TreeId, new: TreeId, mut visit: impl FnMut(FileChange) -> bool) -> Result<()> {
    of_last_commit(fs, |commit| compare(commit, (old, new), &mut visit))
}

/// Shows every inode of a subvolume that the commit `generation` or a later one changed, until
/// `visit` returns false. Commits first. Errors are those of [`changes`].
///
/// Only the present state can be shown: no removed files, names and xattrs, no holes where data
/// was, nothing of the old state. The attributes that changed are not known, and not listed.
pub fn changes_since(
    fs: &Filesystem,
    subvolume: TreeId,
    generation: Generation,
    mut visit: impl FnMut(FileChange) -> bool,
) -> Result<()> {
    of_last_commit(fs, |commit| since(commit, (subvolume, generation), &mut visit))
}

fn of_last_commit(fs: &Filesystem, read: impl FnOnce(&KeptCommit) -> Result<()>) -> Result<()> {
    fs.durability().sync()?;
    let commit = fs.keep_commit();
    read(&commit).map_err(|error| match error {
        // Later commits reuse the space of nodes that were freed.
        Error::Tree(_) if fs.generation() != commit.generation() => Errno::STALE.into(),
        error => error,
    })
}

/// Shows every inode that differs between two subvolumes, until `visit` returns false.
fn compare(commit: &KeptCommit, (old, new): (TreeId, TreeId), visit: &mut dyn FnMut(FileChange) -> bool) -> Result<()> {
    let (old, new) = (commit.subvolume(old)?, commit.subvolume(new)?);
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
/// shows, until `visit` returns false.
fn since(
    commit: &KeptCommit,
    (id, generation): (TreeId, Generation),
    visit: &mut dyn FnMut(FileChange) -> bool,
) -> Result<()> {
    let tree = commit.subvolume(id)?;
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
