//! Checks that every directory index has a matching reference in the inode that it points to, and
//! vice versa.
//!
//! Both sides are reduced to fingerprints, which cancel each other out, so that only names whose
//! other half has not been found yet take a few bytes of memory each. The names of the remaining
//! fingerprints are looked up in a second walk and reported.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use ubtrfs_format::items::{FileType, dir_entries, inode_backrefs};
use ubtrfs_format::posix::S_IFDIR;
use ubtrfs_format::{Ino, ItemType, Key, Leaf, Logical, TreeId};

use crate::fault::{FaultKind, Location, shown};
use crate::report::Faults;
use crate::walk::{TreeRoot, Visitor, Walker};

/// A name that joins a directory and an inode.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Joint<'a> {
    pub(super) parent: u64,
    pub(super) child: u64,
    pub(super) index: u64,
    pub(super) file_type: u8,
    pub(super) name: &'a [u8],
}

/// The fingerprints of names that were found on one side only.
#[derive(Default)]
pub(super) struct Names {
    hasher: RandomState,
    entries: HashSet<u64>,
    refs: HashSet<u64>,
}

impl Names {
    /// Adds a name by a directory's index.
    pub(super) fn entry(&mut self, name: &Joint<'_>) {
        let print = self.hasher.hash_one(name);
        if !self.refs.remove(&print) {
            self.entries.insert(print);
        }
    }

    /// Adds a name by the inode's reference.
    pub(super) fn reference(&mut self, name: &Joint<'_>) {
        let print = self.hasher.hash_one(name);
        if !self.entries.remove(&print) {
            self.refs.insert(print);
        }
    }

    /// The fingerprint of any value, by the same random key.
    pub(super) fn print(&self, what: impl std::hash::Hash) -> u64 {
        self.hasher.hash_one(what)
    }

    /// Reports the faults of the names whose other half was not found.
    pub(super) fn explain(self, walker: &Walker<'_>, root: &TreeRoot, faults: &mut Faults) {
        if self.entries.is_empty() && self.refs.is_empty() {
            return;
        }
        let waiting = self.entries.len() + self.refs.len();
        let mut left = Leftovers { limit: faults.room(), names: self, mode: (0, 0), entries: vec![], refs: vec![] };
        walker.walk_again(root, &mut left, faults);
        let Leftovers { entries, mut refs, .. } = left;
        faults.count(waiting.saturating_sub(entries.len() + refs.len()));
        for entry in entries {
            let alike = |one: &Owned| one.parent == entry.parent && one.child == entry.child;
            let partner = refs
                .iter()
                .position(|one| alike(one) && one.name == entry.name)
                .or_else(|| refs.iter().position(|one| alike(one) && one.index == entry.index));
            let partner = partner.map(|position| refs.swap_remove(position));
            let (kind, inode) = entry.judge(partner, walker, root);
            faults.add(kind, Location::inode(root.tree, Ino(inode)));
        }
        for one in refs {
            let parent = one.parent;
            let known = exists(walker, root, parent);
            let name = shown(&one.name);
            let kind = if known {
                FaultKind::RefWithoutEntry { name, parent }
            } else {
                FaultKind::RefWithoutDirectory { name, parent }
            };
            faults.add(kind, Location::inode(root.tree, Ino(one.child)));
        }
    }
}

fn exists(walker: &Walker<'_>, root: &TreeRoot, ino: u64) -> bool {
    walker.find(root, &Key::new(ino, ItemType::INODE_ITEM, 0)).is_some()
}

/// A name to explain.
struct Owned {
    parent: u64,
    child: u64,
    index: u64,
    file_type: u8,
    name: Vec<u8>,
}

impl Owned {
    fn of(name: &Joint<'_>) -> Self {
        Self {
            parent: name.parent,
            child: name.child,
            index: name.index,
            file_type: name.file_type,
            name: name.name.to_vec(),
        }
    }

    /// The fault of this directory entry, and the inode for which it is reported.
    fn judge(self, partner: Option<Self>, walker: &Walker<'_>, root: &TreeRoot) -> (FaultKind, u64) {
        let (parent, name) = (self.parent, shown(&self.name));
        match partner {
            Some(partner) if partner.name != self.name => {
                let expected = shown(&partner.name);
                (FaultKind::NameMismatch { parent, index: self.index, found: name, expected }, self.child)
            }
            Some(partner) if partner.index != self.index => {
                let (found, expected) = (partner.index, self.index);
                (FaultKind::IndexMismatch { name, parent, found, expected }, self.child)
            }
            // The inode has reference items but no inode item, so its type is unknown.
            Some(partner) if partner.file_type == FileType::Unknown.raw() => {
                (FaultKind::EntryWithoutInode { name, inode: self.child }, parent)
            }
            Some(partner) => {
                let (found, expected) = (self.file_type.into(), partner.file_type.into());
                (FaultKind::TypeMismatch { name, parent, found, expected }, self.child)
            }
            None if exists(walker, root, self.child) => {
                (FaultKind::EntryWithoutRef { name, inode: self.child }, parent)
            }
            None => (FaultKind::EntryWithoutInode { name, inode: self.child }, parent),
        }
    }
}

