//! Finds what has to move together: from the requested nodes and data up to all roots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ubtrfs_file::SumMap;
use ubtrfs_format::items::ExtentFlags;
use ubtrfs_format::{ItemType, Key, Logical, NodeFlags, TreeId};
use ubtrfs_tree::{Block, Pointer, Snapshot};

use super::super::extent_refs::ExtentRefs;
use super::half_dropped::HalfDropped;
use crate::committed::Committed;
use crate::error::{Error, Result};
use crate::fs_info::FsInfo;

/// A node that moves.
pub(super) struct MovingNode {
    pub(super) from: Logical,
    pub(super) block: Block,
    pub(super) owner: TreeId,
    pub(super) level: u8,
    pub(super) refs: ExtentRefs,
    /// The new address, once it is known.
    pub(super) to: Logical,
}

impl MovingNode {
    /// Whether references to its children name its address.
    pub(super) fn is_named_by_address(&self) -> bool {
        self.refs.item.flags & ExtentFlags::FULL_BACKREF != 0
    }
}

/// A data extent that moves.
pub(super) struct MovingData {
    pub(super) length: u64,
    pub(super) refs: ExtentRefs,
    pub(super) to: Logical,
}

/// The nodes and data that move, in one state of the volume.
pub(crate) struct RelocationPlan {
    pub(super) committed: Arc<Committed>,
    pub(super) extent_tree: Snapshot,
    pub(super) node_size: u64,
    /// Keyed by the present addresses.
    pub(super) nodes: BTreeMap<Logical, MovingNode>,
    pub(super) data: BTreeMap<Logical, MovingData>,
    /// Trees whose roots move.
    pub(super) roots: BTreeSet<TreeId>,
    /// The remaining parts of subvolumes that are being dropped.
    pub(super) half_dropped: HalfDropped,
    /// Nodes whose parents are not looked up yet.
    pub(super) queue: Vec<Logical>,
    /// The number of references to everything that moves.
    references: u64,
    /// The checksums of the data that moves, by its old addresses and by the new ones.
    pub(super) sums: Option<SumMap>,
}

impl RelocationPlan {
    /// Creates an empty plan for the state `committed`.
    pub(crate) fn new(info: &FsInfo, committed: &Arc<Committed>) -> Result<Self> {
        let half_dropped =
            if info.options.faults().overlooks_drops() { HalfDropped::default() } else { HalfDropped::of(committed)? };
        Ok(Self {
            committed: committed.clone(),
            extent_tree: committed.tree(TreeId::EXTENT)?,
            node_size: committed.superblock.node_size.into(),
            nodes: BTreeMap::new(),
            data: BTreeMap::new(),
            roots: BTreeSet::new(),
            half_dropped,
            queue: Vec::new(),
            references: 0,
            sums: None,
        })
    }

    /// Takes the checksums of the data that moves.
    pub(in super::super) fn take_sums(&mut self) -> Option<SumMap> {
        self.sums.take()
    }

    /// Returns the number of nodes that move.
    pub(crate) fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Upper bound of the items of the extent tree that may change.
    pub(crate) fn edits(&self) -> u64 {
        let by_address = |node: &MovingNode| {
            let entries = node.block.header().map_or(0, |header| header.nritems);
            if node.is_named_by_address() || self.may_be_shared(node) { 2 * u64::from(entries) } else { 0 }
        };
        let children: u64 = self.nodes.values().map(by_address).sum();
        2 * (self.nodes.len() + self.data.len()) as u64 + 2 * self.references + children
    }

    /// Adds a data extent, which moves to `to`. Returns `false` if it does not exist.
    pub(crate) fn add_data(&mut self, start: Logical, length: u64, to: Logical) -> Result<bool> {
        let key = Key::new(start.0, ItemType::EXTENT_ITEM, length);
        let Some(refs) = ExtentRefs::load_all(&self.extent_tree, key)? else { return Ok(false) };
        if refs.item.flags & ExtentFlags::DATA == 0 {
            return Err(refs.inconsistent("data is in use as a tree block"));
        }
        let users: Vec<_> = refs.users().collect();
        self.references += users.len() as u64;
        self.data.insert(start, MovingData { length, refs, to });
        for user in users {
            self.add_users_of_data(start, length, user)?;
        }
        self.add_parents()?;
        Ok(true)
    }

    /// Adds a node of this level. Returns `false` if it does not exist.
    pub(crate) fn add_node(&mut self, at: Logical, level: u8) -> Result<bool> {
        if self.node_refs(at, level)?.is_none() {
            return Ok(false);
        }
        self.queue_node(at, level)?;
        self.add_parents()?;
        Ok(true)
    }

