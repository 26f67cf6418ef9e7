//! The items of an inode, as they are and as they shall be.

use std::collections::BTreeMap;

use ubtrfs_format::items::{
    DirEntry, ExtRef, FileType, INODE_REF_HEADER, InodeItem, InodeRef, dir_entries, encode_dir_entry, encode_extref,
    encode_inode_ref, inode_backrefs,
};
use ubtrfs_format::{
    DirIndex, Generation, Ino, ItemContext, ItemType, Key, check_item, extref_hash, max_item_size, name_hash,
};
use ubtrfs_tree::{EditBatch, Snapshot};

use crate::error::Result;

/// A name of an inode in a directory, as the inode knows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(clippy::struct_field_names, reason = "a name and where it is")]
pub struct Name {
    pub parent: u64,
    pub index: u64,
    pub name: Vec<u8>,
}

/// An entry of a directory, by one of its items.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number, by a `DIR_INDEX` item; `None` if a `DIR_ITEM` item says it.
    pub index: Option<u64>,
    pub location: Key,
    pub file_type: FileType,
    pub name: Vec<u8>,
}

/// An inode of a subvolume.
#[derive(Debug)]
pub struct Inode {
    pub ino: u64,
    before: BTreeMap<Key, Vec<u8>>,
    /// The items that it shall have.
    pub items: BTreeMap<Key, Vec<u8>>,
    /// Items that break the rules of their type, and are left out.
    pub malformed: Vec<Key>,
    node_size: usize,
}

impl Inode {
    /// An inode without items.
    pub fn none(ino: u64, node_size: usize) -> Self {
        Self { ino, before: BTreeMap::new(), items: BTreeMap::new(), malformed: Vec::new(), node_size }
    }

    /// Reads the items of an inode, which may be none.
    pub fn load(tree: &Snapshot, ino: u64, context: &ItemContext, node_size: usize) -> Result<Self> {
        let range = Key::new(ino, ItemType(0), 0)..=Key::new(ino, ItemType(u8::MAX), u64::MAX);
        let mut inode = Self::none(ino, node_size);
        for item in tree.range(range) {
            let item = item?;
            inode.before.insert(item.key, item.to_vec());
            // An inode item with wrong fields is put right, instead of being lost.
            let is_kept = item.key.item_type == ItemType::INODE_ITEM && InodeItem::parse(&item).is_ok();
            if is_kept || check_item(&item.key, &item, context).is_ok() {
                inode.items.insert(item.key, item.to_vec());
            } else {
                inode.malformed.push(item.key);
            }
        }
        Ok(inode)
    }

    /// Whether it has items besides its attributes.
    pub fn has_content(&self) -> bool {
        self.items.keys().any(|key| key.item_type != ItemType::INODE_ITEM)
    }

    /// Returns its attributes.
    pub fn item(&self) -> Option<InodeItem> {
        self.items.get(&self.item_key()).and_then(|bytes| InodeItem::parse(bytes).ok())
    }

    /// Sets its attributes.
    pub fn set_item(&mut self, item: InodeItem) {
        self.items.insert(self.item_key(), item.to_bytes().to_vec());
    }

    fn item_key(&self) -> Key {
        Key::new(self.ino, ItemType::INODE_ITEM, 0)
    }

    /// Returns the items of a type, in order.
    pub fn of_type(&self, item_type: ItemType) -> impl DoubleEndedIterator<Item = (&Key, &Vec<u8>)> {
        self.items.range(Key::new(self.ino, item_type, 0)..=Key::new(self.ino, item_type, u64::MAX))
    }

    /// Returns its names. The `..` of a root directory is none.
    pub fn names(&self) -> Vec<Name> {
        let mut names = Vec::new();
        for (key, bytes) in self.of_type(ItemType::INODE_REF).chain(self.of_type(ItemType::INODE_EXTREF)) {
            for found in inode_backrefs(key, bytes).flatten() {
                if found.parent.0 != self.ino {
                    names.push(Name { parent: found.parent.0, index: found.index.0, name: found.name.to_vec() });
                }
            }
        }
        names
    }

    /// Adds a name.
    pub fn add_name(&mut self, name: &Name) {
        let key = Key::new(self.ino, ItemType::INODE_REF, name.parent);
        let size = self.items.get(&key).map_or(0, Vec::len) + INODE_REF_HEADER + name.name.len();
        let index = DirIndex(name.index);
        if size <= max_item_size(self.node_size) {
            encode_inode_ref(self.items.entry(key).or_default(), InodeRef { index, name: &name.name });
        } else {
            let parent = Ino(name.parent);
            let key = Key::new(self.ino, ItemType::INODE_EXTREF, extref_hash(parent, &name.name));
            encode_extref(self.items.entry(key).or_default(), ExtRef { parent, index, name: &name.name });
        }
    }

