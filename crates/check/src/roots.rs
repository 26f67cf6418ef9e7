//! The contents of the root tree: all trees, the entries that point to subvolumes, and subvolumes
//! to be deleted; and the UUID tree.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ubtrfs_format::items::{RootItem, RootRef, dir_entries};
use ubtrfs_format::{Ino, ItemType, Key, TreeId, Uuid, objectid};

use crate::fault::{FaultKind, Location, shown};
use crate::report::Faults;

/// A directory entry that leads from one subvolume to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Link {
    pub(crate) parent: u64,
    pub(crate) child: u64,
    pub(crate) dir: u64,
    pub(crate) index: u64,
    pub(crate) name: Vec<u8>,
}

impl Link {
    fn parse(parent: u64, child: u64, data: &[u8]) -> Option<Self> {
        let found = RootRef::parse(data).ok()?;
        Some(Self { parent, child, dir: found.dirid.0, index: found.sequence, name: found.name.to_vec() })
    }
}

/// The content of the root tree.
#[derive(Default)]
pub(crate) struct Roots {
    /// Trees in order of their keys.
    pub(crate) items: BTreeMap<Key, RootItem>,
    refs: BTreeSet<Link>,
    backrefs: BTreeSet<Link>,
    orphans: HashSet<u64>,
    /// The default subvolume, if the root tree names one.
    default: Option<u64>,
    /// The directory entries of subvolumes.
    pub(crate) entries: Vec<Link>,
    /// Trees whose directories could not all be read.
    pub(crate) unread: HashSet<u64>,
}

impl Roots {
    /// Adds an item of the root tree.
    pub(crate) fn take(&mut self, key: Key, data: &[u8]) {
        match key.item_type {
            ItemType::ROOT_ITEM => {
                if let Ok(item) = RootItem::parse(data) {
                    self.items.insert(key, item);
                }
            }
            ItemType::ROOT_REF => self.refs.extend(Link::parse(key.objectid, key.offset, data)),
            ItemType::ROOT_BACKREF => self.backrefs.extend(Link::parse(key.offset, key.objectid, data)),
            ItemType::ORPHAN_ITEM if key.objectid == objectid::ORPHAN => {
                self.orphans.insert(key.offset);
            }
            ItemType::DIR_ITEM if key.objectid == TreeId::ROOT_TREE_DIR.0 => {
                let default = dir_entries(data).flatten().find(|entry| entry.name == b"default");
                self.default = default.map(|entry| entry.location.objectid).or(self.default);
            }
            _ => {}
        }
    }

    /// The directory entries of subvolumes, by their back references.
    pub(crate) fn links(&self) -> HashMap<u64, &Link> {
        self.backrefs.iter().map(|link| (link.child, link)).collect()
    }

    /// Returns whether a subvolume of this id has a root item.
    pub(crate) fn has(&self, subvolume: u64) -> bool {
        self.get(TreeId(subvolume)).is_some()
    }

    /// The root item of a tree that has only one.
    pub(crate) fn get(&self, tree: TreeId) -> Option<&RootItem> {
        self.item(tree).map(|(_, item)| item)
    }

    fn item(&self, tree: TreeId) -> Option<(&Key, &RootItem)> {
        let range = Key::new(tree.0, ItemType::ROOT_ITEM, 0)..=Key::new(tree.0, ItemType::ROOT_ITEM, u64::MAX);
        self.items.range(range).next()
    }

    fn subvolumes(&self) -> impl Iterator<Item = (u64, &RootItem)> {
        self.items.iter().map(|(key, item)| (key.objectid, item)).filter(|(tree, _)| TreeId(*tree).is_subvolume())
    }

