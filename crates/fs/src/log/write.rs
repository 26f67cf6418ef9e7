//! Writes a group's log: gathers, merges, writes and publishes it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ubtrfs_format::items::RootItem;
use ubtrfs_format::{Generation, ItemType, Key, TreeId};
use ubtrfs_tree::{DirtyNodes, EditBatch, Root, merge};
use ubtrfs_volume::Copies;

use super::cost::least_bytes;
use super::gather::{Gathered, Gatherer};
use super::nodes::LogNodes;
use super::prepared::{LogWrites, PreparedLog};
use super::queue::{ClosedGroup, Log};
use super::reason::{OrElse, Reason, Stop};
use super::tree_log::TreeLog;
use crate::committed::Committed;
use crate::error::{Error, Step};
use crate::fsync_group::Durable;
use crate::transaction::Transaction;

impl Log {
    /// Writes the log of a group. The group is durable when this returns, or was durable already.
    #[inline(never)]
    pub(super) fn write_group(&self, tree_log: &mut TreeLog, closed: &ClosedGroup) -> Result<Durable, Stop> {
        match self.begin_write(tree_log, closed)? {
            Some(writes) => self.finish_write(tree_log, writes),
            None => self.already_logged(),
        }
    }

    /// Returns the proof for a group of which the log contains everything already.
    pub(super) fn already_logged(&self) -> Result<Durable, Stop> {
        self.require_no_secret_lag()?;
        self.info.already_durable().map_err(|error| Stop::Abort(Error::not_durable(error)))
    }

    /// Submits the nodes of a group's log. `None` if the log contains everything of it already.
    pub(super) fn begin_write(&self, tree_log: &mut TreeLog, closed: &ClosedGroup) -> Result<Option<LogWrites>, Stop> {
        let _watch = self.info.panics.watch();
        assert!(!tree_log.commit_in_flight, "invariant 16: no log is written beside a commit");
        assert!(self.in_flight.lock().is_none(), "invariant 37: no log is written beside one in flight");
        let base = self.info.committed();
        let transaction = self.info.gate.current();
        let Some(log) = self.prepare_log(tree_log, closed, &base, &transaction)? else { return Ok(None) };
        let nodes =
            self.info.volume.writer().submit_nodes(log.writes().collect()).or_abort(Step::WriteLogTreeBlocks)?;
        Ok(Some(LogWrites { base, log, nodes }))
    }

    /// Makes a log durable whose nodes are in flight.
    pub(super) fn finish_write(&self, tree_log: &mut TreeLog, writes: LogWrites) -> Result<Durable, Stop> {
        let LogWrites { base, log, nodes } = writes;
        let _watch = self.info.panics.watch();
        let data = self.writeback.wait_for_all(&log.ordered).map_err(|error| Stop::Abort(Error::Shared(error)))?;
        let nodes = self.info.volume.writer().wait(nodes).or_abort(Step::WriteLogTreeBlocks)?;
        let flushed = self.info.volume.writer().flush(data, nodes).or_abort(Step::FlushBeforeSuperblock)?;
        let mut superblock = base.superblock.clone();
        log.enter_into(&mut superblock);
        self.info.check_panics().map_err(Stop::Abort)?;
        let published = self.info.volume.superblocks().write(&superblock, Copies::Primary, flushed);
        let published = published.map_err(|error| {
            let step = Step::of_superblock(&error);
            Stop::Abort(Error::from(error).at(step))
        })?;
        log.published(&published, &self.info, tree_log);
        self.require_no_secret_lag()?;
        Ok(Durable::by(&published))
    }

    /// By invariant 34 a device that has just failed must not get a superblock of the generation
    /// with which the others are durable, but the superblock of a log has the generation of the
    /// commit before it.
    fn require_no_secret_lag(&self) -> Result<(), Stop> {
        if self.info.volume.devices().have_secret_lag() { Err(Reason::DeviceFailed.into()) } else { Ok(()) }
    }