    /// Removes all names of this spelling in a directory.
    pub fn remove_name(&mut self, parent: u64, name: &[u8]) {
        let left: Vec<Name> = self.names().into_iter().filter(|one| one.parent != parent || one.name != name).collect();
        let own = Key::new(self.ino, ItemType::INODE_REF, self.ino);
        self.items
            .retain(|key, _| *key == own || !matches!(key.item_type, ItemType::INODE_REF | ItemType::INODE_EXTREF));
        for name in &left {
            self.add_name(name);
        }
    }

    /// Returns the entries of a directory, first by their names' hashes, then by their numbers.
    pub fn entries(&self) -> Vec<Entry> {
        let mut entries = Vec::new();
        for (key, bytes) in self.of_type(ItemType::DIR_ITEM).chain(self.of_type(ItemType::DIR_INDEX)) {
            for found in dir_entries(bytes).flatten() {
                // An entry whose hash is wrong is found by no look-up.
                let is_item = key.item_type == ItemType::DIR_ITEM;
                if is_item && key.offset != name_hash(found.name) {
                    continue;
                }
                entries.push(Entry {
                    index: (!is_item).then_some(key.offset),
                    location: found.location,
                    file_type: found.file_type,
                    name: found.name.to_vec(),
                });
            }
        }
        entries
    }

    /// Makes an entry what it must be, in both of its items.
    pub fn put_entry(&mut self, name: &[u8], index: u64, (location, file_type): (Key, FileType), transid: Generation) {
        self.remove_entry(name);
        let entry = DirEntry { location, transid, file_type, name, value: b"" };
        let item = Key::new(self.ino, ItemType::DIR_ITEM, name_hash(name));
        encode_dir_entry(self.items.entry(item).or_default(), &entry);
        let mut bytes = Vec::new();
        encode_dir_entry(&mut bytes, &entry);
        self.items.insert(Key::new(self.ino, ItemType::DIR_INDEX, index), bytes);
    }

    /// Removes all items about an entry of this name.
    pub fn remove_entry(&mut self, name: &[u8]) {
        let affected: Vec<Key> = self
            .of_type(ItemType::DIR_ITEM)
            .chain(self.of_type(ItemType::DIR_INDEX))
            .filter(|(_, bytes)| dir_entries(bytes).flatten().any(|entry| entry.name == name))
            .map(|(key, _)| *key)
            .collect();
        for key in affected {
            let Some(bytes) = self.items.remove(&key) else { continue };
            let mut left = Vec::new();
            for entry in dir_entries(&bytes).flatten().filter(|entry| entry.name != name) {
                encode_dir_entry(&mut left, &entry);
            }
            if !left.is_empty() {
                self.items.insert(key, left);
            }
        }
    }

    /// Removes directory items that no look-up finds, since their key is not their name's hash.
    pub fn remove_misplaced_entries(&mut self) {
        let is_misplaced = |key: &Key, bytes: &[u8]| {
            key.item_type == ItemType::DIR_ITEM
                && dir_entries(bytes).flatten().any(|entry| name_hash(entry.name) != key.offset)
        };
        self.items.retain(|key, bytes| !is_misplaced(key, bytes));
    }

    /// Returns a number that no entry has.
    pub fn free_index(&self) -> u64 {
        let last = self.of_type(ItemType::DIR_INDEX).next_back().map_or(1, |(key, _)| key.offset);
        last.saturating_add(1).max(DirIndex::FIRST.0)
    }

    /// Returns twice the bytes of the names of all entries, once for each of their two items.
    pub fn entry_bytes(&self) -> u64 {
        let items = self.of_type(ItemType::DIR_ITEM).chain(self.of_type(ItemType::DIR_INDEX));
        items.flat_map(|(_, bytes)| dir_entries(bytes).flatten()).map(|entry| entry.name.len() as u64).sum()
    }

    /// Adds the edits of its items.
    pub fn add_edits(&self, edits: &mut EditBatch) {
        for key in self.before.keys().filter(|key| !self.items.contains_key(key)) {
            edits.delete(*key);
        }
        for (key, bytes) in self.items.iter().filter(|(key, bytes)| self.before.get(key) != Some(bytes)) {
            edits.put(*key, bytes.clone());
        }
    }
}
