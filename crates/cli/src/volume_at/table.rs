//! The subvolumes of a volume, as the root tree describes them.

use std::collections::BTreeMap;

use ubtrfs_format::items::{RootFlags, RootItem, RootRef, dir_entries, inode_refs};
use ubtrfs_format::{Ino, ItemType, Key, TreeId, Uuid};

use super::search::Search;
use crate::failure::{Failure, Result};
use crate::ioctls::Item;

/// A subvolume, and the location of its entry.
#[derive(Debug)]
pub struct Listed {
    pub id: TreeId,
    pub item: RootItem,
    /// The subvolume and the directory that contain the entry, and its name.
    entry: Option<(TreeId, Ino, Vec<u8>)>,
    /// The path from the top level; `None` if the subvolume was deleted, or its path can't be
    /// found.
    pub path: Option<Vec<u8>>,
}

impl Listed {
    /// Returns the subvolume that contains it.
    pub fn parent(&self) -> Option<TreeId> {
        self.entry.as_ref().map(|(parent, ..)| *parent)
    }

    pub fn is_deleted(&self) -> bool {
        self.item.refs == 0
    }

    pub fn is_read_only(&self) -> bool {
        self.item.flags & RootFlags::RDONLY != 0
    }

    pub fn is_snapshot(&self) -> bool {
        self.item.parent_uuid != Uuid::NIL
    }

    /// Returns the generation in which it was made.
    pub fn creation(&self) -> u64 {
        self.item.transids[1]
    }
}

/// Returns all subvolumes by number, with the top level.
pub fn subvolumes(volume: &dyn Search) -> Result<BTreeMap<TreeId, Listed>> {
    let mut all = BTreeMap::new();
    let first = Key::new(TreeId::FS.0, ItemType::ROOT_ITEM, 0);
    let last = Key::new(Ino::LAST_FREE.0, ItemType::ROOT_BACKREF, u64::MAX);
    let mut entries = BTreeMap::new();
    for Item { key, data } in volume.search(TreeId::ROOT, first, last)? {
        let id = TreeId(key.objectid);
        let failed = |error: ubtrfs_format::Error| Failure::about(format_args!("subvolume {id}"), &error);
        match key.item_type {
            ItemType::ROOT_ITEM if id.is_subvolume() => {
                let item = RootItem::parse(&data).map_err(failed)?;
                all.insert(id, Listed { id, item, entry: None, path: None });
            }
            ItemType::ROOT_BACKREF => {
                let entry = RootRef::parse(&data).map_err(failed)?;
                entries.insert(id, (TreeId(key.offset), entry.dirid, entry.name.to_vec()));
            }
            _ => {}
        }
    }
    for (id, entry) in entries {
        if let Some(listed) = all.get_mut(&id) {
            listed.entry = Some(entry);
        }
    }
    find_paths(volume, &mut all);
    Ok(all)
}

/// Finds the paths of the subvolumes. Those in damaged directories remain unknown.
fn find_paths(volume: &dyn Search, all: &mut BTreeMap<TreeId, Listed>) {
    let mut directories: BTreeMap<(TreeId, Ino), Option<Vec<u8>>> = BTreeMap::new();
    let mut names = BTreeMap::new();
    for listed in all.values() {
        let Some((parent, dir, name)) = &listed.entry else { continue };
        let above = directories.entry((*parent, *dir)).or_insert_with(|| path_of(volume, *parent, *dir).ok());
        names.insert(listed.id, (*parent, above.as_ref().map(|above| [above, name.as_slice()].concat())));
    }
    for listed in all.values_mut() {
        if listed.id == TreeId::FS {
            listed.path = Some(Vec::new());
            continue;
        }
        let (mut path, mut at) = (Vec::new(), listed.id);
        // More steps than there are names mean a loop.
        for _ in 0..names.len() {
            let Some((parent, Some(name))) = names.get(&at) else { break };
            let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
            path = [name, separator, &path].concat();
            at = *parent;
            if at == TreeId::FS {
                listed.path = Some(path);
                break;
            }
        }
    }
}

/// Returns the path of a directory from the root of its subvolume, with a slash after each name.
fn path_of(volume: &dyn Search, tree: TreeId, dir: Ino) -> Result<Vec<u8>> {
    let mut path = Vec::new();
    let mut at = dir;
    while at != Ino::ROOT_DIR {
        let key = |offset| Key::new(at.0, ItemType::INODE_REF, offset);
        let found = volume.search(tree, key(0), key(u64::MAX))?.into_iter().next();
        let named = found.and_then(|item| {
            let name = inode_refs(&item.data).next()?.ok()?.name.to_vec();
            Some((Ino(item.key.offset), name))
        });
        let lost = || Failure::new(format!("directory {at} of subvolume {tree} has no name"));
        let (parent, name) = named.filter(|(parent, _)| *parent != at).ok_or_else(lost)?;
        path = [&name, b"/".as_slice(), &path].concat();
        if path.len() > 4096 {
            return Err(lost());
        }
        at = parent;
    }
    Ok(path)
}

/// Returns the default subvolume.
pub fn default_subvolume(volume: &dyn Search) -> Result<TreeId> {
    let key = |offset| Key::new(TreeId::ROOT_TREE_DIR.0, ItemType::DIR_ITEM, offset);
    let items = volume.search(TreeId::ROOT, key(0), key(u64::MAX))?;
    let mut named = items.iter().flat_map(|item| dir_entries(&item.data).filter_map(std::result::Result::ok));
    let default = named.find(|entry| entry.name == b"default");
    Ok(default.map_or(TreeId::FS, |entry| TreeId(entry.location.objectid)))
}
