//! The changes that a transaction makes to a tree.

use std::borrow::Cow;
use std::collections::{BTreeMap, btree_map};
use std::ops::RangeInclusive;

use ubtrfs_format::{ITEM_HEADER_SIZE, Key};

use crate::{Error, Patch, Result, patch};

/// The change of one item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// The item has these bytes, whatever it had before.
    Put(Vec<u8>),
    /// The item is deleted.
    Delete,
    /// Names inside the item change, in this order. No two patches are about the same name.
    Patch(Vec<Patch>),
}

impl Edit {
    /// Returns the item `key` after this edit, given the item `base` before it. `None` means that
    /// there is no such item.
    pub fn apply<'a>(&'a self, key: &Key, base: Option<&[u8]>) -> ubtrfs_format::Result<Option<Cow<'a, [u8]>>> {
        match self {
            Self::Put(bytes) => Ok(Some(Cow::Borrowed(bytes))),
            Self::Delete => Ok(None),
            Self::Patch(patches) => {
                let item = patch::apply(patches, key, base.unwrap_or_default())?;
                Ok((!item.is_empty()).then_some(Cow::Owned(item)))
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Put(bytes) => ITEM_HEADER_SIZE + bytes.len(),
            Self::Delete => 0,
            Self::Patch(patches) => ITEM_HEADER_SIZE + patches.iter().map(Patch::bytes).sum::<usize>(),
        }
    }
}

/// Edits of one tree, at most one per key.
///
/// - A put or delete replaces what the batch held for its key.
/// - A patch after a patch joins it (a later one about the same name replaces the earlier one);
///   after a put it changes the bytes to be put; after a delete it works on an absent item.
/// - A deleted range applies to the items of the *tree*, never to puts and patches of the same
///   batch, whichever came first. A patch of an item inside a deleted range works on an absent
///   item.
#[derive(Clone, Debug, Default)]
pub struct EditBatch {
    edits: BTreeMap<Key, Edit>,
    /// First and last keys of ranges that neither overlap nor touch.
    ranges: BTreeMap<Key, Key>,
    bytes: usize,
}

