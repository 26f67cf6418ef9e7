//! Space for the nodes that a commit writes, and what the extent tree must say of it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::{ExtentFlags, ExtentItem, InlineRef};
use ubtrfs_format::{Generation, Incompat, ItemType, Key, Logical, TreeId};
use ubtrfs_tree::{Block, DirtyNodes, EditBatch, FreedNode, NodeAllocator, Snapshot};

use super::block_refs::BlockRefs;
use super::data_refs::DataRefDeltas;
use super::early::EarlyLeaves;
use super::owner::Committer;
use crate::error::{Error, Result};

/// Allocates a commit's nodes and remembers what the extent tree has to be told.
pub(super) struct CommitNodes<'a> {
    committer: &'a Committer,
    refs: BlockRefs<'a>,
    skinny: bool,
    generation: Generation,
    /// New nodes of which the extent tree has not been told.
    pending_refs: BTreeMap<Logical, PendingRef>,
    /// New nodes of which it has.
    told: BTreeMap<Logical, (TreeId, u8)>,
    /// Nodes of this commit that are gone again though the extent tree was told of them.
    taken_back: Vec<(Logical, u8)>,
    /// Nodes of earlier commits that nobody uses any more, and of which the extent tree has not
    /// been told.
    freed: Vec<Logical>,
    /// Addresses to exclude until the commit is durable.
    pub(super) unpin_later: Vec<(Logical, u64)>,
    /// Nodes more (or fewer) by tree.
    pub(super) balance: BTreeMap<TreeId, i64>,
    /// New chunks are in the trees from now on, or not at all in this commit.
    pub(super) chunks_closed: bool,
    /// No tree that was merged so far, nor the one that is being merged, is merged again in this
    /// commit: leaves need not wait for the rest. With another merge they would be replaced, which
    /// costs space for nothing.
    pub(super) merges_once: bool,
    pub(super) early: EarlyLeaves,
}

/// A new node of which the extent tree has not been told.
struct PendingRef {
    owner: TreeId,
    level: u8,
    /// The first key, of one that was written early.
    first_key: Option<Key>,
}

impl<'a> CommitNodes<'a> {
    pub(super) fn new(
        committer: &'a Committer,
        extent_tree: &'a Snapshot,
        generation: Generation,
        incompat: Incompat,
    ) -> Self {
        Self {
            committer,
            refs: BlockRefs::new(extent_tree, committer.info.space.node_size as usize),
            skinny: incompat.contains(Incompat::SKINNY_METADATA),
            generation,
            pending_refs: BTreeMap::new(),
            told: BTreeMap::new(),
            taken_back: Vec::new(),
            freed: Vec::new(),
            unpin_later: Vec::new(),
            balance: BTreeMap::new(),
            chunks_closed: false,
            merges_once: false,
            early: EarlyLeaves::new(committer),
        }
    }

    /// Takes the extent tree's edits for all that was allocated and freed since the last call, and
    /// notes them in the block groups' records.
    pub(super) fn take_extent_edits(&mut self, dirty: &DirtyNodes, edits: &mut EditBatch) -> Result<()> {
        let node_size = u64::from(dirty.geometry().node_size);
        for (bytenr, level) in std::mem::take(&mut self.taken_back) {
            edits.delete(self.key_of(bytenr, level, node_size));
            self.record(bytenr, node_size, false)?;
        }
        self.refs.take_edits(edits);
        for bytenr in std::mem::take(&mut self.freed) {
            self.record(bytenr, node_size, false)?;
            self.unpin_later.push((bytenr, node_size));
        }
        for (bytenr, PendingRef { owner, level, first_key }) in std::mem::take(&mut self.pending_refs) {
            let tree_block = if self.skinny {
                None
            } else {
                let first_key = first_key.or_else(|| dirty.get(bytenr).and_then(first_key_of));
                Some((first_key.unwrap_or(Key::MIN), level))
            };
            let item = ExtentItem {
                refs: 1,
                generation: self.generation,
                flags: ExtentFlags::TREE_BLOCK,
                tree_block,
                inline_refs: vec![InlineRef::TreeBlock { root: owner }],
            };
            edits.put(self.key_of(bytenr, level, node_size), item.to_bytes());
            self.record(bytenr, node_size, true)?;
            self.told.insert(bytenr, (owner, level));
        }
        Ok(())
    }

