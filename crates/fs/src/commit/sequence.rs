//! The order of a commit: freeze, write data, merge, write nodes and superblocks, publish.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ubtrfs_format::{CompatRo, Generation, ItemType, Logical, TreeId};
use ubtrfs_tree::{DirtyNodes, EditBatch, Root, Snapshot, merge};
use ubtrfs_volume::Copies;

use super::build::Builder;
use super::chunks::{ChunkChanges, ensure_metadata};
use super::csums::CsumEdits;
use super::data_refs::DataRefDeltas;
use super::early::EarlyLeaves;
use super::nodes::{CommitNodes, record};
use super::owner::Committer;
use super::rebuild_tree::rebuild_tree;
use super::relocate_trees::{relocate_trees, trees_to_relocate};
use super::roots::NewRoots;
use super::submit::submit;
use super::tree_merger::TreeMerger;
use super::{data_refs, superblock};
use crate::committed::Committed;
use crate::error::{Errno, Error, Result};
use crate::file::sum_map::SumMap;
use crate::file_reader::FileMap;
use crate::inode::Inode;
use crate::log::ClosedGroup;
use crate::options::CommitStep;
use crate::space::NewChunk;
use crate::subvolume_entries::edits_of_moved;
use crate::transaction::Transaction;

/// Dirty data of an inode from which on its write-out starts before the transaction is closed.
const EARLY_WRITEBACK: u64 = 64 << 10;

