//! What changed of one inode in one transaction: the typed edits that its commit merges into the trees.

use std::collections::{BTreeMap, HashMap, btree_map, hash_map};
use std::sync::{Arc, LazyLock};

use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, Generation, Ino, ItemType, Key, TreeId, name_hash};

use super::Logged;
use super::seldom::Empty;
use crate::file::layout::Layout;

/// Bytes of an entry beside its name.
const ENTRY_HEADER: usize = 30;

/// A file name or xattr name.
pub(crate) type Name = Arc<[u8]>;

/// What a directory entry leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Key of the inode item or of the subvolume's root item.
    pub(crate) location: Key,
    pub(crate) file_type: FileType,
}

impl Target {
    /// The subvolume that it is, or that a snapshot had there.
    pub(crate) fn subvolume(&self) -> Option<TreeId> {
        (self.location.item_type == ItemType::ROOT_ITEM).then_some(TreeId(self.location.objectid))
    }
}

/// What happened to a name of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryChange {
    /// What it led to before the transaction.
    pub(crate) base: Option<Target>,
    /// Its number and what it leads to now.
    pub(crate) now: Option<(DirIndex, Target)>,
}

/// What happened to a name of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RefChange {
    /// Its number in the directory before the transaction, if the inode had the name then.
    pub(crate) base: Option<DirIndex>,
    /// Its number now, if the inode has the name.
    pub(crate) now: Option<DirIndex>,
}

/// A name that an inode loses.
pub(crate) struct LostName {
    pub(crate) dir: Ino,
    pub(crate) name: Name,
    /// Its number in the directory.
    pub(crate) index: DirIndex,
    /// Whether the log has the directory: then it may have the name although it does not have the inode yet.
    pub(crate) is_dir_logged: bool,
}

/// What happened to an inode's orphan item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OrphanEdit {
    #[default]
    None,
    Add,
    Remove,
}

/// The edits of one inode.
#[derive(Default)]
pub(crate) struct InodeBatch {
    /// The transaction; 0 while there is nothing in the batch.
    pub(crate) generation: Generation,
    /// Names of the inode.
    pub(crate) refs: BTreeMap<(Ino, Name), RefChange>,
    /// Entries of the directory, by name …
    pub(crate) entries: HashMap<Name, EntryChange>,
    /// … and by number: `None` is a number that is no longer used.
    pub(crate) entry_numbers: BTreeMap<DirIndex, Option<(Name, Target)>>,
    /// The first number that the directory gave to a new entry in the transaction: the trees know neither it nor those above.
    pub(crate) first_new_number: Option<DirIndex>,
    /// Bytes of new entries by the hash of their name: they share an item.
    pub(crate) hash_bytes: HashMap<u64, usize>,
    /// Extended attributes; `None` is one that was removed.
    pub(crate) xattrs: BTreeMap<Name, Option<Arc<[u8]>>>,
    /// Where the content is.
    pub(crate) layout: Layout,
    pub(crate) orphan: OrphanEdit,
    /// All that the trees have of the inode goes.
    pub(crate) gone: bool,
    /// What the transaction's log has of the inode, if anything.
    pub(crate) logged: Option<Box<Logged>>,
}

impl Empty for InodeBatch {
    fn empty() -> &'static LazyLock<Self> {
        static EMPTY: LazyLock<InodeBatch> = LazyLock::new(InodeBatch::default);
        &EMPTY
    }
}

impl InodeBatch {
    /// Whether the batch belongs to no transaction.
    pub(crate) fn is_clean(&self) -> bool {
        self.generation == Generation(0)
    }

    /// The inode gets a name.
    pub(crate) fn add_ref(&mut self, dir: Ino, name: Name, index: DirIndex) {
        let change = self.refs.entry((dir, name)).or_insert(RefChange { base: None, now: None });
        change.now = Some(index);
        self.names_changed();
    }

    /// The inode loses a name.
    pub(crate) fn remove_ref(&mut self, LostName { dir, name, index, is_dir_logged }: LostName) {
        let is_unheard_of = self.logged.is_none() && !is_dir_logged;
        match self.refs.entry((dir, name)) {
            btree_map::Entry::Occupied(change) if change.get().base.is_none() && is_unheard_of => {
                change.remove();
            }
            change => change.or_insert(RefChange { base: Some(index), now: None }).now = None,
        }
        self.names_changed();
    }

    fn names_changed(&mut self) {
        if let Some(logged) = &mut self.logged {
            logged.names_changed = true;
        }
    }

    /// The inode gets an xattr or, with no value, loses one.
    pub(crate) fn set_xattr(&mut self, name: Name, value: Option<Arc<[u8]>>) {
        self.xattrs.insert(name, value);
        if let Some(logged) = &mut self.logged {
            logged.xattrs_changed = true;
        }
    }

