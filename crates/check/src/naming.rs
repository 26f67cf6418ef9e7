//! Adds paths to the locations of faults: of the inode that a fault names, of its subvolume, and of
//! the files that a damaged extent belongs to.

use std::collections::{BTreeSet, HashMap};

use ubtrfs_format::items::{FileExtent, FileExtentKind, dir_entries};
use ubtrfs_format::{Ino, ItemType, Key, Leaf, Logical, Node, NodeExpectation, TreeId};

use crate::fault::{Fault, FaultKind, shown};
use crate::report::Faults;
use crate::roots::{Link, Roots};
use crate::subvolume::path_of;
use crate::uses::{Use, UserKind};
use crate::walk::{Items, TreeRoot, Walker};

/// How many faults of each list get paths.
const MAX_NAMED: usize = 200;
/// How many files of one fault are named.
const MAX_FILES: usize = 5;
/// How many faults of bad blocks get the paths of lost files; each takes a walk of its tree.
const MAX_WALKS: usize = 20;
/// How many uses of the extents of one fault are looked at.
const MAX_USES: usize = 1000;
/// How deep subvolumes are nested in a path that is shown.
const MAX_NESTED: usize = 64;

/// Finds paths. The uses of the walker must be sorted.
pub(crate) struct Naming<'w, 'a> {
    walker: &'w Walker<'a>,
    /// The directory entry of each subvolume.
    links: HashMap<u64, &'w Link>,
    trees: HashMap<TreeId, TreeRoot>,
    sector_size: u64,
}

impl<'w, 'a> Naming<'w, 'a> {
    pub(crate) fn new(walker: &'w Walker<'a>, roots: &'w Roots, trees: HashMap<TreeId, TreeRoot>) -> Self {
        Self { walker, links: roots.links(), trees, sector_size: walker.geometry.sector_size.into() }
    }

    /// Adds paths to the first of these faults.
    pub(crate) fn name(&self, faults: &mut [Fault]) {
        let mut walks = 0;
        for fault in faults.iter_mut().take(MAX_NAMED) {
            let place = &mut fault.place;
            if let (Some(tree), Some(inode)) = (place.tree, place.inode) {
                place.path = self.trees.get(&tree).and_then(|root| path_of(self.walker, root, inode));
            }
            place.subvolume = place.tree.and_then(|tree| self.subvolume(tree));
            if let (Some(tree), Some(range), Some(at)) = (place.tree, place.inodes, place.address) {
                let others = self.walker.bad_users.get(&at).into_iter().flatten().filter(|other| **other != tree);
                place.shared_with = others.map(|other| other.0).collect();
                walks += 1;
                if walks <= MAX_WALKS {
                    place.files = self.lost_files(tree, range);
                }
            }
            let length = match fault.kind {
                FaultKind::BadData { length, .. } | FaultKind::UnreadableData { length, .. } => length,
                FaultKind::MissingExtentItem { .. }
                | FaultKind::MissingReference { .. }
                | FaultKind::ExtentsOverlap
                | FaultKind::ExtentOverSuperblock => 1,
                _ => continue,
            };
            let at = place.address.or(place.key.map(|key| Logical(key.objectid)));
            if let Some(at) = at.filter(|_| place.inode.is_none()) {
                place.files = self.files(at, length);
            }
        }
    }

    /// The path of a subvolume from the top level; `None` for the top level and for what has no
    /// path.
    fn subvolume(&self, tree: TreeId) -> Option<String> {
        let mut path = String::new();
        let mut at = tree;
        for _ in 0..MAX_NESTED {
            if at == TreeId::FS {
                return Some(path).filter(|path| !path.is_empty());
            }
            let link = self.links.get(&at.0)?;
            let parent = TreeId(link.parent);
            let directory = path_of(self.walker, self.trees.get(&parent)?, Ino(link.dir))?;
            path = format!("{}/{}{path}", directory.trim_end_matches('/'), String::from_utf8_lossy(&link.name));
            at = parent;
        }
        None
    }