    /// Checks that root references, back references, directory entries and orphan items are
    /// consistent.
    pub(crate) fn judge_links(&self, faults: &mut Faults) {
        let place = |tree| Location::tree(TreeId(tree));
        for link in self.refs.difference(&self.backrefs) {
            faults.add(FaultKind::RootRefWithoutBackref { child: link.child }, place(link.parent));
        }
        for link in self.backrefs.difference(&self.refs) {
            faults.add(FaultKind::RootBackrefWithoutRef { child: link.child }, place(link.parent));
        }
        let entries: HashSet<&Link> = self.entries.iter().collect();
        for link in self.refs.iter().filter(|link| !self.unread.contains(&link.parent)) {
            if !entries.contains(link) {
                let kind = FaultKind::RootRefWithoutEntry { child: link.child, name: shown(&link.name) };
                faults.add(kind, place(link.parent));
            }
        }
        // A snapshot keeps the directory entries of the subvolumes that were in its source; they
        // refer to nothing and are shown as empty directories.
        // A snapshot of a subvolume without a UUID is known by the offset of its root item's key.
        let is_snapshot = |tree: u64| {
            let item = self.item(TreeId(tree));
            item.is_some_and(|(key, item)| key.offset != 0 || item.parent_uuid != Uuid::NIL)
        };
        for link in self.entries.iter().filter(|link| !self.refs.contains(link) && !is_snapshot(link.parent)) {
            let kind = FaultKind::SubvolumeEntryWithoutRef { child: link.child, name: shown(&link.name) };
            faults.add(kind, Location::inode(TreeId(link.parent), Ino(link.dir)));
        }
        if let Some(subvolume) = self.default.filter(|default| !self.has(*default)) {
            faults.add(FaultKind::DefaultSubvolumeMissing { subvolume }, Location::tree(TreeId::ROOT));
        }
        let mut names: HashMap<u64, u64> = HashMap::new();
        for link in &self.backrefs {
            *names.entry(link.child).or_default() += 1;
        }
        for (tree, item) in self.subvolumes() {
            let found = names.get(&tree).copied().unwrap_or(0);
            let expected = u64::from(item.refs != 0 && tree != TreeId::FS.0);
            if found != expected {
                faults.add(FaultKind::SubvolumeNames { found }, place(tree));
            }
            if item.refs == 0 && !self.orphans.contains(&tree) {
                faults.add(FaultKind::RootWithoutOrphan, place(tree));
            }
        }
    }

    /// Reports the subvolumes that have no root item, but names or extents. `references` has how
    /// many references of the extent tree are theirs.
    pub(crate) fn judge_lost(&self, references: &BTreeMap<u64, u64>, faults: &mut Faults) {
        let named = self.refs.iter().chain(&self.backrefs).filter(|link| !self.has(link.child));
        let mut lost: BTreeMap<u64, Option<&Link>> = references.keys().map(|child| (*child, None)).collect();
        lost.extend(named.map(|link| (link.child, Some(link))));
        for (child, link) in lost {
            let name = link.map_or_else(String::new, |link| shown(&link.name));
            let place = link.map_or_else(
                || Location::tree(TreeId(child)),
                |link| Location::inode(TreeId(link.parent), Ino(link.dir)),
            );
            let references = references.get(&child).copied().unwrap_or(0);
            faults.add(FaultKind::SubvolumeWithoutRoot { child, name, references }, place);
        }
    }

    /// Compares the UUID tree with the root items. `current` says that, by the superblock, the tree
    /// is up to date, so that nothing may be missing from it.
    pub(crate) fn judge_uuids(&self, uuids: &Uuids, current: bool, faults: &mut Faults) {
        let mut wanted = HashSet::new();
        for (tree, item) in self.subvolumes() {
            for (which, received, uuid) in [("UUID", false, item.uuid), ("received UUID", true, item.received_uuid)] {
                if uuid == Uuid::NIL {
                    continue;
                }
                wanted.insert((uuid, received, tree));
                if current && item.refs != 0 && !uuids.0.contains(&(uuid, received, tree)) {
                    faults.add(FaultKind::UuidMissing { which }, Location::tree(TreeId(tree)));
                }
            }
        }
        for (uuid, received, tree) in uuids.0.iter().filter(|entry| !wanted.contains(entry)) {
            let which = if *received { "received UUID" } else { "UUID" };
            let kind = FaultKind::UuidSurplus { subvolume: *tree, which };
            let mut halves = uuid.0.chunks_exact(8).map(|half| half.try_into().map_or(0, u64::from_le_bytes));
            let (first, second) = (halves.next().unwrap_or(0), halves.next().unwrap_or(0));
            let item_type = if *received { ItemType::UUID_KEY_RECEIVED_SUBVOL } else { ItemType::UUID_KEY_SUBVOL };
            faults.add(kind, Location::item(TreeId::UUID, Key::new(first, item_type, second)));
        }
    }
}

/// The entries of the UUID tree: the UUID, whether it is a received UUID, and the subvolume.
#[derive(Default)]
pub(crate) struct Uuids(HashSet<(Uuid, bool, u64)>);

impl Uuids {
    /// Adds an item of the UUID tree.
    pub(crate) fn take(&mut self, key: Key, data: &[u8]) {
        if !matches!(key.item_type, ItemType::UUID_KEY_SUBVOL | ItemType::UUID_KEY_RECEIVED_SUBVOL) {
            return;
        }
        let mut uuid = [0; 16];
        uuid[..8].copy_from_slice(&key.objectid.to_le_bytes());
        uuid[8..].copy_from_slice(&key.offset.to_le_bytes());
        for id in data.chunks_exact(8).filter_map(|id| id.try_into().ok()) {
            let received = key.item_type == ItemType::UUID_KEY_RECEIVED_SUBVOL;
            self.0.insert((Uuid(uuid), received, u64::from_le_bytes(id)));
        }
    }
}
