//! Allocates the nodes that a commit writes, and records them in the extent tree. Operations have
//! reserved the space (invariant 8), and each range is recorded once (invariant 10).

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use ubtrfs_format::{Generation, Incompat, ItemType, Key, Logical, TreeId};
use ubtrfs_tree::{Block, DirtyNodes, EditBatch, FreedNode, NodeAllocator, Snapshot};

use super::block_refs::BlockRefs;
use super::data_refs::DataRefDeltas;
use super::early::EarlyLeaves;
use super::extent_refs::ExtentRefs;
use super::owner::Committer;
use crate::error::Result;

/// Allocates a commit's nodes and collects the delayed refs of the extent tree.
pub(super) struct CommitNodes<'a> {
    committer: &'a Committer,
    refs: BlockRefs<'a>,
    skinny: bool,
    generation: Generation,
    /// New nodes whose references are delayed.
    pending_refs: BTreeMap<Logical, PendingRef>,
    /// New nodes whose references have been applied.
    applied: BTreeMap<Logical, (TreeId, u8)>,
    /// Nodes of older commits that this one has moved, by their new addresses.
    pub(super) moved: BTreeMap<Logical, (TreeId, u8)>,
    /// Nodes of this commit that were freed again after their references had been applied.
    taken_back: Vec<(Logical, u8)>,
    /// Nodes of earlier commits without users whose extent items are not deleted yet.
    freed: Vec<Logical>,
    /// Addresses to exclude until the commit is durable.
    pub(super) unpin_later: Vec<(Logical, u64)>,
    /// The change of the number of nodes, by tree.
    pub(super) balance: BTreeMap<TreeId, i64>,
    /// Whether the commit adds no more chunks: those allocated from now on belong to the next
    /// commit.
    pub(super) chunks_closed: bool,
    /// Whether no tree that has been merged or is being merged is merged again in this commit. Then
    /// its leaves may be written before the rest. Another merge would replace them, which wastes
    /// space.
    pub(super) merges_once: bool,
    pub(super) early: EarlyLeaves,
}