    pub(super) fn node_refs(&self, at: Logical, level: u8) -> Result<Option<ExtentRefs>> {
        let skinny = Key::new(at.0, ItemType::METADATA_ITEM, level.into());
        let full = Key::new(at.0, ItemType::EXTENT_ITEM, self.node_size);
        Ok(match ExtentRefs::load_all(&self.extent_tree, skinny)? {
            Some(refs) => Some(refs),
            None => ExtentRefs::load_all(&self.extent_tree, full)?,
        })
    }

    /// Adds a node, whose parents are looked up later.
    pub(super) fn queue_node(&mut self, at: Logical, level: u8) -> Result<()> {
        if self.nodes.contains_key(&at) {
            return Ok(());
        }
        let key = Key::new(at.0, ItemType::METADATA_ITEM, level.into());
        let refs = self.node_refs(at, level)?.ok_or(Error::MissingItem { tree: TreeId::EXTENT, key })?;
        if refs.item.flags & ExtentFlags::TREE_BLOCK == 0 {
            return Err(refs.inconsistent("a tree block is in use as data"));
        }
        let block = self.committed.node_at(at, refs.item.generation, level)?;
        let owner = block.header()?.owner;
        self.references += refs.users().count() as u64;
        self.nodes.insert(at, MovingNode { from: at, block, owner, level, refs, to: Logical(0) });
        self.queue.push(at);
        Ok(())
    }

    fn add_parents(&mut self) -> Result<()> {
        while let Some(at) = self.queue.pop() {
            let Some(node) = self.nodes.get(&at) else { continue };
            let (level, users) = (node.level, node.refs.users().collect::<Vec<_>>());
            for user in users {
                self.add_parent(at, level, user)?;
            }
        }
        Ok(())
    }

    /// Returns the moving node that a pointer points to, if any. A deleted subvolume's node may
    /// point to space that was freed and used again since.
    pub(super) fn moving(&self, bytenr: Logical, generation: ubtrfs_format::Generation) -> Option<&MovingNode> {
        self.nodes.get(&bytenr).filter(|node| node.refs.item.generation == generation)
    }

    /// Whether snapshots may share a node, or its children are referred to by its address, so that
    /// it must be unshared before a tree replaces it. The generation of its old copy shows this.
    /// The current root of a tree is never shared.
    pub(super) fn may_be_shared(&self, node: &MovingNode) -> bool {
        let is_root = || self.root(node.owner).is_ok_and(|root| root.bytenr == node.from);
        let relocated = || node.block.header().is_ok_and(|header| header.flags & NodeFlags::RELOC != 0);
        let last_snapshot = || self.committed.trees.get(node.owner).map(|tree| tree.item.last_snapshot);
        let is_old = || last_snapshot().is_none_or(|last| node.refs.item.generation <= last);
        node.owner.is_subvolume()
            && (node.is_named_by_address() || node.refs.item.refs > 1 || ((relocated() || is_old()) && !is_root()))
    }

    /// Fails unless all references to what moves come from nodes that move, or from roots. Returns
    /// the extents that contain data.
    pub(crate) fn check(&self) -> Result<BTreeSet<Logical>> {
        let mut found: BTreeMap<Logical, u64> = BTreeMap::new();
        let mut with_data = BTreeSet::new();
        for node in self.nodes.values() {
            for pointer in self.half_dropped.pointers(node.from, &node.block)? {
                match pointer {
                    Pointer::Node { bytenr, generation } if self.moving(bytenr, generation).is_some() => {
                        *found.entry(bytenr).or_default() += 1;
                    }
                    Pointer::Data { bytenr, prealloc, .. } if self.data.contains_key(&bytenr) => {
                        *found.entry(bytenr).or_default() += 1;
                        if !prealloc {
                            with_data.insert(bytenr);
                        }
                    }
                    _ => {}
                }
            }
        }
        for id in &self.roots {
            *found.entry(self.root(*id)?.bytenr).or_default() += 1;
        }
        let nodes = self.nodes.iter().map(|(at, node)| (at, &node.refs));
        for (at, refs) in nodes.chain(self.data.iter().map(|(at, data)| (at, &data.refs))) {
            if found.get(at).copied().unwrap_or(0) != refs.item.refs {
                // By invariant 35 nothing may go on pointing to the old address.
                return Err(refs.inconsistent("it has more or fewer references than its item says"));
            }
        }
        Ok(with_data)
    }
}