/// Collects the names whose fingerprints are left over.
struct Leftovers {
    limit: usize,
    names: Names,
    /// The inode that was read last, and its mode.
    mode: (u64, u32),
    entries: Vec<Owned>,
    refs: Vec<Owned>,
}

impl Leftovers {
    fn reference(&mut self, name: &Joint<'_>) {
        if self.refs.len() < self.limit && self.names.refs.contains(&self.names.print(name)) {
            self.refs.push(Owned::of(name));
        }
    }
}

impl Visitor for Leftovers {
    fn leaf(&mut self, _: Logical, leaf: &Leaf<'_>, _: &mut Faults) {
        for (key, data) in leaf.iter() {
            let mode = if self.mode.0 == key.objectid { self.mode.1 } else { 0 };
            match key.item_type {
                ItemType::INODE_ITEM => {
                    let mode = ubtrfs_format::items::InodeItem::parse(data).map_or(0, |item| item.mode);
                    self.mode = (key.objectid, mode);
                }
                ItemType::INODE_REF | ItemType::INODE_EXTREF => names_of(key, data, mode, |name| self.reference(name)),
                ItemType::DIR_INDEX => entries_of(key, data, |name| {
                    if self.entries.len() < self.limit && self.names.entries.contains(&self.names.print(name)) {
                        self.entries.push(Owned::of(name));
                    }
                }),
                _ => {}
            }
        }
    }
}

/// The names in the reference item of an inode of this mode. The root directory's `..` is left out.
pub(super) fn names_of(key: Key, data: &[u8], mode: u32, mut each: impl FnMut(&Joint<'_>)) {
    let file_type = FileType::from_mode(mode).raw();
    let child = key.objectid;
    if key.item_type == ItemType::INODE_REF && key.offset == child {
        return;
    }
    for found in inode_backrefs(&key, data).flatten() {
        each(&Joint { parent: found.parent.0, child, index: found.index.0, file_type, name: found.name });
    }
}

/// The names in a directory index that point to inodes of the same subvolume.
pub(super) fn entries_of(key: Key, data: &[u8], mut each: impl FnMut(&Joint<'_>)) {
    for found in dir_entries(data).flatten().filter(|found| found.location.item_type == ItemType::INODE_ITEM) {
        each(&Joint {
            parent: key.objectid,
            child: found.location.objectid,
            index: key.offset,
            file_type: found.file_type.raw(),
            name: found.name,
        });
    }
}

/// A path from the subvolume's root to an inode, by the first name of each step.
pub(crate) fn path_of(walker: &Walker<'_>, root: &TreeRoot, ino: Ino) -> Option<String> {
    // Deeper trees exist, but a longer path is of no use.
    const MAX_STEPS: usize = 64;
    let mut steps = Vec::new();
    let mut at = ino.0;
    while at != Ino::ROOT_DIR.0 {
        if steps.len() == MAX_STEPS {
            return None;
        }
        let (key, data) = walker.first_from(root, &Key::new(at, ItemType::INODE_REF, 0))?;
        if key.objectid != at {
            return None;
        }
        let found = inode_backrefs(&key, &data).next()?.ok()?;
        steps.push(shown(found.name));
        at = found.parent.0;
    }
    steps.reverse();
    Some(format!("/{}", steps.join("/")))
}

/// Reports directories that are their own ancestors.
pub(super) fn judge_loops(tree: TreeId, parents: &std::collections::HashMap<u64, u64>, faults: &mut Faults) {
    let mut settled: HashSet<u64> = HashSet::new();
    let mut directories: Vec<u64> = parents.keys().copied().collect();
    directories.sort_unstable();
    for start in directories {
        let mut chain = HashSet::new();
        let mut at = start;
        while !settled.contains(&at) {
            if !chain.insert(at) {
                faults.add(FaultKind::UnreachableDirectory, Location::inode(tree, Ino(at)));
                break;
            }
            match parents.get(&at) {
                Some(parent) => at = *parent,
                None => break,
            }
        }
        settled.extend(chain);
    }
}

/// Returns whether an inode of this mode is a directory.
pub(super) fn is_directory(mode: u32) -> bool {
    FileType::from_mode(mode) == FileType::Directory && mode & S_IFDIR != 0
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn each_loop_is_reported_once() {
        // 300 -> 301 -> 302 -> 301, 303 -> 300, and also 304 -> 256.
        let parents = HashMap::from([(300, 301), (301, 302), (302, 301), (303, 300), (304, 256)]);
        let mut faults = Faults::new(10);
        judge_loops(TreeId::FS, &parents, &mut faults);
        assert_eq!(faults.report.fault_count, 1);
        assert_eq!(faults.report.faults[0].kind, FaultKind::UnreachableDirectory);
        assert_eq!(faults.report.faults[0].place.inode, Some(Ino(301)));
    }
}
