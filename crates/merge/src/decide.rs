//! Decides which names the target gets.
//!
//! An entry that only one side has changed gets that side's value. If both have changed it
//! differently, the preferred side's values apply to that entry, to all names of the inodes that it
//! has referred to, and so on: each side is consistent in itself, and so is what is taken as a
//! whole from one side. This continues until every directory with entries exists, no inode that
//! both sides have is without a name, and no directory is below itself.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ubtrfs_changes::{ChangedAttribute, FileChange};
use ubtrfs_format::Ino;
use ubtrfs_format::items::FileType;
use ubtrfs_fs::{Errno, Filesystem, Result};

use crate::entries::{Entries, Entry, Node};
use crate::outcome::{ConflictKind, MergeConflict, Prefer};
use crate::sides::Sides;

/// The most entries and inodes that may be examined while flaws are mended. Each round examines all
/// of them, and settles only one of several nested directories.
const MAX_STEPS: usize = 1 << 27;

/// A flaw of the decision, which must be decided again: the entries that belong to it, a path, and
/// the conflict.
type Flaw = (Vec<Entry>, Vec<u8>, ConflictKind);

/// The names that the target gets.
pub(crate) struct Decision {
    /// The changed subvolume's entries, with the target's nodes for inodes that both have made
    /// alike.
    changed: Entries,
    /// Entries that both sides have changed differently, and entries of inodes that are in a
    /// conflict.
    forced: HashSet<Entry>,
    /// Inodes of which all entries are among these, or will be.
    forced_nodes: HashSet<Node>,
    /// The target's node for each inode that both sides have made alike.
    same: BTreeMap<Node, Node>,
    /// For each inode, its entries that a side has changed.
    names: HashMap<Node, BTreeSet<Entry>>,
    prefers_theirs: bool,
    pub(crate) conflicts: BTreeSet<MergeConflict>,
}

impl Decision {
    /// Makes the decision. `same` has the target's node for each inode of the other side that is
    /// alike.
    pub(crate) fn make(fs: &Filesystem, sides: &Sides<'_>, same: BTreeMap<Node, Node>, prefer: Prefer) -> Result<Self> {
        let changed = sides.changed_entries.renamed(|node| same.get(&node).copied().unwrap_or(node));
        let mut names: HashMap<Node, BTreeSet<Entry>> = HashMap::new();
        let both = changed.iter().chain(sides.target_entries.iter());
        for (entry, node) in both.filter_map(|(entry, node)| Some((entry, node?))) {
            names.entry(node).or_default().insert(entry.clone());
        }
        for (entry, node) in &sides.base_entries {
            names.entry(*node).or_default().insert(entry.clone());
        }
        let mut decision = Self {
            changed,
            forced: HashSet::new(),
            forced_nodes: HashSet::new(),
            same,
            names,
            prefers_theirs: prefer == Prefer::Theirs,
            conflicts: BTreeSet::new(),
        };
        decision.compare_entries(sides);
        decision.compare_inodes(sides);
        let each = decision.changed.len() + sides.target_entries.len() + sides.changed.changed.len();
        let mut steps = 0;
        while decision.mend(fs, sides)? {
            sides.check_wanted()?;
            steps += each;
            if steps > MAX_STEPS {
                return Err(Errno::TOOBIG.into());
            }
        }
        Ok(decision)
    }

    /// The target's node for an inode that both sides have made alike; other nodes stay.
    pub(crate) fn canonical(&self, node: Node) -> Node {
        self.same.get(&node).copied().unwrap_or(node)
    }