    /// The paths of files whose inodes are in this range, by the directories that can be read.
    fn lost_files(&self, tree: TreeId, (first, last): (u64, u64)) -> Vec<String> {
        let Some(root) = self.trees.get(&tree) else { return Vec::new() };
        let mut found: Vec<(u64, String)> = Vec::new();
        let mut items = Items(|_, key: Key, data: &[u8], _: &mut Faults| {
            if key.item_type != ItemType::DIR_INDEX || found.len() >= MAX_FILES {
                return;
            }
            for entry in dir_entries(data).flatten() {
                let is_lost = (first..=last).contains(&entry.location.objectid);
                if is_lost && entry.location.item_type == ItemType::INODE_ITEM {
                    found.push((key.objectid, shown(entry.name)));
                }
            }
        });
        // What can't be read is reported already.
        self.walker.walk_again(root, &mut items, &mut Faults::new(0));
        let subvolume = self.subvolume(tree).unwrap_or_default();
        let path = |(directory, name): (u64, String)| {
            let directory = path_of(self.walker, root, Ino(directory)).unwrap_or_else(|| "/…".to_owned());
            format!("{subvolume}{}/{name}", directory.trim_end_matches('/'))
        };
        found.into_iter().take(MAX_FILES).map(path).collect()
    }

    /// The paths of files that have some of these bytes.
    fn files(&self, start: Logical, length: u64) -> Vec<String> {
        let end = start.plus(length);
        let list = &self.walker.uses.list;
        let after = list.partition_point(|one| one.extent < end.0);
        let mut inodes = BTreeSet::new();
        for one in list.get(..after).unwrap_or_default().iter().rev().take(MAX_USES) {
            let extent_end = one.extent.saturating_add(u64::from(one.sectors).saturating_mul(self.sector_size));
            if extent_end > start.0 {
                inodes.extend(self.users(one));
            } else if one.extent != start.0 {
                // Extents don't overlap, so no earlier one reaches as far.
                break;
            }
            if inodes.len() >= MAX_FILES {
                break;
            }
        }
        let path = |(tree, ino): (u64, u64)| {
            let tree = TreeId(tree);
            let path = path_of(self.walker, self.trees.get(&tree)?, Ino(ino))?;
            Some(self.subvolume(tree).unwrap_or_default() + &path)
        };
        inodes.into_iter().take(MAX_FILES).filter_map(path).collect()
    }

    /// The subvolumes and inodes that a use belongs to.
    fn users(&self, one: &Use) -> Vec<(u64, u64)> {
        match one.user.kind {
            UserKind::File => vec![(one.user.by, one.user.ino)],
            UserKind::Leaf => self.users_in_leaf(Logical(one.user.by), one.extent).unwrap_or_default(),
            UserKind::Tree | UserKind::Block => Vec::new(),
        }
    }

    fn users_in_leaf(&self, leaf: Logical, extent: u64) -> Option<Vec<(u64, u64)>> {
        let block = self.walker.blocks.get(&leaf)?;
        let expected = NodeExpectation {
            bytenr: leaf,
            level: Some(0),
            generation: Some(block.generation),
            owner: None,
            first_key: None,
            fsid: self.walker.geometry.fsid,
        };
        let read = self.walker.read_any(&expected)?;
        let Ok(Node::Leaf(leaf)) = Node::view(&read) else { return None };
        Some(inodes_with(&leaf, extent).into_iter().map(|ino| (block.owner.0, ino)).collect())
    }
}

fn inodes_with(leaf: &Leaf<'_>, extent: u64) -> BTreeSet<u64> {
    let has = |data: &[u8]| {
        FileExtent::parse(data).is_ok_and(
            |found| matches!(found.kind, FileExtentKind::Regular { disk_bytenr, .. } if disk_bytenr.0 == extent),
        )
    };
    let items = leaf.iter().filter(|(key, data)| key.item_type == ItemType::EXTENT_DATA && has(data));
    items.map(|(key, _)| key.objectid).collect()
}
