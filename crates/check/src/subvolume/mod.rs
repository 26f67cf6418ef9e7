//! Checks the files and directories of a subvolume.

mod file;
mod names;

use std::collections::{HashMap, HashSet};

use ubtrfs_format::items::{DirEntry, FileExtent, InodeItem, InodeRef, dir_entries, inode_refs};
use ubtrfs_format::{DirIndex, Ino, ItemType, Key, Leaf, Logical, TreeId, objectid};

pub(crate) use file::Rules;
pub(crate) use names::path_of;

use crate::fault::{FaultKind, Location, shown};
use crate::placement;
use crate::report::Faults;
use crate::roots::Link;
use crate::walk::{TreeRoot, Visitor, Walker};
use file::Content;
use names::{Names, entries_of, names_of};

/// The inode whose items are being read.
struct Inode {
    ino: u64,
    item: Option<InodeItem>,
    /// Whether some of its items could not be read, so that it can't be checked as a whole.
    partial: bool,
    /// The number of names in its reference items.
    names: u64,
    /// Directory items whose index has not come yet: the fingerprint and the hash in the key.
    waiting: HashMap<u64, u64>,
    /// The number of bytes of names in directory items and indexes.
    entry_bytes: u64,
    has_entries: bool,
    content: Content,
}

/// Checks a subvolume while its items are visited in order.
pub(crate) struct SubvolumeCheck<'a> {
    tree: TreeId,
    rules: Rules<'a>,
    names: Names,
    /// The parent of each directory.
    parents: HashMap<u64, u64>,
    /// Inodes with a link count of 0.
    unlinked: Vec<u64>,
    orphans: HashSet<u64>,
    /// Directory items without an index: key and fingerprint.
    unpaired: Vec<(Key, u64)>,
    current: Option<Inode>,
    /// Whether the root directory has items.
    has_root: bool,
    /// Whether the items just before could not be read.
    after_gap: bool,
    complete: bool,
    links: Vec<Link>,
    inodes: u64,
    entries: u64,
}

/// The results of the check of a subvolume.
pub(crate) struct Finished {
    /// Whether all of it could be read.
    pub(crate) complete: bool,
    /// Entries that point to other subvolumes.
    pub(crate) links: Vec<Link>,
    pub(crate) inodes: u64,
    pub(crate) entries: u64,
}

impl<'a> SubvolumeCheck<'a> {
    pub(crate) fn new(tree: TreeId, rules: Rules<'a>) -> Self {
        Self {
            tree,
            rules,
            names: Names::default(),
            parents: HashMap::new(),
            unlinked: Vec::new(),
            orphans: HashSet::new(),
            unpaired: Vec::new(),
            current: None,
            has_root: false,
            after_gap: false,
            complete: true,
            links: Vec::new(),
            inodes: 0,
            entries: 0,
        }
    }

    /// Ends the check with the comparisons that need the whole subvolume.
    pub(crate) fn finish(mut self, walker: &Walker<'_>, root: &TreeRoot, faults: &mut Faults) -> Finished {
        self.close(faults);
        for (key, print) in std::mem::take(&mut self.unpaired) {
            let data = walker.find(root, &key).unwrap_or_default();
            let mut found = dir_entries(&data).flatten();
            let name = found
                .find(|entry| self.names.print((entry.location, entry.file_type, entry.name)) == print)
                .map_or_else(String::new, |entry| shown(entry.name));
            faults.add(FaultKind::ItemWithoutIndex { name }, Location::inode(self.tree, Ino(key.objectid)));
        }
        if !self.complete {
            faults.not_compared("names and orphans of subvolumes that could not all be read");
            return self.finished();
        }
        if !self.has_root {
            faults.add(FaultKind::MissingInode, Location::inode(self.tree, Ino::ROOT_DIR));
        }
        for ino in self.unlinked.iter().filter(|ino| !self.orphans.contains(ino)) {
            faults.add(FaultKind::NoOrphanItem, Location::inode(self.tree, Ino(*ino)));
        }
        names::judge_loops(self.tree, &self.parents, faults);
        std::mem::take(&mut self.names).explain(walker, root, faults);
        self.finished()
    }

    fn finished(self) -> Finished {
        Finished { complete: self.complete, links: self.links, inodes: self.inodes, entries: self.entries }
    }

    fn item(&mut self, key: Key, data: &[u8], faults: &mut Faults) {
        if key.objectid == objectid::ORPHAN && key.item_type == ItemType::ORPHAN_ITEM {
            self.orphans.insert(key.offset);
        }
        if key.objectid < Ino::FIRST_FREE.0 || key.objectid > Ino::LAST_FREE.0 {
            return;
        }
        // The walk has reported it, and readers ignore it.
        if placement::fault_of(self.tree, &key).is_some() {
            return;
        }
        if self.current.as_ref().is_none_or(|current| current.ino != key.objectid) {
            self.close(faults);
            self.open(key, faults);
        }
        let place = Location::inode(self.tree, Ino(key.objectid));
        let Some(inode) = &mut self.current else { return };
        match key.item_type {
            ItemType::INODE_ITEM => inode.item = InodeItem::parse(data).ok(),
            ItemType::INODE_REF | ItemType::INODE_EXTREF => {
                let mode = inode.item.map_or(0, |item| item.mode);
                if key.item_type == ItemType::INODE_REF && key.offset == key.objectid {
                    inode.names += 1;
                    let mut found = inode_refs(data);
                    let is_right = matches!(found.next(), Some(Ok(InodeRef { index: DirIndex(0), name: b".." })))
                        && found.next().is_none()
                        && key.objectid == Ino::ROOT_DIR.0;
                    if !is_right {
                        faults.add(FaultKind::ReferenceToItself, place.clone());
                    }
                }
                names_of(key, data, mode, |name| {
                    inode.names += 1;
                    self.names.reference(name);
                    if names::is_directory(mode) {
                        self.parents.insert(name.child, name.parent);
                    }
                });
            }
            ItemType::DIR_ITEM => directory_item(inode, key, data, &self.names, &place, faults),
            ItemType::DIR_INDEX => {
                self.entries += 1;
                directory_index(inode, key, data, &self.names, &place, faults);
                entries_of(key, data, |name| self.names.entry(name));
                for entry in dir_entries(data).flatten().filter(|entry| entry.location.item_type == ItemType::ROOT_ITEM)
                {
                    self.links.push(Link {
                        parent: self.tree.0,
                        child: entry.location.objectid,
                        dir: key.objectid,
                        index: key.offset,
                        name: entry.name.to_vec(),
                    });
                }
            }
            ItemType::EXTENT_DATA => {
                if let Ok(extent) = FileExtent::parse(data) {
                    let item = inode.item.as_ref();
                    inode.content.extent(key.offset, &extent, item, &self.rules, &place, faults);
                }
            }
            _ => {}
        }
    }