    /// The entries that a side has changed.
    pub(crate) fn entries<'a>(&'a self, sides: &'a Sides<'_>) -> impl Iterator<Item = &'a Entry> {
        let only_target = sides.target_entries.iter().filter(|(entry, _)| !self.changed.has(entry));
        self.changed.iter().chain(only_target).map(|(entry, _)| entry)
    }

    fn base(sides: &Sides<'_>, entry: &Entry) -> Option<Node> {
        sides.base_entries.get(entry).copied()
    }

    fn theirs(&self, sides: &Sides<'_>, entry: &Entry) -> Option<Node> {
        self.changed.after(entry, Self::base(sides, entry))
    }

    /// The node of an entry in the target before the merge.
    pub(crate) fn ours(sides: &Sides<'_>, entry: &Entry) -> Option<Node> {
        sides.target_entries.after(entry, Self::base(sides, entry))
    }

    /// The node that an entry is to have.
    pub(crate) fn decided(&self, sides: &Sides<'_>, entry: &Entry) -> Option<Node> {
        let (base, ours, theirs) = (Self::base(sides, entry), Self::ours(sides, entry), self.theirs(sides, entry));
        let takes_theirs = if self.forced.contains(entry) { self.prefers_theirs } else { ours == base };
        if takes_theirs { theirs } else { ours }
    }

    /// The path of an entry, for messages.
    pub(crate) fn path(&self, sides: &Sides<'_>, entry: &Entry) -> Vec<u8> {
        let path = self.changed.path(entry).or_else(|| sides.target_entries.path(entry));
        path.unwrap_or(&entry.1).to_vec()
    }

    fn note(&mut self, path: Vec<u8>, kind: ConflictKind) {
        self.conflicts.insert(MergeConflict { path, kind });
    }

    /// Decides an entry, and all entries that belong to the same inodes, for the preferred side.
    fn force(&mut self, sides: &Sides<'_>, first: Entry) {
        let mut waiting = vec![first];
        while let Some(entry) = waiting.pop() {
            if self.forced.contains(&entry) {
                continue;
            }
            let meant = [Self::base(sides, &entry), Self::ours(sides, &entry), self.theirs(sides, &entry)];
            self.forced.insert(entry);
            for node in meant.into_iter().flatten() {
                // All entries of a file lead to the same names, of which there may be very many, so
                // they are added only once.
                if self.forced_nodes.insert(node) {
                    waiting.extend(self.names.get(&node).into_iter().flatten().cloned());
                }
            }
        }
    }

    fn force_all(&mut self, sides: &Sides<'_>, node: Node) {
        for entry in self.names.get(&node).cloned().unwrap_or_default() {
            self.force(sides, entry);
        }
    }

    /// Finds entries to which both sides gave different inodes.
    fn compare_entries(&mut self, sides: &Sides<'_>) {
        let entries: Vec<Entry> = self.changed.iter().map(|(entry, _)| entry.clone()).collect();
        for entry in entries {
            let (base, ours) = (Self::base(sides, &entry), Self::ours(sides, &entry));
            let theirs = self.theirs(sides, &entry);
            if ours != base && theirs != base && ours != theirs {
                self.note(self.path(sides, &entry), ConflictKind::Name);
                self.force(sides, entry);
            }
        }
    }

    /// Finds inodes that both sides have changed in ways that exclude each other.
    fn compare_inodes(&mut self, sides: &Sides<'_>) {
        let (theirs, ours) = (&sides.changed, &sides.target);
        let mut found = Vec::new();
        for (ino, change) in &theirs.removed {
            if let Some(other) = ours.changed.get(ino)
                && is_significant(other)
            {
                found.push((Node::Base(*ino), path_of(change), ConflictKind::RemovedByChanged));
            }
        }
        for (ino, change) in &theirs.changed {
            if ours.removed.contains_key(ino) && is_significant(change) {
                found.push((Node::Base(*ino), path_of(change), ConflictKind::RemovedByTarget));
            }
            if let Some(other) = ours.changed.get(ino)
                && self.is_renamed_differently(sides, change, other)
            {
                found.push((Node::Base(*ino), path_of(change), ConflictKind::Renamed));
            }
        }
        for (node, path, kind) in found {
            self.note(path, kind);
            self.force_all(sides, node);
        }
    }

    fn is_renamed_differently(&self, sides: &Sides<'_>, theirs: &FileChange, ours: &FileChange) -> bool {
        let added: BTreeSet<Entry> = theirs.names_added.iter().map(|name| sides.changed.entry(name)).collect();
        let added: BTreeSet<Entry> = added.into_iter().map(|(dir, name)| (self.canonical(dir), name)).collect();
        let others: BTreeSet<Entry> = ours.names_added.iter().map(|name| sides.target.entry(name)).collect();
        let gone = |change: &FileChange| -> BTreeSet<(u64, Vec<u8>)> {
            change.names_removed.iter().map(|name| (name.parent.0, name.name.clone())).collect()
        };
        !added.is_subset(&others) && !others.is_subset(&added) && !gone(theirs).is_disjoint(&gone(ours))
    }

    /// Looks for flaws of the decision, and decides their entries again. Returns whether there were
    /// any.
    fn mend(&mut self, fs: &Filesystem, sides: &Sides<'_>) -> Result<bool> {
        let mut found: Vec<Flaw> = Vec::new();
        for entry in self.entries(sides) {
            let node = self.decided(sides, entry);
            // This entry was put into a directory that is to be removed.
            if node.is_some() && !self.is_there(sides, entry.0) {
                let mut tied: Vec<Entry> = self.names.get(&entry.0).into_iter().flatten().cloned().collect();
                tied.push(entry.clone());
                found.push((tied, self.path(sides, entry), ConflictKind::Directory));
            }
        }
        for (ino, change) in &sides.changed.changed {
            let node = Node::Base(*ino);
            if sides.in_target(node).is_some() && !self.is_there(sides, node) {
                let tied = self.names.get(&node).into_iter().flatten().cloned().collect();
                found.push((tied, path_of(change), ConflictKind::Renamed));
            }
        }
        if found.is_empty() {
            found = self.loops(fs, sides)?;
        }
        let mut is_mended = false;
        for (tied, path, kind) in found {
            if tied.iter().all(|entry| self.forced.contains(entry)) {
                continue;
            }
            is_mended = true;
            self.note(path, kind);
            for entry in tied {
                self.force(sides, entry);
            }
        }
        Ok(is_mended)
    }

    /// Returns whether an inode has a name by the decision.
    pub(crate) fn is_there(&self, sides: &Sides<'_>, node: Node) -> bool {
        let Some(names) = self.names.get(&node) else { return true };
        if names.iter().any(|entry| self.decided(sides, entry) == Some(node)) {
            return true;
        }
        // An inode of the base may have names that no side has changed.
        let Node::Base(ino) = node else { return false };
        let change = sides.changed.changed.get(&ino).or_else(|| sides.target.changed.get(&ino));
        change.is_some_and(|change| {
            let mut in_base = change.old_names.iter().map(|name| (Node::Base(name.parent), name.name.clone()));
            in_base.any(|entry| !names.contains(&entry))
        })
    }

    /// Finds directories that would be below themselves, with the names that cause this.
    fn loops(&self, fs: &Filesystem, sides: &Sides<'_>) -> Result<Vec<Flaw>> {
        let mut found = Vec::new();
        let moved = sides
            .changed
            .changed
            .values()
            .filter(|change| change.file_type == FileType::Directory && !change.names_added.is_empty());
        // Directories above which all loops have been found.
        let mut settled = HashSet::new();
        for change in moved {
            let mut at = Node::Base(change.ino);
            let (mut above, mut places) = (Vec::new(), HashMap::new());
            let end = loop {
                if settled.contains(&at) {
                    break None;
                }
                if let Some(place) = places.get(&at) {
                    break Some(*place);
                }
                places.insert(at, above.len());
                above.push(at);
                match self.parent(fs, sides, at)? {
                    Some(parent) => at = parent,
                    None => break None,
                }
            };
            if let Some(first) = end {
                let ring: &[Node] = &above[first..];
                let tied = ring.iter().filter_map(|node| self.names.get(node)).flatten().cloned();
                let moved = |node: &Node| match node {
                    Node::Base(ino) => sides.changed.changed.get(ino).filter(|change| !change.names_added.is_empty()),
                    _ => None,
                };
                let named = ring.iter().filter_map(moved).min_by_key(|change| change.ino).unwrap_or(change);
                found.push((tied.collect(), path_of(named), ConflictKind::Loop));
            }
            settled.extend(above);
        }
        Ok(found)
    }

    /// The directory that is to be a directory's parent.
    fn parent(&self, fs: &Filesystem, sides: &Sides<'_>, dir: Node) -> Result<Option<Node>> {
        let names = self.names.get(&dir).into_iter().flatten();
        for entry in names {
            if self.decided(sides, entry) == Some(dir) {
                return Ok(Some(entry.0));
            }
        }
        match (dir, sides.in_target(dir)) {
            (Node::Base(ino), Some(id)) if ino != Ino::ROOT_DIR => {
                Ok(Some(sides.target.node(fs.directories().parent(id)?.ino)))
            }
            _ => Ok(None),
        }
    }
}

/// Returns whether more changed than times and attributes that follow from entries.
fn is_significant(change: &FileChange) -> bool {
    let is_directory = change.file_type == FileType::Directory;
    let counts = |attribute: &ChangedAttribute| match attribute {
        ChangedAttribute::AccessTime
        | ChangedAttribute::ModificationTime
        | ChangedAttribute::ChangeTime
        | ChangedAttribute::CreationTime => false,
        ChangedAttribute::Size => !is_directory,
        _ => true,
    };
    change.attributes.iter().any(counts)
        || !change.xattrs.is_empty()
        || !change.content.is_empty()
        || !change.names_added.is_empty()
}

fn path_of(change: &FileChange) -> Vec<u8> {
    change.old_names.first().or(change.new_names.first()).map(|name| name.path.clone()).unwrap_or_default()
}