/// A new node whose reference is delayed.
struct PendingRef {
    owner: TreeId,
    level: u8,
    /// The first key, if the node was written early.
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
            refs: BlockRefs::new(extent_tree, committer.info.space.node_size() as usize),
            skinny: incompat.contains(Incompat::SKINNY_METADATA),
            generation,
            pending_refs: BTreeMap::new(),
            applied: BTreeMap::new(),
            moved: BTreeMap::new(),
            taken_back: Vec::new(),
            freed: Vec::new(),
            unpin_later: Vec::new(),
            balance: BTreeMap::new(),
            chunks_closed: false,
            merges_once: false,
            early: EarlyLeaves::new(committer),
        }
    }

    /// Takes the extent tree's edits for all nodes that were allocated and freed since the last
    /// call, and counts the nodes in the records of the block groups.
    #[inline(never)]
    pub(super) fn take_extent_edits(&mut self, dirty: &DirtyNodes, edits: &mut EditBatch) -> Result<()> {
        let node_size = u64::from(dirty.geometry().node_size);
        let mut freed: Vec<Logical> = Vec::new();
        for (bytenr, level) in std::mem::take(&mut self.taken_back) {
            edits.delete(self.key_of(bytenr, level, node_size));
            freed.push(bytenr);
        }
        let (used, unused): (Vec<_>, Vec<_>) = self.refs.take_new().into_iter().partition(|(_, is_used)| *is_used);
        let mut allocated: Vec<Logical> = used.into_iter().map(|(bytenr, _)| bytenr).collect();
        for bytenr in &allocated {
            self.applied.extend(self.moved.remove(bytenr).map(|moved| (*bytenr, moved)));
        }
        self.unpin_later.extend(unused.into_iter().map(|(bytenr, _)| (bytenr, node_size)));
        self.refs.take_edits(edits);
        self.unpin_later.extend(self.freed.iter().map(|bytenr| (*bytenr, node_size)));
        freed.append(&mut self.freed);
        for (bytenr, PendingRef { owner, level, first_key }) in std::mem::take(&mut self.pending_refs) {
            let tree_block = if self.skinny {
                None
            } else {
                let first_key = first_key.or_else(|| dirty.get(bytenr).and_then(first_key_of));
                Some((first_key.unwrap_or(Key::MIN), level))
            };
            let key = self.key_of(bytenr, level, node_size);
            ExtentRefs::new_block(key, owner, self.generation, tree_block).emit(edits);
            allocated.push(bytenr);
            let before = self.applied.insert(bytenr, (owner, level));
            assert!(before.is_none(), "invariant 10: block {bytenr} is recorded twice");
        }
        for (mut nodes, is_allocated) in [(freed, false), (allocated, true)] {
            nodes.sort_unstable();
            let nodes: Vec<_> = nodes.into_iter().map(|bytenr| (bytenr, node_size)).collect();
            self.committer.info.space.record(&nodes, is_allocated)?;
        }
        Ok(())
    }

    pub(super) fn key_of(&self, bytenr: Logical, level: u8, node_size: u64) -> Key {
        if self.skinny {
            Key::new(bytenr.0, ItemType::METADATA_ITEM, level.into())
        } else {
            Key::new(bytenr.0, ItemType::EXTENT_ITEM, node_size)
        }
    }

    /// Submits all nodes that were built so far. A snapshot is about to share them, so nothing
    /// changes them any more. Their references are counted like those of older nodes.
    pub(super) fn seal(&mut self, dirty: &mut DirtyNodes) -> Result<()> {
        let node_size = u64::from(dirty.geometry().node_size);
        let nodes = dirty.take_all();
        let first_keys: BTreeMap<Logical, Key> =
            nodes.iter().filter_map(|(bytenr, block)| Some((*bytenr, first_key_of(block)?))).collect();
        self.early.submit(self.committer, nodes)?;
        for (bytenr, PendingRef { owner, level, first_key }) in std::mem::take(&mut self.pending_refs) {
            let first_key = first_key.or_else(|| first_keys.get(&bytenr).copied()).unwrap_or(Key::MIN);
            let tree_block = (!self.skinny).then_some((first_key, level));
            let key = self.key_of(bytenr, level, node_size);
            self.refs.add_new(ExtentRefs::new_block(key, owner, self.generation, tree_block), bytenr);
        }
        Ok(())
    }

    /// References to blocks.
    pub(super) fn block_refs(&mut self) -> &mut BlockRefs<'a> {
        &mut self.refs
    }

    /// Frees the old address of a block of an older commit that was moved.
    pub(super) fn leave(&mut self, bytenr: Logical) {
        self.freed.push(bytenr);
    }

    /// Whether extent items of nodes contain no first key (skinny metadata).
    pub(super) fn is_skinny(&self) -> bool {
        self.skinny
    }

    /// Frees a block of an older commit that has no user any more.
    pub(super) fn free_old(&mut self, tree: TreeId, bytenr: Logical) {
        *self.balance.entry(tree).or_default() -= 1;
        self.freed.push(bytenr);
    }

    /// Takes the changes of references to data that the unsharing of leaves has made.
    pub(super) fn take_data_refs(&mut self) -> DataRefDeltas {
        std::mem::take(&mut self.refs.data)
    }
}

impl NodeAllocator for CommitNodes<'_> {
    fn allocate(&mut self, owner: TreeId, level: u8) -> ubtrfs_tree::Result<Logical> {
        let bytenr = self
            .committer
            .info
            .space
            .allocate_node(owner == TreeId::CHUNK, self.chunks_closed)
            // By invariant 8 operations got this error before, so it never happens here.
            .ok_or_else(|| ubtrfs_tree::Error::allocator("no space for metadata"))?;
        let before = self.pending_refs.insert(bytenr, PendingRef { owner, level, first_key: None });
        assert!(before.is_none(), "invariant 10: block {bytenr} is given out twice");
        *self.balance.entry(owner).or_default() += 1;
        Ok(bytenr)
    }

    fn free(&mut self, node: FreedNode) -> ubtrfs_tree::Result<()> {
        *self.balance.entry(node.tree).or_default() -= 1;
        if self.refs.is_new(node.bytenr) {
            self.refs.free(&node).map_err(ubtrfs_tree::Error::allocator)?;
        } else if node.generation != self.generation {
            if self.refs.free(&node).map_err(ubtrfs_tree::Error::allocator)? {
                self.freed.push(node.bytenr);
            }
        } else if self.pending_refs.remove(&node.bytenr).is_some() {
            if node.born_in_this_commit {
                self.committer.info.space.release_node(node.tree == TreeId::CHUNK, node.bytenr);
            } else {
                // Its write may be in flight.
                self.unpin_later.push((node.bytenr, self.committer.info.space.node_size()));
            }
        } else if let Some((_, level)) = self.applied.remove(&node.bytenr) {
            self.taken_back.push((node.bytenr, level));
            self.unpin_later.push((node.bytenr, self.committer.info.space.node_size()));
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
        self.early.submit(self.committer, leaves).map_err(ubtrfs_tree::Error::allocator)
    }
}

fn first_key_of(block: &Block) -> Option<Key> {
    block.node().ok()?.first_key()
}