    fn open(&mut self, key: Key, faults: &mut Faults) {
        let begins = key.item_type == ItemType::INODE_ITEM;
        let partial = self.after_gap && !begins;
        self.after_gap = false;
        self.inodes += 1;
        self.has_root |= key.objectid == Ino::ROOT_DIR.0;
        if !begins && !partial {
            faults.add(FaultKind::MissingInode, Location::inode(self.tree, Ino(key.objectid)));
        }
        self.current = Some(Inode {
            ino: key.objectid,
            item: None,
            partial,
            names: 0,
            waiting: HashMap::new(),
            entry_bytes: 0,
            has_entries: false,
            content: Content::default(),
        });
    }

    fn close(&mut self, faults: &mut Faults) {
        let Some(inode) = self.current.take() else { return };
        let (Some(item), false) = (inode.item, inode.partial) else { return };
        let place = Location::inode(self.tree, Ino(inode.ino));
        if u64::from(item.nlink) != inode.names {
            let kind = FaultKind::LinkCount { found: item.nlink.into(), expected: inode.names };
            faults.add(kind, place.clone());
        }
        if item.nlink == 0 {
            self.unlinked.push(inode.ino);
        }
        if inode.ino == Ino::ROOT_DIR.0 && !names::is_directory(item.mode) {
            faults.add(FaultKind::RootNotDirectory, place.clone());
        }
        if names::is_directory(item.mode) {
            if inode.names > 1 {
                faults.add(FaultKind::DirectoryNames { names: inode.names }, place.clone());
            }
            if item.size != inode.entry_bytes && item.nlink != 0 {
                let kind = FaultKind::DirectorySize { found: item.size, expected: inode.entry_bytes };
                faults.add(kind, place.clone());
            }
        } else if inode.has_entries {
            faults.add(FaultKind::UnexpectedContent { what: "directory entries" }, place.clone());
        }
        for (print, hash) in inode.waiting {
            if self.unpaired.len() < faults.room() {
                self.unpaired.push((Key::new(inode.ino, ItemType::DIR_ITEM, hash), print));
            } else {
                faults.add(FaultKind::ItemWithoutIndex { name: String::new() }, place.clone());
            }
        }
        inode.content.finish(&item, &self.rules, &place, faults);
    }
}

fn directory_item(inode: &mut Inode, key: Key, data: &[u8], names: &Names, place: &Location, faults: &mut Faults) {
    inode.has_entries = true;
    let mut seen: HashSet<&[u8]> = HashSet::new();
    for entry in dir_entries(data).flatten() {
        judge_location(&entry, place, faults);
        inode.entry_bytes = inode.entry_bytes.saturating_add(entry.name.len() as u64);
        let duplicate = !seen.insert(entry.name);
        if duplicate {
            faults.add(FaultKind::DuplicateName { name: shown(entry.name) }, place.clone());
        }
        inode.waiting.insert(names.print((entry.location, entry.file_type, entry.name)), key.offset);
    }
}

fn directory_index(inode: &mut Inode, key: Key, data: &[u8], names: &Names, place: &Location, faults: &mut Faults) {
    inode.has_entries = true;
    for entry in dir_entries(data).flatten() {
        judge_location(&entry, place, faults);
        inode.entry_bytes = inode.entry_bytes.saturating_add(entry.name.len() as u64);
        let print = names.print((entry.location, entry.file_type, entry.name));
        if inode.waiting.remove(&print).is_none() && !inode.partial {
            let kind = FaultKind::IndexWithoutItem { index: key.offset, name: shown(entry.name) };
            faults.add(kind, place.clone());
        }
    }
}

/// An entry points to an inode item or to the root item of a subvolume. The kernel notes a
/// subvolume with 0 as the offset of its root item, a snapshot with the highest offset, which
/// stands for its newest root item, and one that was moved with the offset that its root item has.
fn judge_location(entry: &DirEntry<'_>, place: &Location, faults: &mut Faults) {
    let is_possible = match entry.location.item_type {
        ItemType::INODE_ITEM => entry.location.offset == 0,
        ItemType::ROOT_ITEM => true,
        _ => false,
    };
    if !is_possible {
        let (name, location) = (shown(entry.name), entry.location.to_string());
        faults.add(FaultKind::EntryLocation { name, location }, place.clone());
    }
}

impl Visitor for SubvolumeCheck<'_> {
    fn leaf(&mut self, _: Logical, leaf: &Leaf<'_>, faults: &mut Faults) {
        for (key, data) in leaf.iter() {
            self.item(key, data, faults);
        }
    }

    fn gap(&mut self) {
        self.current = None;
        self.after_gap = true;
        self.complete = false;
    }
}
