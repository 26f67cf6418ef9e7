//! The commits of a volume whose roots can still be read: those that superblocks and their backup
//! roots refer to, and older ones, whose space has not been used again.

use std::sync::Arc;

use ubtrfs_format::items::{RootItem, Timespec};
use ubtrfs_format::{ItemType, Key, Node, TreeId};
use ubtrfs_tree::{Root, Walk};
use ubtrfs_volume::{Candidate, Device, Origin, Volume};

use crate::trees::Trees;

/// A commit, by a root of its root tree.
pub struct Commit {
    pub candidate: Candidate,
    /// When a subvolume was last changed, if a root item can be read.
    pub time: Option<Timespec>,
    /// Nodes of the root tree that can't be read.
    pub unread: usize,
}

impl Commit {
    /// The generation of the commit.
    pub fn generation(&self) -> u64 {
        self.candidate.superblock.generation.0
    }

    /// Examines the root tree. Returns `None` if the candidate is not the root of a whole tree.
    fn of(candidate: Candidate, trees: &Trees) -> Option<Self> {
        let superblock = &candidate.superblock;
        let tree = trees.tree(Root {
            owner: TreeId::ROOT,
            bytenr: superblock.root,
            generation: superblock.generation,
            level: superblock.root_level,
        });
        let (mut first, mut last): (Option<Key>, Option<Key>) = (None, None);
        let (mut time, mut unread): (Option<Timespec>, _) = (None, 0);
        tree.walk(&mut |_, block| {
            match block.map_err(|_| ()).and_then(|block| block.node().map_err(|_| ())) {
                Ok(Node::Leaf(leaf)) => {
                    for (key, data) in leaf.iter() {
                        first = first.or(Some(key));
                        last = Some(key);
                        if key.item_type == ItemType::ROOT_ITEM
                            && TreeId(key.objectid).is_subvolume()
                            && let Ok(RootItem { times: [changed, ..], .. }) = RootItem::parse(data)
                            && time.is_none_or(|time| (time.sec, time.nsec) < (changed.sec, changed.nsec))
                        {
                            time = Some(changed);
                        }
                    }
                }
                Ok(Node::Internal(_)) => {}
                Err(()) => unread += 1,
            }
            Walk::Descend
        });
        // The scan takes the highest node that it finds of a commit, but the node above that may be
        // lost. The leaves of a whole root tree begin and end with these trees.
        let begins = first.is_some_and(|key| key.objectid <= TreeId::EXTENT.0);
        let ends = last.is_some_and(|key| key.objectid >= TreeId::DATA_RELOC.0);
        let is_part = candidate.origin == Origin::Scan && !(begins && (ends || unread > 0));
        (!is_part).then_some(Self { candidate, time, unread })
    }
}

/// Returns all commits, newest first; among the roots of one commit, one that a superblock refers
/// to comes first. Returns nothing if no superblock refers to a volume that can be opened.
pub fn all(devices: &[Arc<dyn Device>]) -> Vec<Commit> {
    let mut candidates = Volume::candidates(devices);
    let opened = candidates.iter().find_map(|one| Volume::open_what_is_left(devices, one).ok());
    let opened = opened.map(|(volume, _)| volume);
    let Some(volume) = opened.map(Arc::new) else { return Vec::new() };
    let roots = |one: &Candidate| (one.superblock.generation, one.superblock.root);
    for found in volume.find_old_roots() {
        if candidates.iter().all(|known| roots(known) != roots(&found)) {
            candidates.push(found);
        }
    }
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.superblock.generation));
    let trees = Trees::new(&volume);
    candidates.into_iter().filter_map(|candidate| Commit::of(candidate, &trees)).collect()
}

/// Returns the roots of the commit with this generation. Searches the devices only if no superblock
/// refers to such a root.
pub fn with_generation(devices: &[Arc<dyn Device>], generation: u64) -> Vec<Candidate> {
    let mut known = Volume::candidates(devices);
    known.retain(|candidate| candidate.superblock.generation.0 == generation);
    if !known.is_empty() {
        return known;
    }
    let found = all(devices).into_iter().filter(|commit| commit.generation() == generation);
    found.map(|commit| commit.candidate).collect()
}
