//! The first half of a commit: merging the changes of a transaction into the trees, in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use ubtrfs_format::{Generation, ItemType, Logical, TreeId};
use ubtrfs_tree::{DirtyNodes, EditBatch, Root, Snapshot, merge};

use super::build::Builder;
use super::chunks::{ChunkChanges, ensure_metadata};
use super::data_refs::DataRefDeltas;
use super::device_stats;
use super::early::EarlyLeaves;
use super::owner::Committer;
use super::relocate_trees::{relocate_trees, trees_to_relocate};
use super::relocation::RelocationPlan;
use super::roots::NewRoots;
use super::tree_merger::TreeMerger;
use crate::committed::Committed;
use crate::error::Result;
use crate::faults::CommitStep;
use crate::fs_info::FsInfo;
use crate::inode::Inode;
use crate::transaction::Transaction;
use ubtrfs_space::GroupEdits;

/// The trees of a commit before they are written.
pub(super) struct MergedTrees {
    pub(super) dirty: DirtyNodes,
    pub(super) root_tree: Root,
    pub(super) chunk_tree: Root,
    pub(super) roots: NewRoots,
    pub(super) generation: Generation,
    /// Space that the commit frees.
    pub(super) freed: Vec<(Logical, u64)>,
    pub(super) chunks: ChunkChanges,
    /// The bytes that the content of each inode takes.
    pub(super) nbytes: Vec<u64>,
    /// Leaves that have been written already.
    pub(super) early: EarlyLeaves,
}

/// A commit whose trees are being merged.
pub(super) struct Merging<'a> {
    pub(super) committer: &'a Committer,
    pub(super) committed: &'a Arc<Committed>,
    pub(super) transaction: &'a Transaction,
    pub(super) extent_tree: &'a Snapshot,
    pub(super) tree: TreeMerger<'a>,
    pub(super) roots: NewRoots,
    pub(super) refs: DataRefDeltas,
    pub(super) extent_edits: EditBatch,
    pub(super) nbytes: Vec<u64>,
    pub(super) freed: Vec<(Logical, u64)>,
    /// Edits of the root tree, except root items of trees that change.
    pub(super) root_edits: EditBatch,
    /// The roots of the two trees that have no root item, before their items are merged.
    pub(super) root_tree: Root,
    pub(super) chunk_tree: Root,
    /// Data extents that this commit moves: old address, length, new address.
    pub(super) moved_data: Vec<(Logical, u64, Logical)>,
}

impl MergedTrees {
    /// Merges a transaction into the committed trees.
    pub(super) fn of(
        committer: &Committer,
        committed: &Arc<Committed>,
        transaction: &Transaction,
        inodes: &[Arc<Inode>],
        plan: Option<RelocationPlan>,
    ) -> Result<Self> {
        let extent_tree = committed.tree(TreeId::EXTENT)?;
        ensure_metadata(committer)?;
        let mut merging = Merging {
            committer,
            committed,
            transaction,
            extent_tree: &extent_tree,
            tree: TreeMerger::new(committer, committed, &extent_tree, transaction.generation),
            roots: NewRoots::new(committed, transaction.generation),
            refs: DataRefDeltas::default(),
            extent_edits: EditBatch::new(),
            root_edits: EditBatch::new(),
            nbytes: Vec::with_capacity(inodes.len()),
            freed: Vec::new(),
            root_tree: committed.root_tree,
            chunk_tree: committed.chunk_tree,
            moved_data: Vec::new(),
        };
        if let Some(plan) = plan {
            merging.relocate(plan)?;
        }
        merging.merge_subvolumes(inodes)?;
        merging.make_subvolumes()?;
        merging.drop_subvolumes()?;
        merging.drop_reloc_trees()?;
        merging.resolve_data()?;
        let (chunk_tree, chunks, removed_groups) = merging.merge_chunks()?;
        let root_tree = merging.merge_root_tree()?;
        merging.settle_space(removed_groups)?;
        merging.finish(root_tree, chunk_tree, chunks)
    }
}

