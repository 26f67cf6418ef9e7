//! The changes of the two sides of a merge, and the identity of inodes in each.

use std::collections::{BTreeMap, HashMap};

use ubtrfs_changes::{FileChange, FileName, WhatChanged, changes, memory};
use ubtrfs_format::items::FileType;
use ubtrfs_format::{Ino, ItemType, Key, TreeId};
use ubtrfs_fs::{Errno, Error, Filesystem, InodeId, Result};

use crate::entries::{Entries, Entry, Node};
use crate::origin;
use crate::outcome::MergeSides;

/// The most inodes that may have changed on one side. Each takes about half a kilobyte.
const MAX_CHANGES: usize = 1 << 20;
/// The most bytes of their names, paths, xattrs and ranges on one side. Data that is derived from
/// them takes a few times as much.
const MAX_BYTES: usize = 256 << 20;

/// The changes from the base to one side.
pub(crate) struct Side {
    pub(crate) subvolume: TreeId,
    /// By number, the inodes that both have, and those that only the side has.
    pub(crate) changed: BTreeMap<Ino, FileChange>,
    pub(crate) made: BTreeMap<Ino, FileChange>,
    /// The inodes that only the base has.
    pub(crate) removed: BTreeMap<Ino, FileChange>,
    /// Makes the node of an inode that the side has made.
    made_by: fn(Ino) -> Node,
}

impl Side {
    fn gather(
        fs: &Filesystem,
        (base, subvolume): (TreeId, TreeId),
        made_by: fn(Ino) -> Node,
        is_wanted: &dyn Fn() -> bool,
    ) -> Result<Self> {
        let mut side =
            Self { subvolume, changed: BTreeMap::new(), made: BTreeMap::new(), removed: BTreeMap::new(), made_by };
        let (mut is_whole, mut is_stopped, mut damaged, mut bytes) = (true, false, None, 0);
        changes(fs, base, subvolume, |change| {
            bytes += memory(&change);
            is_whole = side.len() < MAX_CHANGES && bytes <= MAX_BYTES;
            is_stopped = !is_wanted();
            let is_damaged = |names: &Vec<FileName>| change.file_type == FileType::Directory && names.len() > 1;
            damaged =
                damaged.or([&change.old_names, &change.new_names].into_iter().any(is_damaged).then_some(change.ino));
            let by_number = match change.what {
                WhatChanged::Changed => &mut side.changed,
                WhatChanged::Made => &mut side.made,
                WhatChanged::Removed => &mut side.removed,
            };
            by_number.insert(change.ino, change);
            is_whole && !is_stopped && damaged.is_none()
        })?;
        if is_stopped {
            return Err(Errno::INTR.into());
        }
        // The decision about names would examine all names of a directory for each entry in it.
        if let Some(ino) = damaged {
            let key = Key::new(ino.0, ItemType::INODE_REF, 0);
            return Err(Error::Inconsistent { tree: subvolume, key, what: "the directory has several names" });
        }
        if !is_whole {
            return Err(Errno::TOOBIG.into());
        }
        Ok(side)
    }

    fn len(&self) -> usize {
        self.changed.len() + self.made.len() + self.removed.len()
    }

    /// The node of an inode number on this side.
    pub(crate) fn node(&self, ino: Ino) -> Node {
        if self.made.contains_key(&ino) { (self.made_by)(ino) } else { Node::Base(ino) }
    }

    /// An entry of this side.
    pub(crate) fn entry(&self, name: &FileName) -> Entry {
        (self.node(name.parent), name.name.clone())
    }

    /// All changes.
    pub(crate) fn all(&self) -> impl Iterator<Item = &FileChange> {
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
            // The root directory is in no directory.
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
pub(crate) struct Sides<'a> {
    pub(crate) changed: Side,
    pub(crate) target: Side,
    /// The nodes of entries of the base that a side has changed.
    pub(crate) base_entries: HashMap<Entry, Node>,
    /// The entries in which the changed subvolume differs from the base.
    pub(crate) changed_entries: Entries,
    /// The entries in which the target differs from the base.
    pub(crate) target_entries: Entries,
    /// Returns whether the merge is still wanted.
    is_wanted: &'a dyn Fn() -> bool,
}

impl<'a> Sides<'a> {
    pub(crate) fn gather(fs: &Filesystem, sides: MergeSides, is_wanted: &'a dyn Fn() -> bool) -> Result<Self> {
        origin::check(fs, sides)?;
        let changed = Side::gather(fs, (sides.base, sides.changed), Node::Changed, is_wanted)?;
        let target = Side::gather(fs, (sides.base, sides.target), Node::Target, is_wanted)?;
        let mut base_entries = HashMap::new();
        let changed_entries = changed.add_entries(&mut base_entries);
        let target_entries = target.add_entries(&mut base_entries);
        let mut gathered = Self { changed, target, base_entries, changed_entries, target_entries, is_wanted };
        // Entries of subvolumes are left to their owner: the target keeps its own.
        let base = &gathered.base_entries;
        gathered.changed_entries.retain(|entry, node| {
            let meant = node.or_else(|| base.get(entry).copied());
            !matches!(meant, Some(Node::Subvolume(_)))
        });
        Ok(gathered)
    }

    /// Returns `EINTR` if the merge is not wanted any more.
    pub(crate) fn check_wanted(&self) -> Result<()> {
        if (self.is_wanted)() { Ok(()) } else { Err(Errno::INTR.into()) }
    }

    /// The inode of a node in the changed subvolume.
    pub(crate) fn in_changed(&self, node: Node) -> Option<InodeId> {
        match node {
            Node::Base(ino) if !self.changed.removed.contains_key(&ino) => {
                Some(InodeId::new(self.changed.subvolume, ino))
            }
            Node::Changed(ino) => Some(InodeId::new(self.changed.subvolume, ino)),
            _ => None,
        }
    }

    /// The inode of a node in the target, if it exists before the merge.
    pub(crate) fn in_target(&self, node: Node) -> Option<InodeId> {
        match node {
            Node::Base(ino) if !self.target.removed.contains_key(&ino) => {
                Some(InodeId::new(self.target.subvolume, ino))
            }
            Node::Target(ino) => Some(InodeId::new(self.target.subvolume, ino)),
            _ => None,
        }
    }
}
