//! Changes of a directory's entries in one transaction.

use std::collections::{BTreeMap, HashMap, hash_map};
use std::sync::LazyLock;

use ubtrfs_file::change_memory::ENTRY;
use ubtrfs_format::items::DIR_ENTRY_HEADER;
use ubtrfs_format::{DirIndex, name_hash};

use super::changes::{EntryChange, Name, Target};
use super::lazy_box::Empty;

/// The changes, by name and by index.
#[derive(Default)]
pub(crate) struct EntryChanges {
    pub(crate) by_name: HashMap<Name, EntryChange>,
    /// A value of `None` means that the index is no longer used.
    pub(crate) by_number: BTreeMap<DirIndex, Option<(Name, Target)>>,
    /// The first index that was given to a new entry in the transaction. The trees contain neither
    /// it nor higher ones.
    first_new_number: Option<DirIndex>,
    /// Bytes of new entries by the hash of their name. Names with the same hash share an item.
    hash_bytes: HashMap<u64, usize>,
    /// Bytes of the names in `by_name`.
    name_bytes: usize,
}

impl Empty for EntryChanges {
    fn empty() -> &'static LazyLock<Self> {
        static EMPTY: LazyLock<EntryChanges> = LazyLock::new(EntryChanges::default);
        &EMPTY
    }
}

impl EntryChanges {
    /// Records that an entry is added with an index that no entry had before.
    pub(super) fn put_new(&mut self, name: Name, index: DirIndex, target: Target) {
        self.first_new_number = Some(self.first_new_number.map_or(index, |first| first.min(index)));
        self.put(name, index, target);
    }

    /// Records that an entry is added.
    pub(super) fn put(&mut self, name: Name, index: DirIndex, target: Target) {
        self.by_number.insert(index, Some((name.clone(), target)));
        let (hash, bytes) = (name_hash(&name), DIR_ENTRY_HEADER + name.len());
        let change = self.by_name.entry(name).or_insert_with_key(|name| {
            self.name_bytes += name.len();
            EntryChange { base: None, now: None }
        });
        if change.now.replace((index, target)).is_none() {
            *self.hash_bytes.entry(hash).or_default() += bytes;
        }
    }

    /// Memory that the changes take, in bytes. Indices without names belong to entries that moved.
    pub(super) fn bytes(&self) -> usize {
        self.by_name.len().max(self.by_number.len()) * ENTRY + self.name_bytes
    }

    /// Bytes that new entries whose names have this hash take in their common item.
    pub(crate) fn bytes_of_hash(&self, hash: u64) -> usize {
        self.hash_bytes.get(&hash).copied().unwrap_or(0)
    }

    /// Records that an entry is removed. `is_logged` says that the transaction's log may contain
    /// it.
    pub(super) fn remove(&mut self, name: Name, index: DirIndex, target: Target, is_logged: bool) {
        if self.first_new_number.is_some_and(|first| index >= first) {
            self.by_number.remove(&index);
        } else {
            self.by_number.insert(index, None);
        }
        let (hash, bytes) = (name_hash(&name), DIR_ENTRY_HEADER + name.len());
        let is_new = |change: &EntryChange| change.base.is_none() && !is_logged;
        let was_new = match self.by_name.entry(name) {
            hash_map::Entry::Occupied(change) if is_new(change.get()) => {
                let (name, change) = change.remove_entry();
                self.name_bytes -= name.len();
                change.now.is_some()
            }
            change => {
                let change = change.or_insert_with_key(|name| {
                    self.name_bytes += name.len();
                    EntryChange { base: Some(target), now: None }
                });
                change.now.take().is_some()
            }
        };
        if was_new && let hash_map::Entry::Occupied(mut sum) = self.hash_bytes.entry(hash) {
            *sum.get_mut() = sum.get().saturating_sub(bytes);
            if *sum.get() == 0 {
                sum.remove();
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.by_name.is_empty() && self.by_number.is_empty() && self.hash_bytes.is_empty() && self.name_bytes == 0
    }
}
