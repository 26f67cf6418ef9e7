//! Other names for those that are the only ones with their hash: names of up to four bytes.
//!
//! Such a name gets another hash, and so the keys of its directory items change. They must stay in
//! the order that they have in every leaf, since items are not moved. Therefore all leaves are read
//! before: the neighbours of an item limit the hash of its name. A name at the beginning of a leaf
//! keeps its hash, since the key is in the block above, too, and with the hash itself.

use std::collections::{HashMap, HashSet};

use ubtrfs_format::items::dir_entries;
use ubtrfs_format::{ItemType, Key, TreeId, name_hash};

use crate::chunks::Expected;
use crate::clean::{Item, items};
use crate::error::Result;
use crate::media::Block;
use crate::named_items::{back_references, has_names};
use crate::names::{Names, free_start};
use crate::walk::Visitor;

/// How many names are noted. Further ones are kept.
const MAX_NAMES: usize = 1 << 20;

/// All hashes.
const ANY: (u64, u64) = (0, u32::MAX as u64);

/// The names that have no others with their hashes, and what they become.
#[derive(Default)]
pub(crate) struct ShortNames {
    /// The hashes that another name may have: the lowest and the highest.
    limits: HashMap<Vec<u8>, (u64, u64)>,
    others: HashMap<Vec<u8>, Vec<u8>>,
}

impl ShortNames {
    /// Returns what a name becomes, if it is a short one with another name.
    pub(crate) fn other(&self, name: &[u8]) -> Option<Vec<u8>> {
        self.others.get(name).cloned()
    }

    fn limit(&mut self, name: &[u8], lowest: u64, highest: u64) {
        if self.limits.len() >= MAX_NAMES && !self.limits.contains_key(name) {
            return;
        }
        let limits = self.limits.entry(name.to_vec()).or_insert(ANY);
        *limits = (limits.0.max(lowest), limits.1.min(highest));
    }

    /// Chooses the other names. No two names become the same, and none becomes one that exists.
    fn choose(mut self, names: &Names) -> Self {
        let mut taken: HashSet<Vec<u8>> = self.limits.keys().cloned().collect();
        let mut sorted: Vec<_> = self.limits.drain().collect();
        sorted.sort();
        for (name, (lowest, highest)) in sorted {
            let is_free = |other: &[u8]| (lowest..=highest).contains(&name_hash(other)) && !taken.contains(other);
            // A short name of a file is shorter than the beginning of an xattr's with more behind
            // it.
            if let Some(other) = names.near(&name, free_start(&name).unwrap_or(0), is_free) {
                taken.insert(other.clone());
                self.others.insert(name, other);
            }
        }
        self
    }
}

/// Gathers the short names of all leaves.
pub(crate) struct Gatherer<'a> {
    names: &'a Names,
    found: ShortNames,
}

impl<'a> Gatherer<'a> {
    pub(crate) fn new(names: &'a Names) -> Self {
        Self { names, found: ShortNames::default() }
    }

    /// Returns the names that were found, with others.
    pub(crate) fn finish(self) -> ShortNames {
        self.found.choose(self.names)
    }

    fn leaf(&mut self, block: &[u8], tree: TreeId) {
        let items = items(block);
        for (slot, item) in items.iter().enumerate().filter(|(_, item)| has_names(item.key, tree)) {
            let Some(data) = block.get(item.data.clone()) else { continue };
            match item.key.item_type {
                ItemType::DIR_ITEM | ItemType::XATTR_ITEM => {
                    let entries: Vec<_> = dir_entries(data).flatten().map(|entry| entry.name).collect();
                    let hash = item.key.offset;
                    // Names that share an item can't part.
                    let limits = if entries.len() > 1 { (hash, hash) } else { limits(&items, slot) };
                    for name in entries {
                        self.name(name, item.key.item_type, limits);
                    }
                }
                ItemType::DIR_INDEX => {}
                item_type => {
                    for name in back_references(item_type, data) {
                        // The key of an extended reference has a hash, too.
                        let hash = name_hash(name);
                        let is_hashed = item_type == ItemType::INODE_EXTREF;
                        self.name(name, item_type, if is_hashed { (hash, hash) } else { ANY });
                    }
                }
            }
        }
    }

