//! The batch: the typed edits to one inode in one transaction, which its commit merges into the
//! trees.

use std::sync::{Arc, LazyLock};

use ubtrfs_file::change_memory::{Account, DISPLACED, INODE};
use ubtrfs_file::{Layout, VerityItems};
use ubtrfs_format::{DirIndex, Generation, Ino};

use super::Logged;
use super::changes::{LostName, Name, OrphanEdit, RefChange, Target};
use super::entry_changes::EntryChanges;
use super::lazy_box::{Empty, LazyBox};
use super::name_changes::NameChanges;
use super::xattr_changes::XattrChanges;

/// The edits of one inode in one transaction.
#[derive(Default)]
pub(crate) struct InodeBatch {
    /// The generation of the transaction; 0 while the batch is empty.
    pub(crate) generation: Generation,
    /// Names of the inode.
    pub(crate) refs: NameChanges,
    /// Entries of the directory.
    pub(crate) entries: LazyBox<EntryChanges>,
    /// Extended attributes; a removed one is `None`.
    pub(crate) xattrs: XattrChanges,
    /// The changes to the map from offsets to extents.
    pub(crate) layout: Layout,
    pub(crate) orphan: OrphanEdit,
    /// The new verity items, if the file gets them in this transaction.
    pub(crate) verity: Option<Box<VerityItems>>,
    /// Whether all items of the inode are deleted.
    pub(crate) gone: bool,
    /// What the transaction's log has of the inode, if anything.
    pub(crate) logged: Option<Box<Logged>>,
    /// Number of committed pieces that are deleted.
    pub(crate) displaced: usize,
    /// The memory that it has counted for its transaction.
    pub(crate) account: Account,
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

    /// Memory that it takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let listed = self.logged.as_ref().map_or(0, |logged| logged.bytes());
        let content = self.layout.bytes() + self.displaced * DISPLACED;
        let verity = self.verity.as_ref().map_or(0, |items| items.bytes());
        verity + INODE + self.refs.bytes() + self.entries.bytes() + self.xattrs.bytes() + content + listed
    }

    /// Records that the inode gets a name.
    pub(crate) fn add_ref(&mut self, dir: Ino, name: Name, index: DirIndex) {
        let name = (dir, name);
        let base = self.refs.get(&name).and_then(|change| change.base);
        self.refs.put(name, RefChange { base, now: Some(index) });
        self.names_changed();
    }

    /// Records that the inode loses a name.
    pub(crate) fn remove_ref(&mut self, LostName { dir, name, index, is_dir_logged }: LostName) {
        let is_new = self.logged.is_none() && !is_dir_logged;
        let name = (dir, name);
        if is_new && self.refs.get(&name).is_some_and(|change| change.base.is_none()) {
            self.refs.remove(&name);
        } else {
            let base = self.refs.get(&name).map_or(Some(index), |change| change.base);
            self.refs.put(name, RefChange { base, now: None });
        }
        self.names_changed();
    }

    fn names_changed(&mut self) {
        if let Some(logged) = &mut self.logged {
            logged.names_changed = true;
        }
    }

    /// Records that the inode gets an xattr or, if the value is `None`, loses it.
    pub(crate) fn set_xattr(&mut self, name: Name, value: Option<Arc<[u8]>>) {
        self.xattrs.insert(name, value);
        if let Some(logged) = &mut self.logged {
            logged.xattrs_changed = true;
        }
    }

    fn entry_changed(&mut self, name: &Name) {
        if let Some(logged) = self.logged.as_mut().filter(|logged| logged.whole().is_some()) {
            logged.push_entry(name.clone());
        }
    }

    /// Records that the directory gets an entry with an index that no entry had before.
    pub(crate) fn put_new_entry(&mut self, name: Name, index: DirIndex, target: Target) {
        self.entry_changed(&name);
        self.entries.put_new(name, index, target);
    }

    /// Records that the directory gets an entry.
    pub(crate) fn put_entry(&mut self, name: Name, index: DirIndex, target: Target) {
        self.entry_changed(&name);
        self.entries.put(name, index, target);
    }

    /// Records that the directory loses an entry.
    pub(crate) fn remove_entry(&mut self, name: Name, index: DirIndex, target: Target) {
        self.entry_changed(&name);
        let is_logged = self.logged.is_some();
        self.entries.remove(name, index, target, is_logged);
    }
}

#[cfg(test)]
mod tests {
    use ubtrfs_format::{ItemType, Key};

    use ubtrfs_format::items::FileType;

    use super::*;
    use crate::inode::EntryChange;

    #[test]
    fn names_that_are_added_and_removed_in_one_transaction_leave_nothing() {
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
        assert!(dir.entries.is_empty());
        assert!(file.refs.is_empty());

        // Committed entries must be deleted from the trees, whatever replaced them in between.
        dir.remove_entry(name(b"old"), DirIndex(5), target);
        dir.put_new_entry(name(b"old"), DirIndex(1000), target);
        dir.remove_entry(name(b"old"), DirIndex(1000), target);
        assert_eq!(dir.entries.by_name[&name(b"old")], EntryChange { base: Some(target), now: None });
        assert_eq!(dir.entries.into_inner().by_number.into_iter().collect::<Vec<_>>(), [(DirIndex(5), None)]);
        file.remove_ref(lost(b"old", 5, false));
        file.add_ref(Ino(256), name(b"old"), DirIndex(1000));
        file.remove_ref(lost(b"old", 1000, false));
        assert_eq!(file.refs.get(&(Ino(256), name(b"old"))), Some(&RefChange { base: Some(DirIndex(5)), now: None }));

        // If the log contains the directory, it may contain the name without the inode.
        file.add_ref(Ino(256), name(b"logged_name"), DirIndex(1001));
        file.remove_ref(lost(b"logged_name", 1001, true));
        assert_eq!(file.refs.get(&(Ino(256), name(b"logged_name"))), Some(&RefChange { base: None, now: None }));
    }
}
