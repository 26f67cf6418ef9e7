//! Entries of directories in the last commit.

use ubtrfs_format::items::{self, RootRef};
use ubtrfs_format::{Ino, ItemType, Key, TreeId, name_hash};
use ubtrfs_tree::Item;

use crate::committed::Committed;
use crate::error::{Error, Result};
use crate::inode::{EMPTY_SUBVOLUME_INO, InodeId, Target};

/// Returns the committed item with all names of a directory that have the same hash as this one.
pub(crate) fn committed_item(committed: &Committed, dir: InodeId, name: &[u8]) -> Result<Option<Item>> {
    Ok(committed.tree(dir.subvolume)?.get(&Key::new(dir.ino.0, ItemType::DIR_ITEM, name_hash(name)))?)
}

/// Returns the target of a name, from the item of its hash.
pub(crate) fn entry_in(item: &[u8], name: &[u8]) -> Result<Option<Target>> {
    for entry in items::dir_entries(item) {
        let entry = entry?;
        if entry.name == name {
            return Ok(Some(Target { location: entry.location, file_type: entry.file_type }));
        }
    }
    Ok(None)
}

/// Returns the inode that a committed entry refers to.
pub(crate) fn resolve(committed: &Committed, dir: InodeId, name: &[u8], target: Target) -> Result<InodeId> {
    match target.location.item_type {
        ItemType::INODE_ITEM => Ok(InodeId::new(dir.subvolume, Ino(target.location.objectid))),
        ItemType::ROOT_ITEM => {
            let child = TreeId(target.location.objectid);
            // A snapshot has the entries of the subvolumes inside its source, but does not contain
            // these subvolumes.
            let key = Key::new(dir.subvolume.0, ItemType::ROOT_REF, child.0);
            let reachable = match committed.tree(TreeId::ROOT)?.get(&key)? {
                Some(item) => {
                    let entry = RootRef::parse(&item)?;
                    entry.dirid == dir.ino && entry.name == name && committed.has_subvolume(child)
                }
                None => false,
            };
            Ok(if reachable { InodeId::root_of(child) } else { InodeId::new(dir.subvolume, EMPTY_SUBVOLUME_INO) })
        }
        _ => Err(Error::Inconsistent {
            tree: dir.subvolume,
            key: Key::new(dir.ino.0, ItemType::DIR_ITEM, name_hash(name)),
            what: "the entry refers to neither an inode nor a subvolume",
        }),
    }
}

/// Returns the subvolume at a path below the top level. Directories of the path may be in any
/// subvolume.
pub(crate) fn subvolume_at(committed: &Committed, path: &str) -> Result<Option<TreeId>> {
    let mut at = InodeId::root_of(TreeId::FS);
    for name in path.split('/').filter(|part| !part.is_empty()) {
        let Some(item) = committed_item(committed, at, name.as_bytes())? else { return Ok(None) };
        let Some(target) = entry_in(&item, name.as_bytes())? else { return Ok(None) };
        at = resolve(committed, at, name.as_bytes(), target)?;
    }
    Ok((at.ino == Ino::ROOT_DIR).then_some(at.subvolume))
}