    fn record(&self, start: Logical, len: u64, allocated: bool) -> Result<()> {
        record(self.committer, start, len, allocated)
    }

    fn key_of(&self, bytenr: Logical, level: u8, node_size: u64) -> Key {
        if self.skinny {
            Key::new(bytenr.0, ItemType::METADATA_ITEM, level.into())
        } else {
            Key::new(bytenr.0, ItemType::EXTENT_ITEM, node_size)
        }
    }

    /// Takes what unsharing of leaves has changed of the references to data.
    pub(super) fn take_data_refs(&mut self) -> DataRefDeltas {
        std::mem::take(&mut self.refs.data)
    }
}

/// Notes in the block groups' records that an extent is allocated or freed by this commit.
pub(super) fn record(committer: &Committer, start: Logical, len: u64, allocated: bool) -> Result<()> {
    let mut space = committer.info.space.lock();
    let recorded = space.group_of(start).is_some_and(|group| {
        if allocated { group.record_allocated(start, len) } else { group.record_freed(start, len) }
    });
    if recorded {
        return Ok(());
    }
    let key = Key::new(start.0, ItemType::EXTENT_ITEM, len);
    let what = if allocated { "the space is allocated already" } else { "the space is free already" };
    Err(Error::Inconsistent { tree: TreeId::EXTENT, key, what })
}

impl NodeAllocator for CommitNodes<'_> {
    fn allocate(&mut self, owner: TreeId, level: u8) -> ubtrfs_tree::Result<Logical> {
        let bytenr = self
            .committer
            .info
            .space
            .allocate_node(owner == TreeId::CHUNK, self.chunks_closed)
            .ok_or_else(|| ubtrfs_tree::Error::allocator("no space for metadata"))?;
        self.pending_refs.insert(bytenr, PendingRef { owner, level, first_key: None });
        *self.balance.entry(owner).or_default() += 1;
        Ok(bytenr)
    }

    fn free(&mut self, node: FreedNode) -> ubtrfs_tree::Result<()> {
        *self.balance.entry(node.tree).or_default() -= 1;
        if node.generation != self.generation {
            if self.refs.free(&node).map_err(ubtrfs_tree::Error::allocator)? {
                self.freed.push(node.bytenr);
            }
        } else if self.pending_refs.remove(&node.bytenr).is_some() {
            if node.born_in_this_commit {
                self.committer.info.space.release(node.bytenr, self.committer.info.space.node_size);
            } else {
                // Its write may be under way.
                self.unpin_later.push((node.bytenr, self.committer.info.space.node_size));
            }
        } else if let Some((_, level)) = self.told.remove(&node.bytenr) {
            self.taken_back.push((node.bytenr, level));
            self.unpin_later.push((node.bytenr, self.committer.info.space.node_size));
        } else {
            return Err(ubtrfs_tree::Error::allocator("a node of this commit is freed that it did not allocate"));
        }
        Ok(())
    }

    fn unshare(&mut self, tree: TreeId, node: &Block) -> ubtrfs_tree::Result<()> {
        if self.refs.unshare(tree, node).map_err(ubtrfs_tree::Error::allocator)? {
            self.committer.info.counters.nodes_unshared.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn leaves_are_done(&mut self, dirty: &mut DirtyNodes) -> ubtrfs_tree::Result<()> {
        if !self.merges_once || dirty.leaves() <= self.early.most {
            return Ok(());
        }
        let leaves = dirty.take_leaves();
        for (bytenr, leaf) in &leaves {
            if let Some(pending_refs) = self.pending_refs.get_mut(bytenr) {
                pending_refs.first_key = first_key_of(leaf);
            }
        }
        self.early.submit(self.committer, self.generation, leaves).map_err(ubtrfs_tree::Error::allocator)
    }
}

fn first_key_of(block: &Block) -> Option<Key> {
    block.node().ok()?.first_key()
}