impl EditBatch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the bytes of an item.
    pub fn put(&mut self, key: Key, bytes: impl Into<Vec<u8>>) {
        self.set(key, Edit::Put(bytes.into()));
    }

    /// Deletes an item, which need not exist.
    pub fn delete(&mut self, key: Key) {
        self.set(key, Edit::Delete);
    }

    /// Changes a name inside an item. Fails if the patch does not suit the key, or if the batch
    /// puts malformed bytes there.
    pub fn patch(&mut self, key: Key, patch: Patch) -> Result<()> {
        let bad = |problem| Error::BadPatch { key, problem };
        patch.check(&key).map_err(bad)?;
        match self.edits.entry(key) {
            btree_map::Entry::Vacant(vacant) => {
                let edit = vacant.insert(Edit::Patch(vec![patch]));
                self.bytes += edit.bytes();
            }
            btree_map::Entry::Occupied(mut occupied) => {
                let edit = occupied.get_mut();
                let before = edit.bytes();
                if let Edit::Patch(patches) = edit {
                    patches.retain(|earlier| !patch.replaces(earlier));
                    patches.push(patch);
                } else {
                    let base = if let Edit::Put(bytes) = edit { &bytes[..] } else { &[] };
                    let item = patch::apply(&[patch], &key, base).map_err(bad)?;
                    *edit = if item.is_empty() { Edit::Delete } else { Edit::Put(item) };
                }
                self.bytes = self.bytes - before + edit.bytes();
            }
        }
        Ok(())
    }

    /// Deletes all items of the tree in this range.
    pub fn delete_range(&mut self, range: RangeInclusive<Key>) {
        let (mut first, mut last) = range.into_inner();
        if first > last {
            return;
        }
        let touching = |end: Key, start: Key| end >= start || end.successor() == Some(start);
        while let Some((&start, &end)) = self.ranges.range(..=last.successor().unwrap_or(last)).next_back() {
            if !touching(end, first) {
                break;
            }
            self.ranges.remove(&start);
            (first, last) = (first.min(start), last.max(end));
        }
        self.ranges.insert(first, last);
    }

    /// Adds all edits of `other`, as if they had been made now.
    pub fn append(&mut self, other: Self) -> Result<()> {
        if self.is_empty() {
            *self = other;
            return Ok(());
        }
        for (first, last) in other.ranges {
            self.delete_range(first..=last);
        }
        for (key, edit) in other.edits {
            match edit {
                Edit::Patch(patches) => patches.into_iter().try_for_each(|patch| self.patch(key, patch))?,
                edit => self.set(key, edit),
            }
        }
        Ok(())
    }

    /// Removes the edit of this key from the batch, and returns it.
    pub fn remove(&mut self, key: &Key) -> Option<Edit> {
        let edit = self.edits.remove(key)?;
        self.bytes -= edit.bytes();
        Some(edit)
    }

    /// Returns the edit of this key. There is none for keys that are only inside a deleted range.
    pub fn get(&self, key: &Key) -> Option<&Edit> {
        self.edits.get(key)
    }

    /// Returns whether the tree's item of this key is inside a deleted range.
    pub fn deletes(&self, key: &Key) -> bool {
        self.ranges.range(..=*key).next_back().is_some_and(|(_, last)| last >= key)
    }

    /// Returns the edits of single items, ascending.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (&Key, &Edit)> {
        self.edits.iter()
    }

    /// Returns the edits of single items with keys in `range`, ascending.
    pub fn range(&self, range: RangeInclusive<Key>) -> impl DoubleEndedIterator<Item = (&Key, &Edit)> {
        let range = (range.start() <= range.end()).then_some(range);
        range.into_iter().flat_map(|range| self.edits.range(range))
    }

    /// Returns the deleted ranges, ascending; those that overlap or touch have become one.
    pub fn deleted_ranges(&self) -> impl DoubleEndedIterator<Item = RangeInclusive<Key>> {
        self.ranges.iter().map(|(first, last)| *first..=*last)
    }

    /// Returns whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty() && self.ranges.is_empty()
    }

    /// Returns how many edited keys and deleted ranges there are.
    pub fn len(&self) -> usize {
        self.edits.len() + self.ranges.len()
    }

    /// Returns the most bytes that new items will take in leaves, for reservations.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn set(&mut self, key: Key, edit: Edit) {
        self.bytes += edit.bytes();
        if let Some(old) = self.edits.insert(key, edit) {
            self.bytes -= old.bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ubtrfs_format::{DirIndex, ItemType};

    const KEY: Key = Key::new(257, ItemType::INODE_REF, 256);

    fn put_ref(name: &str, index: u64) -> Patch {
        Patch::PutRef { index: DirIndex(index), name: name.into() }
    }

    fn remove_ref(name: &str) -> Patch {
        Patch::RemoveRef { name: name.into() }
    }

    fn key(offset: u64) -> Key {
        Key::new(1, ItemType(1), offset)
    }

    #[test]
    fn patches_of_one_name_do_not_pile_up() {
        let mut batch = EditBatch::new();
        for index in 0..1000 {
            batch.patch(KEY, put_ref("a", index)).unwrap();
            batch.patch(KEY, remove_ref("a")).unwrap();
        }
        batch.patch(KEY, put_ref("b", 1)).unwrap();
        assert_eq!(batch.get(&KEY), Some(&Edit::Patch(vec![remove_ref("a"), put_ref("b", 1)])));
    }

    #[test]
    fn a_patch_changes_a_put_of_the_batch_and_starts_empty_after_a_delete() {
        let mut batch = EditBatch::new();
        let mut expected = Vec::new();
        batch.delete(KEY);
        batch.patch(KEY, put_ref("a", 1)).unwrap();
        ubtrfs_format::items::encode_inode_ref(
            &mut expected,
            ubtrfs_format::items::InodeRef { index: DirIndex(1), name: b"a" },
        );
        assert_eq!(batch.get(&KEY), Some(&Edit::Put(expected)));
        batch.patch(KEY, remove_ref("a")).unwrap();
        assert_eq!(batch.get(&KEY), Some(&Edit::Delete));
        assert_eq!(batch.bytes(), 0);
        batch.put(KEY, *b"junk");
        assert!(matches!(batch.patch(KEY, put_ref("a", 1)), Err(Error::BadPatch { key: KEY, .. })));
    }

    #[test]
    fn bytes_follow_every_change() {
        let mut batch = EditBatch::new();
        batch.put(key(1), vec![0; 100]);
        batch.put(key(1), vec![0; 50]);
        batch.put(key(2), vec![0; 10]);
        assert_eq!(batch.bytes(), 60 + 2 * ITEM_HEADER_SIZE);
        batch.delete(key(1));
        batch.remove(&key(2));
        assert_eq!(batch.bytes(), 0);
        assert_eq!(batch.len(), 1);
    }

    #[test]
    fn ranges_that_overlap_or_touch_become_one() {
        let mut batch = EditBatch::new();
        for (first, last) in [(10, 20), (40, 50), (60, 70), (21, 25), (5, 3), (49, 61), (30, 30)] {
            batch.delete_range(key(first)..=key(last));
        }
        let ranges: Vec<_> = batch.deleted_ranges().map(|range| (range.start().offset, range.end().offset)).collect();
        assert_eq!(ranges, [(10, 25), (30, 30), (40, 70)]);
        assert!(batch.deletes(&key(70)) && batch.deletes(&key(10)) && !batch.deletes(&key(26)));
        batch.delete_range(Key::MIN..=Key::MAX);
        assert_eq!(batch.len(), 1);
        batch.delete_range(key(1)..=Key::MAX);
        assert_eq!(batch.deleted_ranges().next(), Some(Key::MIN..=Key::MAX));
    }

    #[test]
    fn appended_edits_come_after_those_that_are_there() {
        let (mut first, mut second) = (EditBatch::new(), EditBatch::new());
        first.patch(KEY, put_ref("a", 1)).unwrap();
        first.put(key(1), *b"old");
        first.put(key(2), *b"kept");
        second.patch(KEY, remove_ref("a")).unwrap();
        second.put(key(1), *b"new");
        second.delete_range(key(2)..=key(3));
        first.append(second).unwrap();
        assert_eq!(first.get(&KEY), Some(&Edit::Patch(vec![remove_ref("a")])));
        assert_eq!(first.get(&key(1)), Some(&Edit::Put(b"new".into())));
        assert_eq!(first.get(&key(2)), Some(&Edit::Put(b"kept".into())));
        assert!(first.deletes(&key(3)));
    }
}