impl Merging<'_> {
    /// Merges the frozen inodes into their subvolumes, which yields the changes of references to
    /// data.
    fn merge_subvolumes(&mut self, inodes: &[Arc<Inode>]) -> Result<()> {
        self.tree.nodes.merges_once = true;
        let generation = self.transaction.generation;
        let batches = build_subvolumes(
            &self.committer.info,
            self.committed,
            generation,
            inodes,
            &mut self.refs,
            &mut self.nbytes,
        )?;
        for (subvolume, edits) in batches {
            self.merge_subvolume(subvolume, &edits)?;
        }
        self.tree.nodes.merges_once = false;
        Ok(())
    }

    #[inline(never)]
    pub(super) fn merge_subvolume(&mut self, subvolume: TreeId, edits: &EditBatch) -> Result<()> {
        let root = self.roots.get(subvolume)?;
        let last_snapshot = self.roots.last_snapshot(subvolume)?;
        let refs = &mut self.refs;
        let mut failed = Ok(());
        let new = merge(
            &self.committer.info.cache,
            Some(root),
            subvolume,
            edits,
            &mut self.tree.dirty,
            &mut self.tree.nodes,
            last_snapshot,
            &mut |key, item| {
                if key.item_type == ItemType::EXTENT_DATA && failed.is_ok() {
                    failed = refs.item_removed(subvolume, key, item);
                }
            },
        )?;
        failed?;
        self.roots.set(subvolume, new);
        self.refs.append(self.tree.nodes.take_data_refs());
        Ok(())
    }

    /// Merges the checksums, and gathers the edits of the extent tree for data.
    fn resolve_data(&mut self) -> Result<()> {
        let edits = self.data_edits()?;
        self.merge_checksums(&edits)
    }

    #[inline(never)]
    fn merge_checksums(&mut self, edits: &EditBatch) -> Result<()> {
        self.tree.update(&mut self.roots, TreeId::CSUM, edits)
    }

    /// Merges chunk and device trees, if chunks are added or removed. Returns the root of the chunk
    /// tree, the new chunks, and the edits that delete removed block groups.
    fn merge_chunks(&mut self) -> Result<(Root, ChunkChanges, GroupEdits)> {
        let (committer, committed) = (self.committer, self.committed);
        let generation = self.transaction.generation;
        relocate_trees(&mut self.tree, &mut self.roots, &trees_to_relocate(committer, committed), generation)?;
        let has_free_space_tree = self.committed.keeps_free_space_tree();
        let (chunks, removed_groups) = ChunkChanges::take(committer, generation, has_free_space_tree)?;
        self.tree.nodes.chunks_closed = true;
        committer.info.options.faults().commit_reached(CommitStep::ChunksTaken);
        let mut chunk_tree = self.chunk_tree;
        if !chunks.is_empty() {
            let (chunk_edits, device_edits) = chunks.edits(committer);
            chunk_tree = self.tree.merge(Some(chunk_tree), TreeId::CHUNK, &chunk_edits)?;
            self.tree.update(&mut self.roots, TreeId::DEV, &device_edits)?;
        }
        let mut stats = device_stats::edits(&committer.info.volume)?;
        stats.append(committer.replacement.edits(generation))?;
        if !stats.is_empty() {
            self.tree.update(&mut self.roots, TreeId::DEV, &stats)?;
        }
        Ok((chunk_tree, chunks, removed_groups))
    }

    /// Merges the root tree, with placeholders for the root items of all trees that change.
    #[inline(never)]
    fn merge_root_tree(&mut self) -> Result<Root> {
        self.roots.will_change(TreeId::EXTENT);
        self.roots.will_change(self.committed.block_group_tree_id());
        if self.committed.keeps_free_space_tree() {
            self.roots.will_change(TreeId::FREE_SPACE);
        }
        let mut edits = self.roots.placeholders()?;
        edits.append(std::mem::take(&mut self.root_edits))?;
        self.committer.take_balance_edit(&mut edits);
        self.tree.merge(Some(self.root_tree), TreeId::ROOT, &edits)
    }

    /// Merges extent, block-group and free-space trees until no edit is left. Each merge changes
    /// the records of space in these trees again, but less each time, since a node that this commit
    /// has built already is rewritten in place.
    fn settle_space(&mut self, mut removed_groups: GroupEdits) -> Result<()> {
        let block_group_tree = self.committed.block_group_tree_id();
        let has_free_space_tree = self.committed.keeps_free_space_tree();
        loop {
            self.tree.nodes.take_extent_edits(&self.tree.dirty, &mut self.extent_edits)?;
            let mut group_edits = std::mem::take(&mut removed_groups);
            group_edits.append(self.committer.info.space.lock().take_group_edits(has_free_space_tree))?;
            let mut edits = std::mem::take(&mut self.extent_edits);
            if edits.is_empty() && group_edits.block_groups.is_empty() && group_edits.free_space.is_empty() {
                return Ok(());
            }
            if block_group_tree == TreeId::EXTENT {
                edits.append(group_edits.block_groups)?;
            } else {
                self.tree.update(&mut self.roots, block_group_tree, &group_edits.block_groups)?;
            }
            self.merge_extents(&edits)?;
            self.merge_free_space(&group_edits.free_space)?;
        }
    }

    #[inline(never)]
    fn merge_extents(&mut self, edits: &EditBatch) -> Result<()> {
        self.tree.update(&mut self.roots, TreeId::EXTENT, edits)
    }

    #[inline(never)]
    fn merge_free_space(&mut self, edits: &EditBatch) -> Result<()> {
        self.tree.update(&mut self.roots, TreeId::FREE_SPACE, edits)
    }

    /// Puts the final root items in place.
    fn finish(mut self, root_tree: Root, chunk_tree: Root, chunks: ChunkChanges) -> Result<MergedTrees> {
        let TreeMerger { mut dirty, mut nodes, .. } = self.tree;
        self.roots.write_final(self.committed, &root_tree, &nodes.balance, &mut dirty, self.committer.info.now())?;
        self.freed.append(&mut nodes.unpin_later);
        Ok(MergedTrees {
            dirty,
            root_tree,
            chunk_tree,
            roots: self.roots,
            generation: self.transaction.generation,
            freed: self.freed,
            chunks,
            nbytes: self.nbytes,
            early: nodes.early,
        })
    }
}

