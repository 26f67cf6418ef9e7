//! The log of the open transaction as it is on the devices (invariant 16, invariant 17).

use std::collections::{BTreeMap, HashMap, HashSet};

use ubtrfs_file::SumMap;
use ubtrfs_format::{Generation, Logical, TreeId};
use ubtrfs_tree::Root;

use super::arena::Arena;
use super::cost::Excess;
use super::ranges::NumberRanges;
use crate::inode::InodeId;

/// The log of the open transaction on the devices; the holder of its lock may write the superblock.
pub(crate) struct TreeLog {
    /// The transaction whose log this is.
    pub(super) generation: Generation,
    /// Whether a commit is in progress. The log of the open transaction can only follow it.
    pub(super) commit_in_flight: bool,
    /// Whether nothing can be added to the log. From here on only a commit makes changes durable.
    pub(super) abandoned: bool,
    /// The tree of log trees.
    pub(super) root: Option<Root>,
    /// The log trees of subvolumes.
    pub(super) trees: BTreeMap<TreeId, Root>,
    /// The space of its nodes.
    pub(super) arena: Arena,
    /// Entry indices for which the log is authoritative, by directory.
    pub(super) ranges: HashMap<InodeId, NumberRanges>,
    /// Directories that are in the log only because it has ranges of theirs.
    pub(super) holders: HashSet<InodeId>,
    /// The checksums in the log of data that was written in place.
    pub(super) placed_sums: Option<SumMap>,
    /// By how many bytes its writes exceeded what their items would take in an empty log.
    pub(super) excess: Excess,
}

impl TreeLog {
    pub(super) fn new(generation: Generation) -> Self {
        Self {
            generation,
            commit_in_flight: false,
            abandoned: false,
            root: None,
            trees: BTreeMap::new(),
            arena: Arena::default(),
            ranges: HashMap::new(),
            holders: HashSet::new(),
            placed_sums: None,
            excess: Excess::default(),
        }
    }

    /// Ends the log, since its transaction is closed and will be committed. Returns the log's
    /// nodes, which stay in use until the commit is durable.
    pub(crate) fn end(&mut self, next: Generation) -> Vec<Logical> {
        let ended = std::mem::replace(self, Self { commit_in_flight: true, ..Self::new(next) });
        ended.arena.into_nodes()
    }
}