    /// Gathers and merges the log of a group. `None` if the log contains everything of it already.
    /// `base` is the commit that the log follows, and `transaction` the one after it.
    pub(crate) fn prepare_log(
        &self,
        tree_log: &mut TreeLog,
        closed: &ClosedGroup,
        base: &Arc<Committed>,
        transaction: &Arc<Transaction>,
    ) -> Result<Option<PreparedLog>, Stop> {
        if !self.info.options.tree_log {
            return Err(Reason::NoTreeLog.into());
        }
        if tree_log.abandoned {
            return Err(Reason::Abandoned.into());
        }
        if transaction.generation != base.generation.next() || tree_log.generation != transaction.generation {
            // By invariant 16 a log is of the transaction after the commit that it follows.
            return Err(Reason::Generation.into());
        }
        let ClosedGroup { group, inodes, .. } = closed;
        self.info.counters.log_requests.fetch_add(inodes.len() as u64, Ordering::Relaxed);
        let gathered = Gatherer::new(self, base, transaction, group, tree_log).gather(inodes)?;
        if !base.superblock.incompat.contains(self.info.features.compression()) {
            // By invariant 30 the superblock must name the algorithm. A log writes only the primary
            // superblock, so the copies could not name it.
            return Err(Reason::NewFeature.into());
        }
        if gathered.edits.is_empty() {
            // The inodes were logged with another group. They are durable unless that group failed.
            return Ok(None);
        }
        self.merge_log(tree_log, base, gathered).map(Some)
    }

    #[inline(never)]
    fn merge_log(&self, tree_log: &mut TreeLog, _base: &Committed, gathered: Gathered) -> Result<PreparedLog, Stop> {
        let generation = tree_log.generation;
        let mut dirty = DirtyNodes::new(generation, self.info.geometry());
        let (mut root, mut trees) = (tree_log.root, tree_log.trees.clone());
        let least = least_bytes(&gathered.edits, u64::from(self.info.volume.node_size()));
        let mut nodes = LogNodes::new(self, tree_log);
        let merged = self.merge_trees(&mut root, &mut trees, &gathered.edits, &mut dirty, &mut nodes);
        let (short, replaced) = (nodes.short, nodes.replaced);
        let root = match merged {
            Ok(root) => root,
            Err(_) if short => return Err(Reason::NoSpace.into()),
            Err(error) => return Err(Stop::Unreadable(Error::from(error).at(Step::MergeLogTrees))),
        };
        (tree_log.root, tree_log.trees) = (Some(root), trees);
        Ok(PreparedLog { blocks: dirty.into_sealed(), root, replaced, ordered: gathered.ordered, generation, least })
    }

    #[inline(never)]
    fn merge_trees(
        &self,
        root: &mut Option<Root>,
        trees: &mut BTreeMap<TreeId, Root>,
        edits: &BTreeMap<TreeId, EditBatch>,
        dirty: &mut DirtyNodes,
        nodes: &mut LogNodes<'_>,
    ) -> ubtrfs_tree::Result<Root> {
        let mut merge_one = |before: Option<Root>, edits: &EditBatch| {
            merge(&self.info.cache, before, TreeId::LOG, edits, dirty, nodes, Generation(0), &mut |_, _| {})
        };
        let mut root_edits = EditBatch::new();
        for (subvolume, edits) in edits {
            let tree = merge_one(trees.get(subvolume).copied(), edits)?;
            trees.insert(*subvolume, tree);
            root_edits.put(Key::new(TreeId::LOG.0, ItemType::ROOT_ITEM, subvolume.0), root_item(&tree).to_bytes());
        }
        merge_one(root.take(), &root_edits)
    }
}

/// Returns the root item of a subvolume's log tree. Replay reads few of its fields.
fn root_item(root: &Root) -> RootItem {
    RootItem {
        generation: root.generation,
        generation_v2: root.generation,
        bytenr: root.bytenr,
        level: root.level,
        ..RootItem::default()
    }
}