    fn entry_changed(&mut self, name: &Name) {
        if let Some(logged) = self.logged.as_mut().filter(|logged| logged.whole().is_some()) {
            logged.entries.push(name.clone());
        }
    }

    /// The directory gets an entry with a number that no entry had before.
    pub(crate) fn put_new_entry(&mut self, name: Name, index: DirIndex, target: Target) {
        self.first_new_number = Some(self.first_new_number.map_or(index, |first| first.min(index)));
        self.put_entry(name, index, target);
    }

    /// The directory gets an entry.
    pub(crate) fn put_entry(&mut self, name: Name, index: DirIndex, target: Target) {
        self.entry_changed(&name);
        self.entry_numbers.insert(index, Some((name.clone(), target)));
        let (hash, bytes) = (name_hash(&name), ENTRY_HEADER + name.len());
        let change = self.entries.entry(name).or_insert(EntryChange { base: None, now: None });
        if change.now.replace((index, target)).is_none() {
            *self.hash_bytes.entry(hash).or_default() += bytes;
        }
    }

    /// Bytes that new entries with this hash take in their common item.
    pub(crate) fn bytes_of_hash(&self, hash: u64) -> usize {
        self.hash_bytes.get(&hash).copied().unwrap_or(0)
    }

    /// The directory loses an entry.
    pub(crate) fn remove_entry(&mut self, name: Name, index: DirIndex, target: Target) {
        self.entry_changed(&name);
        if self.first_new_number.is_some_and(|first| index >= first) {
            self.entry_numbers.remove(&index);
        } else {
            self.entry_numbers.insert(index, None);
        }
        let (hash, bytes) = (name_hash(&name), ENTRY_HEADER + name.len());
        let is_unheard_of = |change: &EntryChange| change.base.is_none() && self.logged.is_none();
        let was_new = match self.entries.entry(name) {
            hash_map::Entry::Occupied(change) if is_unheard_of(change.get()) => change.remove().now.is_some(),
            change => change.or_insert(EntryChange { base: Some(target), now: None }).now.take().is_some(),
        };
        if was_new && let hash_map::Entry::Occupied(mut sum) = self.hash_bytes.entry(hash) {
            *sum.get_mut() = sum.get().saturating_sub(bytes);
            if *sum.get() == 0 {
                sum.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::ItemType;

    use super::*;

    #[test]
    fn what_comes_and_goes_in_one_transaction_leaves_nothing() {
        let target = Target { location: Key::new(300, ItemType::INODE_ITEM, 0), file_type: FileType::Regular };
        let name = |text: &[u8]| -> Name { text.into() };
        let lost = |text: &[u8], number, is_dir_logged| LostName {
            dir: Ino(256),
            name: name(text),
            index: DirIndex(number),
            is_dir_logged,
        };
        let (mut dir, mut file) = (InodeBatch::default(), InodeBatch::default());
        for number in 10..1000 {
            dir.put_new_entry(name(b"a"), DirIndex(number), target);
            file.add_ref(Ino(256), name(b"a"), DirIndex(number));
            dir.remove_entry(name(b"a"), DirIndex(number), target);
            file.remove_ref(lost(b"a", number, false));
        }
        assert!(dir.entries.is_empty() && dir.entry_numbers.is_empty() && dir.hash_bytes.is_empty());
        assert!(file.refs.is_empty());

        // What the trees know has to be taken out of them, whatever comes in its place and goes.
        dir.remove_entry(name(b"old"), DirIndex(5), target);
        dir.put_new_entry(name(b"old"), DirIndex(1000), target);
        dir.remove_entry(name(b"old"), DirIndex(1000), target);
        assert_eq!(dir.entries[&name(b"old")], EntryChange { base: Some(target), now: None });
        assert_eq!(dir.entry_numbers.into_iter().collect::<Vec<_>>(), [(DirIndex(5), None)]);
        file.remove_ref(lost(b"old", 5, false));
        file.add_ref(Ino(256), name(b"old"), DirIndex(1000));
        file.remove_ref(lost(b"old", 1000, false));
        assert_eq!(file.refs[&(Ino(256), name(b"old"))], RefChange { base: Some(DirIndex(5)), now: None });

        // A log that has the directory may have told of the name before it comes to the inode.
        file.add_ref(Ino(256), name(b"told"), DirIndex(1001));
        file.remove_ref(lost(b"told", 1001, true));
        assert_eq!(file.refs[&(Ino(256), name(b"told"))], RefChange { base: None, now: None });
    }
}
