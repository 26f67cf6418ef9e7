//! What changed of one inode in one transaction: the typed edits that its commit merges into the trees.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ubtrfs_format::items::FileType;
use ubtrfs_format::{DirIndex, Generation, Ino, Key, name_hash};

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

/// What happened to a name of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EntryEdit {
    Put { index: DirIndex, target: Target },
    Remove,
}

/// What happened to a name of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RefEdit {
    Add(DirIndex),
    Remove,
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
    pub(crate) refs: BTreeMap<(Ino, Name), RefEdit>,
    /// Entries of the directory, by name …
    pub(crate) entries: HashMap<Name, EntryEdit>,
    /// … and by number: `None` is a number that is no longer used.
    pub(crate) entry_numbers: BTreeMap<DirIndex, Option<(Name, Target)>>,
    /// Bytes of new entries by the hash of their name: they share an item.
    pub(crate) hash_bytes: HashMap<u64, usize>,
    /// Extended attributes; `None` is one that was removed.
    pub(crate) xattrs: BTreeMap<Name, Option<Arc<[u8]>>>,
    /// Where the content is.
    pub(crate) layout: Layout,
    pub(crate) orphan: OrphanEdit,
    /// All that the trees have of the inode goes.
    pub(crate) gone: bool,
}

impl InodeBatch {
    /// Whether the batch belongs to no transaction.
    pub(crate) fn is_clean(&self) -> bool {
        self.generation == Generation(0)
    }

    pub(crate) fn put_entry(&mut self, name: Name, index: DirIndex, target: Target) {
        self.entry_numbers.insert(index, Some((name.clone(), target)));
        let (hash, bytes) = (name_hash(&name), ENTRY_HEADER + name.len());
        if !matches!(self.entries.insert(name, EntryEdit::Put { index, target }), Some(EntryEdit::Put { .. })) {
            *self.hash_bytes.entry(hash).or_default() += bytes;
        }
    }

    /// Bytes that new entries with this hash take in their common item.
    pub(crate) fn bytes_of_hash(&self, hash: u64) -> usize {
        self.hash_bytes.get(&hash).copied().unwrap_or(0)
    }

    pub(crate) fn remove_entry(&mut self, name: Name, index: DirIndex) {
        self.entry_numbers.insert(index, None);
        let (hash, bytes) = (name_hash(&name), ENTRY_HEADER + name.len());
        if matches!(self.entries.insert(name, EntryEdit::Remove), Some(EntryEdit::Put { .. }))
            && let Some(sum) = self.hash_bytes.get_mut(&hash)
        {
            *sum = sum.saturating_sub(bytes);
        }
    }
}