    fn name(&mut self, name: &[u8], item_type: ItemType, (lowest, highest): (u64, u64)) {
        let kept = match item_type {
            ItemType::XATTR_ITEM => free_start(name),
            _ => Some(0),
        };
        if kept.is_some_and(|kept| self.names.is_short(name, kept)) {
            self.found.limit(name, lowest, highest);
        }
    }
}

/// Returns the lowest and the highest hash with which an item keeps its place among its neighbours,
/// which get others, too: between two of them, each goes half of the way at most.
fn limits(items: &[Item], slot: usize) -> (u64, u64) {
    let Some(key) = items.get(slot).map(|item| item.key) else { return (0, 0) };
    let hash = key.offset;
    let is_alike = |other: &Key| (other.objectid, other.item_type) == (key.objectid, key.item_type);
    let Some(before) = slot.checked_sub(1).and_then(|slot| items.get(slot)) else { return (hash, hash) };
    let lowest = if is_alike(&before.key) { before.key.offset + (hash - before.key.offset) / 2 + 1 } else { 0 };
    let highest = match items.get(slot + 1) {
        Some(after) if is_alike(&after.key) => hash + (after.key.offset - hash) / 2,
        Some(_) => u32::MAX.into(),
        None => hash,
    };
    (lowest, highest)
}

impl Visitor for Gatherer<'_> {
    fn block(&mut self, expected: &Expected, block: Block) -> Result<()> {
        if let Block::Good(block) = block {
            self.leaf(&block, expected.tree);
        }
        Ok(())
    }

    fn passed_over(&mut self) {}

    fn cache(&mut self, _: ubtrfs_format::Logical, _: u64) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(ino: u64, item_type: ItemType, offset: u64) -> Item {
        Item { key: Key::new(ino, item_type, offset), data: 0..0 }
    }

    #[test]
    fn neighbours_keep_their_order_whatever_hashes_they_get() {
        let hashes = [5, 6, 100, 1000, 1001, 4_000_000_000];
        let mut items = vec![item(256, ItemType::INODE_ITEM, 0)];
        items.extend(hashes.map(|hash| item(256, ItemType::DIR_ITEM, hash)));
        items.push(item(256, ItemType::DIR_INDEX, 2));
        let found: Vec<_> = (1..=hashes.len()).map(|slot| limits(&items, slot)).collect();
        for ((lowest, highest), hash) in found.iter().zip(hashes) {
            assert!((lowest..=highest).contains(&&hash));
        }
        assert!(found.windows(2).all(|pair| pair[0].1 < pair[1].0), "{found:?}");
        assert_eq!((found[0].0, found[5].1), (0, u32::MAX.into()));
    }

    #[test]
    fn the_first_item_of_a_leaf_keeps_its_hash_and_the_last_gets_no_higher_one() {
        let items = [10, 20].map(|hash| item(256, ItemType::DIR_ITEM, hash));
        assert_eq!(limits(&items, 0), (10, 10));
        assert_eq!(limits(&items, 1), (16, 20));
    }

    #[test]
    fn short_names_become_others_within_their_limits_and_none_twice() {
        let names = Names::new();
        let mut short = ShortNames::default();
        let all: Vec<Vec<u8>> = (b'a'..=b'z').flat_map(|one| [vec![one], vec![one, one], vec![one; 3]]).collect();
        for name in &all {
            let hash = name_hash(name);
            short.limit(name, hash.saturating_sub(1 << 30), (hash + (1 << 30)).min(u32::MAX.into()));
        }
        let short = short.choose(&names);
        let others: HashSet<Vec<u8>> = all.iter().filter_map(|name| short.other(name)).collect();
        assert_eq!(others.len(), all.len());
        for name in &all {
            let other = short.other(name).unwrap();
            assert!(other.len() == name.len() && !all.contains(&other));
            assert!(name_hash(&other).abs_diff(name_hash(name)) <= 1 << 30);
        }
    }

    #[test]
    fn a_name_whose_hash_is_fixed_is_kept() {
        let names = Names::new();
        let mut short = ShortNames::default();
        short.limit(b"abc", name_hash(b"abc"), name_hash(b"abc"));
        assert_eq!(short.choose(&names).other(b"abc"), None);
    }
}
