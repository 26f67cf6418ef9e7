//! The `INODE_REF` and `INODE_EXTREF` items with the names of an inode.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use ubtrfs_format::items::{ExtRef, INODE_REF_HEADER, InodeRef, encode_extref, encode_inode_ref, inode_backrefs};
use ubtrfs_format::{DirIndex, ITEM_HEADER_SIZE, Ino, ItemType, Key, extref_hash, leaf_data_size, max_item_size};
use ubtrfs_tree::Snapshot;

use crate::error::Result;
use crate::inode::NameChanges;

/// Returns the index of a name that an inode has in `tree`, which is that of the last commit.
pub(crate) fn committed_ref_index(tree: &Snapshot, ino: Ino, parent: Ino, name: &[u8]) -> Result<Option<DirIndex>> {
    for key in [Key::new(ino.0, ItemType::INODE_REF, parent.0), extended_key(ino, parent, name)] {
        let Some(item) = tree.get(&key)? else { continue };
        let found = names_in(&key, &item)?.into_iter().find(|listed| listed.parent == parent && listed.name == name);
        if let Some(listed) = found {
            return Ok(Some(listed.index));
        }
    }
    Ok(None)
}

/// A name in an item.
struct Listed {
    parent: Ino,
    index: DirIndex,
    name: Vec<u8>,
}

/// The complete reference items of one inode that are affected by changes of its names.
pub(crate) struct NameItems<'a> {
    ino: Ino,
    /// The inode's tree before the changes, if a tree contains the inode.
    tree: Option<&'a Snapshot>,
    items: BTreeMap<Key, Vec<Listed>>,
    /// Bytes of the items that the tree contains.
    sizes: BTreeMap<Key, usize>,
    /// Number of items that were looked up in the tree.
    pub(crate) searches: u64,
}

impl<'a> NameItems<'a> {
    /// Returns the items after `changes`. A name is in the `INODE_REF` of its directory while that
    /// has room, otherwise in an `INODE_EXTREF` if names may be `extended`.
    pub(crate) fn after(
        ino: Ino,
        tree: Option<&'a Snapshot>,
        changes: &NameChanges,
        extended: bool,
        node_size: usize,
    ) -> Result<Self> {
        let mut items = Self { ino, tree, items: BTreeMap::new(), sizes: BTreeMap::new(), searches: 0 };
        // Removals come first, since they make room.
        for ((parent, name), change) in changes.iter() {
            if change.base.is_some() {
                items.remove(*parent, name)?;
            }
        }
        let most = max_item_size(node_size);
        // The oldest name comes first, as in the kernel's driver.
        let mut added: Vec<_> = changes.iter().filter_map(|(name, change)| Some((change.now?, name))).collect();
        added.sort_unstable();
        for (index, (parent, name)) in added {
            let key = Key::new(ino.0, ItemType::INODE_REF, parent.0);
            let names = items.load(key)?;
            let size: usize = names.iter().map(|listed| INODE_REF_HEADER + listed.name.len()).sum();
            let listed = Listed { parent: *parent, index, name: name.to_vec() };
            if !extended || size + INODE_REF_HEADER + name.len() <= most {
                names.push(listed);
            } else {
                items.load(extended_key(ino, *parent, name))?.push(listed);
            }
        }
        Ok(items)
    }

    fn remove(&mut self, parent: Ino, name: &[u8]) -> Result<()> {
        for key in [Key::new(self.ino.0, ItemType::INODE_REF, parent.0), extended_key(self.ino, parent, name)] {
            let names = self.load(key)?;
            let before = names.len();
            names.retain(|listed| listed.parent != parent || listed.name != name);
            if names.len() < before {
                break;
            }
        }
        Ok(())
    }

    /// Returns the names in an item, with the changes so far.
    fn load(&mut self, key: Key) -> Result<&mut Vec<Listed>> {
        match self.items.entry(key) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let mut names = Vec::new();
                if let Some(tree) = self.tree {
                    self.searches += 1;
                    if let Some(item) = tree.get(&key)? {
                        names = names_in(&key, &item)?;
                        self.sizes.insert(key, item.len());
                    }
                }
                Ok(entry.insert(names))
            }
        }
    }

    /// Returns the items that the changes affect. An item without names left is `None`.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, Option<Vec<u8>>)> + '_ {
        self.items.iter().map(|(key, names)| (*key, encode(key, names)))
    }

    /// Whether every kernel can replay these items. Replay adds the names of an inode one by one
    /// before it removes others, and chooses their items itself; then it makes the item as large as
    /// the log's, without checking the free space of the leaf. So no item may be extended, nor
    /// outgrow a leaf while it has the old names and the new ones.
    pub(crate) fn are_replayable(&self, node_size: usize) -> bool {
        self.items.iter().all(|(key, names)| {
            let before = self.sizes.get(key).copied().unwrap_or(0);
            let now: usize = names.iter().map(|listed| INODE_REF_HEADER + listed.name.len()).sum();
            key.item_type == ItemType::INODE_REF && can_grow_in_replay(before, now, node_size)
        })
    }

    /// Whether the item that had a committed name has names left, so that logging the item records
    /// the removal of this name.
    pub(crate) fn records_removal_of(&self, parent: Ino, name: &[u8]) -> bool {
        let has_names = |key: Key| self.items.get(&key).is_some_and(|names| !names.is_empty());
        let extended = extended_key(self.ino, parent, name);
        // The extended item was loaded only if the name was not in the `INODE_REF` item.
        if self.items.contains_key(&extended) {
            has_names(extended)
        } else {
            has_names(Key::new(self.ino.0, ItemType::INODE_REF, parent.0))
        }
    }
}

/// Whether an item of the last commit can become one of `now` bytes in the kernel's replay,
/// wherever it is in its leaf: this requires that both fit in one leaf.
pub(crate) fn can_grow_in_replay(before: usize, now: usize, node_size: usize) -> bool {
    before == 0 || before + now + 2 * ITEM_HEADER_SIZE <= leaf_data_size(node_size)
}

fn extended_key(ino: Ino, parent: Ino, name: &[u8]) -> Key {
    Key::new(ino.0, ItemType::INODE_EXTREF, extref_hash(parent, name))
}

fn names_in(key: &Key, item: &[u8]) -> Result<Vec<Listed>> {
    let listed = inode_backrefs(key, item).map(|entry| {
        let ExtRef { parent, index, name } = entry?;
        Ok(Listed { parent, index, name: name.to_vec() })
    });
    listed.collect()
}

fn encode(key: &Key, names: &[Listed]) -> Option<Vec<u8>> {
    let mut item = Vec::new();
    for Listed { parent, index, name } in names {
        if key.item_type == ItemType::INODE_REF {
            encode_inode_ref(&mut item, InodeRef { index: *index, name });
        } else {
            encode_extref(&mut item, ExtRef { parent: *parent, index: *index, name });
        }
    }
    (!item.is_empty()).then_some(item)
}