impl Committer {
    /// Makes everything durable that changed before the call, whatever waits to be freed. Returns
    /// at once if nothing did.
    pub(crate) fn commit(&self) -> Result<()> {
        let wanted = self.info.gate.current();
        let _place = self.commit_place.lock();
        if self.info.committed().generation >= wanted.generation {
            return Ok(());
        }
        if let Some(reason) = self.info.abort_reason() {
            return Err(Error::Aborted(reason));
        }
        let idle = wanted.is_empty()
            && {
                let space = self.info.space.lock();
                space.new_chunks.is_empty() && !space.rewrite_all
            }
            && self.new_label.lock().is_none()
            && !self.has_chunks_to_empty();
        // A log that changed nothing goes with a commit all the same.
        let has_log = self.info.committed().superblock.log_root.0 != 0;
        if self.info.is_at_rest() || (idle && !has_log) {
            // Operations that failed reserved metadata and used none: without a commit to end that,
            // it would add up.
            self.info.space.lock().drop_pending_reservations();
            return Ok(());
        }
        let start = Instant::now();
        let mut result = self.commit_open_transaction();
        while let Ok(Some(waiting)) = result {
            // What came in during that commit and could not be logged needs another.
            result = self.commit_open_transaction();
            waiting.committed(&self.info, &result.as_ref().map(|_| ()).map_err(|_| Errno::IO.into()));
        }
        let result = result.map(|_| ());
        self.info.counters.commit_micros.fetch_add(start.elapsed().as_micros() as u64, Ordering::Relaxed);
        match &result {
            Ok(()) => {
                self.info.counters.commits.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => self.info.abort(error),
        }
        result
    }

    /// Whether commits would give chunks back though nothing else has changed. Who mounts and
    /// unmounts only does not want the volume changed.
    fn has_chunks_to_empty(&self) -> bool {
        self.info.counters.commits.load(Ordering::Relaxed) > 0
            && (self.info.space.lock().has_empty_groups(&self.info.volume)
                || !trees_to_relocate(self, &self.info.committed()).is_empty())
    }

    /// Commits. Returns fsyncs that wait for another commit.
    fn commit_open_transaction(&self) -> Result<Option<ClosedGroup>> {
        self.start_early_writeback()?;
        let (transaction, log_nodes) = {
            // No log of the transaction that closes is written from here on.
            let mut tree_log = self.log.tree_log();
            let transaction = self.info.gate.swap(|closed| {
                self.log.commit_begins();
                self.info.space.lock().freeze_reservations();
                self.info.set_frozen_transaction(Some(closed.clone()));
            });
            let log_nodes = tree_log.end(transaction.generation.next());
            (transaction, log_nodes)
        };
        self.reached(CommitStep::Frozen);
        let result = self.commit_frozen(&transaction, log_nodes);
        // That commit was itself a reader of the one before.
        self.info.space.unpin();
        self.discards.wake();
        if let Err(error) = &result {
            // Before those who wait for the commit look.
            self.info.abort(error);
            self.log.commit_ended(&mut self.log.tree_log());
        }
        self.log.tell_followers(&result.as_ref().map(|_| ()).map_err(|_| Errno::IO.into()));
        result
    }

    /// Lets a test do its part while a commit is under way.
    fn reached(&self, step: CommitStep) {
        if let Some(hook) = &self.info.options.commit_hook {
            (hook.0)(step);
        }
    }

    fn commit_frozen(&self, transaction: &Arc<Transaction>, log_nodes: Vec<Logical>) -> Result<Option<ClosedGroup>> {
        let inodes = transaction.take_inodes();
        self.write_back(transaction, &inodes)?;
        let committed = self.info.committed();
        let mut built = Commit::build(self, &committed, transaction, &inodes)?;
        self.reached(CommitStep::Merged);
        // They stay in use until no durable superblock leads to them.
        let node_size = u64::from(self.info.volume.node_size());
        built.freed.extend(log_nodes.into_iter().map(|at| (at, node_size)));
        built.write(self, &committed, &inodes)
    }

    fn start_early_writeback(&self) -> Result<()> {
        for inode in self.info.gate.current().inodes() {
            let mut state = inode.write();
            if state.reserved >= EARLY_WRITEBACK {
                let transaction = self.info.gate.enter();
                if state.pending.generation == transaction.generation {
                    self.writeback.write_back_pending(&inode, &mut state, &transaction, false)?;
                }
            }
        }
        Ok(())
    }

    fn write_back(&self, transaction: &Arc<Transaction>, inodes: &[Arc<Inode>]) -> Result<()> {
        let next = transaction.generation.next();
        for inode in inodes {
            let mut state = inode.write();
            state.freeze_before(next);
            self.writeback.write_back_frozen(inode.id, &mut state, transaction)?;
        }
        for inode in inodes {
            let ordered = inode.read().ordered.clone();
            for extent in &ordered {
                if let Err(error) = self.writeback.wait_for(extent) {
                    inode.write().write_error = true;
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// A commit that has been merged and not written.
struct Commit {
    dirty: DirtyNodes,
    root_tree: Root,
    chunk_tree: Root,
    roots: NewRoots,
    generation: Generation,
    freed: Vec<(Logical, u64)>,
    new_chunks: Vec<NewChunk>,
    nbytes: Vec<u64>,
    /// What has been written already.
    early: EarlyLeaves,
}

impl Commit {
    fn build(
        committer: &Committer,
        committed: &Arc<Committed>,
        transaction: &Arc<Transaction>,
        inodes: &[Arc<Inode>],
    ) -> Result<Self> {
        let generation = transaction.generation;
        let superblock = &committed.superblock;
        let node_size = superblock.node_size as usize;
        let extent_tree = committed.tree(TreeId::EXTENT)?;
        let mut dirty = DirtyNodes::new(generation, committer.info.geometry());
        let mut nodes = CommitNodes::new(committer, &extent_tree, generation, superblock.incompat);
        let mut roots = NewRoots::new(committed, generation);
        let mut refs = DataRefDeltas::default();
        let mut nbytes = Vec::with_capacity(inodes.len());
        ensure_metadata(committer)?;

        nodes.merges_once = true;
        for (subvolume, edits) in build_subvolumes(committed, generation, inodes, &mut refs, &mut nbytes)? {
            let root = roots.get(subvolume)?;
            let last_snapshot = roots.last_snapshot(subvolume)?;
            let mut failed = Ok(());
            let new = merge(
                &committer.info.cache,
                Some(root),
                subvolume,
                &edits,
                &mut dirty,
                &mut nodes,
                last_snapshot,
                &mut |key, item| {
                    if key.item_type == ItemType::EXTENT_DATA && failed.is_ok() {
                        failed = refs.item_removed(subvolume, key, item);
                    }
                },
            )?;
            failed?;
            roots.set(subvolume, new);
        }
        refs.append(nodes.take_data_refs());
        nodes.merges_once = false;

        let mut tree = TreeMerger { committer, dirty: &mut dirty, nodes: &mut nodes };
        let mut extent_edits = EditBatch::new();
        let (csum_edits, mut freed) =
            resolve_data(committer, committed, transaction, &mut refs, &extent_tree, node_size, &mut extent_edits)?;
        tree.update(&mut roots, TreeId::CSUM, &csum_edits)?;

        relocate_trees(&mut tree, &mut roots, &trees_to_relocate(committer, committed), generation)?;
        let has_free_space_tree = superblock.compat_ro.contains(CompatRo::FREE_SPACE_TREE);
        let recounted = std::mem::take(&mut committer.info.space.lock().rewrite_all);
        if recounted && has_free_space_tree {
            rebuild_tree(&mut tree, &mut roots, TreeId::FREE_SPACE, &extent_tree)?;
        }
        let (chunks, mut gone_groups) = ChunkChanges::take(committer, has_free_space_tree)?;
        tree.nodes.chunks_closed = true;
        let mut chunk_tree = committed.chunk_tree;
        if !chunks.is_empty() || recounted {
            let (chunk_edits, device_edits) = chunks.edits(committer);
            chunk_tree = tree.merge(Some(chunk_tree), TreeId::CHUNK, &chunk_edits)?;
            tree.update(&mut roots, TreeId::DEV, &device_edits)?;
        }

        let block_group_tree = committed.block_group_tree_id();
        roots.will_change(TreeId::EXTENT);
        roots.will_change(block_group_tree);
        if has_free_space_tree {
            roots.will_change(TreeId::FREE_SPACE);
        }
        let mut root_edits = roots.placeholders()?;
        root_edits.append(edits_of_moved(committed, &transaction.take_moved_subvolumes())?)?;
        let root_tree = tree.merge(Some(committed.root_tree), TreeId::ROOT, &root_edits)?;

        // What these trees must say of the space changes as they are merged, but less each time: a
        // node that this commit has written already is written again in its tree_log.
        loop {
            tree.nodes.take_extent_edits(tree.dirty, &mut extent_edits)?;
            let mut group_edits = std::mem::take(&mut gone_groups);
            group_edits.append(committer.info.space.lock().take_group_edits(has_free_space_tree))?;
            let mut edits = std::mem::take(&mut extent_edits);
            if edits.is_empty() && group_edits.block_groups.is_empty() && group_edits.free_space.is_empty() {
                break;
            }
            if block_group_tree == TreeId::EXTENT {
                edits.append(group_edits.block_groups)?;
            } else {
                tree.update(&mut roots, block_group_tree, &group_edits.block_groups)?;
            }
            tree.update(&mut roots, TreeId::EXTENT, &edits)?;
            tree.update(&mut roots, TreeId::FREE_SPACE, &group_edits.free_space)?;
        }
        roots.write_final(&root_tree, &nodes.balance, &mut dirty)?;
        freed.append(&mut nodes.unpin_later);
        let new_chunks = chunks.new;
        Ok(Self { dirty, root_tree, chunk_tree, roots, generation, freed, new_chunks, nbytes, early: nodes.early })
    }

    /// Writes the nodes, then the superblocks; publishes. Fsyncs that came in meanwhile have their
    /// log written along. Returns those of them that need another commit.
    fn write(
        self,
        committer: &Committer,
        committed: &Arc<Committed>,
        inodes: &[Arc<Inode>],
    ) -> Result<Option<ClosedGroup>> {
        let nodes = submit(committer, self.generation, self.dirty.into_sealed())?;
        let mut superblock = superblock::next(
            committer,
            committed,
            self.generation,
            &self.root_tree,
            &self.chunk_tree,
            &self.roots,
            &self.new_chunks,
        );
        let trees = self.roots.into_trees();
        let next =
            Committed::after(superblock.clone(), self.root_tree, self.chunk_tree, trees, committer.info.cache.clone());
        let next = Arc::new(next);

        let mut tree_log = committer.log.tree_log();
        let mut waiting = committer.log.prepare_waiting_log(&mut tree_log, &next)?;
        let mut written = committer.info.volume.wait(nodes)?.merge(self.early.finish(committer)?);
        if let Some((_, Some(log))) = &waiting {
            let nodes = committer.info.volume.submit(log.writes().collect())?;
            log.ordered.iter().try_for_each(|extent| committer.writeback.wait_for(extent))?;
            written = written.merge(committer.info.volume.wait(nodes)?);
            log.enter_into(&mut superblock);
        }
        let flushed = committer.info.volume.flush(written)?;
        let published = committer.info.volume.write_superblock(&superblock, Copies::All, flushed)?;
        let closed = waiting.take().map(|(closed, log)| {
            if let Some(log) = log {
                log.published(&committer.info, &mut tree_log);
            }
            closed
        });
        let previous = committer.info.publish(next);
        committer.info.space.lock().vacate(&committer.info.volume);
        for (inode, nbytes) in inodes.iter().zip(self.nbytes) {
            let mut state = inode.write();
            let gone = state.frozen.take().is_some_and(|frozen| frozen.batch.gone);
            state.reap_ordered();
            if gone {
                drop(state);
                committer.info.inodes.remove(inode.id);
                continue;
            }
            state.committed = true;
            if state.pending.is_clean() && state.dirty.is_empty() {
                state.item.nbytes = nbytes;
            }
        }
        committer.info.set_frozen_transaction(None);
        committer.writeback.forget_ended();
        committer.log.commit_ended(&mut tree_log);
        drop(tree_log);
        // Those whose log is durable go on.
        let closed = match closed {
            Some(closed) if !closed.needs_commit() => {
                closed.logged(&published);
                None
            }
            closed => closed,
        };
        committer.reader.forget();
        let needs = committer.info.committed().needs();
        committer.info.space.lock().commit_ends(needs);
        committer.info.space.pin(Arc::downgrade(&previous), self.freed);
        Ok(closed)
    }
}

/// The edits of all subvolumes, from the frozen inodes; and the bytes that each inode's content
/// takes.
fn build_subvolumes(
    committed: &Arc<Committed>,
    generation: Generation,
    inodes: &[Arc<Inode>],
    refs: &mut DataRefDeltas,
    nbytes: &mut Vec<u64>,
) -> Result<BTreeMap<TreeId, EditBatch>> {
    let mut batches: BTreeMap<TreeId, (Snapshot, EditBatch)> = BTreeMap::new();
    for inode in inodes {
        let id = inode.id;
        let (tree, edits) = match batches.entry(id.subvolume) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert((committed.tree(id.subvolume)?, EditBatch::new()))
            }
        };
        let state = inode.read();
        let mut bytes = state.item.nbytes;
        if let Some(frozen) = &state.frozen {
            let map = FileMap::new(committed, id, &state)?;
            bytes = Builder { committed, tree, generation, edits, refs }.inode(id, frozen, state.committed, &map)?;
        }
        nbytes.push(bytes);
    }
    Ok(batches.into_iter().map(|(id, (_, edits))| (id, edits)).collect())
}

/// What becomes of data extents: edits of extent and checksum tree, and the extents that nobody
/// refers to any more.
fn resolve_data(
    committer: &Committer,
    committed: &Committed,
    transaction: &Transaction,
    refs: &mut DataRefDeltas,
    extent_tree: &Snapshot,
    node_size: usize,
    extent_edits: &mut EditBatch,
) -> Result<(EditBatch, Vec<(Logical, u64)>)> {
    let superblock = &committed.superblock;
    let csum_tree = committed.tree(TreeId::CSUM)?;
    let mut csums =
        CsumEdits::new(&csum_tree, superblock.checksum.size(), u64::from(superblock.sector_size), node_size);
    let mut freed = Vec::new();
    let later = transaction.later_sums();
    for (start, sums) in later.iter().flat_map(SumMap::iter) {
        csums.put(start, sums)?;
    }
    for (start, extent) in transaction.extents().iter() {
        let used = match refs.take(*start) {
            Some(delta) => data_refs::put_new_extent(*start, &delta, transaction.generation, node_size, extent_edits)?,
            None => false,
        };
        if used {
            record(committer, *start, extent.length, true)?;
            if let Some(sums) = &extent.sums {
                csums.put(*start, sums)?;
            }
        } else {
            if later.is_some() {
                csums.delete(*start, extent.length)?;
            }
            freed.push((*start, extent.length));
        }
    }
    let unused = freed.len();
    for (start, delta) in refs.drain() {
        if data_refs::change_extent(extent_tree, start, &delta, node_size, extent_edits)? {
            record(committer, start, delta.length, false)?;
            freed.push((start, delta.length));
        }
    }
    csums.delete_all(&freed[unused..])?;
    Ok((csums.into_edits(), freed))
}
