//! What the two sides of a merge have changed, and who an inode is in each.

use std::collections::{BTreeMap, HashMap};

use ubtrfs_format::{Ino, TreeId};

use super::entries::{Entries, Entry, Node};
use super::outcome::MergeSides;
use crate::changes::{FileChange, FileName, WhatChanged};
use crate::error::{Errno, Result};
use crate::filesystem::Filesystem;
use crate::inode::InodeId;

/// Inodes that may have changed on both sides together: each takes about half a kilobyte.
const MOST_CHANGES: usize = 1 << 20;

/// The changes from the base to one side.
pub(super) struct Side {
    pub(super) subvolume: TreeId,
    /// By number: inodes that both have, and those that only the side has.
    pub(super) changed: BTreeMap<Ino, FileChange>,
    pub(super) made: BTreeMap<Ino, FileChange>,
    /// Those that only the base has.
    pub(super) removed: BTreeMap<Ino, FileChange>,
    /// Who those are that the side has made.
    made_by: fn(Ino) -> Node,
}

impl Side {
    fn gather(fs: &Filesystem, base: TreeId, subvolume: TreeId, made_by: fn(Ino) -> Node) -> Result<Self> {
        let mut side =
            Self { subvolume, changed: BTreeMap::new(), made: BTreeMap::new(), removed: BTreeMap::new(), made_by };
        let mut is_whole = true;
        fs.changes(base, subvolume, |change| {
            is_whole = side.len() < MOST_CHANGES;
            let by_number = match change.what {
                WhatChanged::Changed => &mut side.changed,
                WhatChanged::Made => &mut side.made,
                WhatChanged::Removed => &mut side.removed,
            };
            by_number.insert(change.ino, change);
            is_whole
        })?;
        if !is_whole {
            return Err(Errno::TOOBIG.into());
        }
        if side.removed.contains_key(&Ino::ROOT_DIR) {
            return Err(Errno::INVAL.into());
        }
        Ok(side)
    }

    fn len(&self) -> usize {
        self.changed.len() + self.made.len() + self.removed.len()
    }

    /// Who has a number on this side.
    pub(super) fn node(&self, ino: Ino) -> Node {
        if self.made.contains_key(&ino) { (self.made_by)(ino) } else { Node::Base(ino) }
    }

    /// An entry of this side.
    pub(super) fn entry(&self, name: &FileName) -> Entry {
        (self.node(name.parent), name.name.clone())
    }

    /// All changes.
    pub(super) fn all(&self) -> impl Iterator<Item = &FileChange> {
        self.changed.values().chain(self.made.values()).chain(self.removed.values())
    }

    fn add_entries(&self, base: &mut HashMap<Entry, Node>) -> Entries {
        let mut entries = Entries::default();
        for change in self.all() {
            for name in &change.names_removed {
                let entry = (Node::Base(name.parent), name.name.clone());
                base.insert(entry.clone(), Node::Base(change.ino));
                entries.note(entry, None, &name.path);
            }
            // The root directory is in none.
            for name in change.names_added.iter().filter(|name| !name.name.is_empty()) {
                let node =
                    if change.what == WhatChanged::Made { self.node(change.ino) } else { Node::Base(change.ino) };
                entries.note(self.entry(name), Some(node), &name.path);
            }
            let Some(dir) = change.new_names.first() else { continue };
            for subvolume in &change.subvolumes {
                let entry = (self.node(change.ino), subvolume.name.clone());
                if let Some(old) = subvolume.old {
                    base.insert(entry.clone(), Node::Subvolume(old));
                }
                let separator: &[u8] = if dir.path.is_empty() { b"" } else { b"/" };
                let path = [&dir.path, separator, &subvolume.name].concat();
                entries.note(entry, subvolume.new.map(Node::Subvolume), &path);
            }
        }
        entries
    }
}

/// Both sides, and the entries that either has changed.
pub(super) struct Sides {
    pub(super) changed: Side,
    pub(super) target: Side,
    /// What entries of the base refer to, as far as a side has changed them.
    pub(super) base_entries: HashMap<Entry, Node>,
    /// The entries that the changed subvolume has not as the base.
    pub(super) changed_entries: Entries,
    /// The same of the target.
    pub(super) target_entries: Entries,
}

impl Sides {
    pub(super) fn gather(fs: &Filesystem, sides: MergeSides) -> Result<Self> {
        let changed = Side::gather(fs, sides.base, sides.changed, Node::Changed)?;
        let target = Side::gather(fs, sides.base, sides.target, Node::Target)?;
        let mut base_entries = HashMap::new();
        let changed_entries = changed.add_entries(&mut base_entries);
        let target_entries = target.add_entries(&mut base_entries);
        let mut gathered = Self { changed, target, base_entries, changed_entries, target_entries };
        // Entries of subvolumes are the owner's affair: the target keeps its own.
        let base = &gathered.base_entries;
        gathered.changed_entries.retain(|entry, node| {
            let meant = node.or_else(|| base.get(entry).copied());
            !matches!(meant, Some(Node::Subvolume(_)))
        });
        Ok(gathered)
    }

    /// The inode that a node is in the changed subvolume.
    pub(super) fn in_changed(&self, node: Node) -> Option<InodeId> {
        match node {
            Node::Base(ino) if !self.changed.removed.contains_key(&ino) => {
                Some(InodeId::new(self.changed.subvolume, ino))
            }
            Node::Changed(ino) => Some(InodeId::new(self.changed.subvolume, ino)),
            _ => None,
        }
    }

    /// The inode that a node is in the target, if it is there before the merge.
    pub(super) fn in_target(&self, node: Node) -> Option<InodeId> {
        match node {
            Node::Base(ino) if !self.target.removed.contains_key(&ino) => {
                Some(InodeId::new(self.target.subvolume, ino))
            }
            Node::Target(ino) => Some(InodeId::new(self.target.subvolume, ino)),
            _ => None,
        }
    }
}