/// Returns the edits of all subvolumes, from the frozen inodes. Adds the bytes that each inode's
/// content takes to `nbytes`.
#[inline(never)]
fn build_subvolumes(
    info: &FsInfo,
    committed: &Arc<Committed>,
    generation: Generation,
    inodes: &[Arc<Inode>],
    refs: &mut DataRefDeltas,
    nbytes: &mut Vec<u64>,
) -> Result<BTreeMap<TreeId, EditBatch>> {
    let mut batches: BTreeMap<TreeId, (Snapshot, EditBatch)> = BTreeMap::new();
    for inode in inodes {
        let id = inode.id;
        if info.deleted.is_dropped_by(id.subvolume, generation, committed) {
            // The subvolume is dropped, so nothing is merged into its tree any more (invariant 50).
            nbytes.push(0);
            continue;
        }
        let (tree, edits) = match batches.entry(id.subvolume) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert((committed.tree(id.subvolume)?, EditBatch::new()))
            }
        };
        let state = inode.read();
        let mut bytes = state.item.nbytes;
        if let Some(frozen) = &state.frozen {
            let mut builder = Builder { features: &info.features, committed, tree, generation, edits, refs };
            bytes = builder.inode(id, frozen, state.committed)?;
        }
        nbytes.push(bytes);
    }
    Ok(batches.into_iter().map(|(id, (_, edits))| (id, edits)).collect())
}
