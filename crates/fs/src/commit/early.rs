//! Leaves that a commit writes before it has made the rest, so that it need not have all of them in
//! memory.

use std::sync::atomic::Ordering;

use ubtrfs_format::{Generation, Logical};
use ubtrfs_tree::Block;
use ubtrfs_volume::{CompletedWrites, Ticket};

use super::owner::Committer;
use super::submit::submit;
use crate::error::Result;

/// The part of the memory that new leaves may take before they are submitted, but for those of one
/// parent.
const PART_OF_MEMORY: usize = 32;

/// Writes of leaves, under way. Nothing that is durable leads to them before the commit's
/// superblock.
pub(super) struct EarlyLeaves {
    /// With more leaves than that they are submitted.
    pub(super) most: usize,
    /// The last that were submitted.
    under_way: Option<Ticket>,
    written: CompletedWrites,
}

impl EarlyLeaves {
    pub(super) fn new(committer: &Committer) -> Self {
        let most = committer.info.options.memory / PART_OF_MEMORY / committer.info.volume.node_size() as usize;
        Self { most, under_way: None, written: CompletedWrites::nothing() }
    }

    /// Submits leaves, and waits for those before them.
    pub(super) fn submit(
        &mut self,
        committer: &Committer,
        generation: Generation,
        leaves: Vec<(Logical, Block)>,
    ) -> Result<()> {
        committer.info.counters.leaves_written_early.fetch_add(leaves.len() as u64, Ordering::Relaxed);
        let ticket = submit(committer, generation, leaves)?;
        self.wait(committer, Some(ticket))
    }

    fn wait(&mut self, committer: &Committer, next: Option<Ticket>) -> Result<()> {
        if let Some(ticket) = std::mem::replace(&mut self.under_way, next) {
            let written = std::mem::replace(&mut self.written, CompletedWrites::nothing());
            self.written = written.merge(committer.info.volume.wait(ticket)?);
        }
        Ok(())
    }

    /// Waits for all of them.
    pub(super) fn finish(mut self, committer: &Committer) -> Result<CompletedWrites> {
        self.wait(committer, None)?;
        Ok(self.written)
    }
}
