//! Leaves that a commit writes before it has built the rest of the trees, so that it need not keep
//! all of them in memory. The commit's superblock takes the proof of their completion, too
//! (invariant 1).

use std::sync::atomic::Ordering;

use ubtrfs_format::Logical;
use ubtrfs_tree::Block;
use ubtrfs_volume::{CompletedWrites, Nodes, Ticket};

use super::owner::Committer;
use super::submit::submit;
use crate::error::{AtStep, Result, Step};

/// New leaves are submitted when they take one part in this many of the memory. The leaves of one
/// parent may exceed this.
const PART_OF_MEMORY: usize = 32;

/// Writes of leaves in flight. Nothing durable refers to these leaves before the commit's
/// superblock.
pub(super) struct EarlyLeaves {
    /// If there are more leaves than this, they are submitted.
    pub(super) most: usize,
    /// The writes that were submitted last.
    under_way: Option<Ticket<Nodes>>,
    /// The writes before them, which have completed.
    written: Option<CompletedWrites<Nodes>>,
}

impl EarlyLeaves {
    pub(super) fn new(committer: &Committer) -> Self {
        let most = committer.info.options.memory / PART_OF_MEMORY / committer.info.volume.node_size() as usize;
        Self { most, under_way: None, written: None }
    }

    /// Submits leaves, and waits for those that were submitted before.
    pub(super) fn submit(&mut self, committer: &Committer, leaves: Vec<(Logical, Block)>) -> Result<()> {
        committer.info.counters.leaves_written_early.fetch_add(leaves.len() as u64, Ordering::Relaxed);
        let ticket = submit(committer, leaves)?;
        self.wait(committer, Some(ticket))
    }

    fn wait(&mut self, committer: &Committer, next: Option<Ticket<Nodes>>) -> Result<()> {
        if let Some(ticket) = std::mem::replace(&mut self.under_way, next) {
            let written = committer.info.volume.writer().wait(ticket).at(Step::WriteTreeBlocks)?;
            self.written = Some(match self.written.take() {
                Some(before) => before.merge(written),
                None => written,
            });
        }
        Ok(())
    }

    /// Waits for all of them, and adds `others`, the commit's other nodes, to the result.
    pub(super) fn finish(
        mut self,
        committer: &Committer,
        others: CompletedWrites<Nodes>,
    ) -> Result<CompletedWrites<Nodes>> {
        self.wait(committer, None)?;
        Ok(match self.written {
            Some(written) => others.merge(written),
            None => others,
        })
    }
}
