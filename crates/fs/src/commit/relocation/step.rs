//! One step of relocation: the extents and nodes that move in one commit.

use std::sync::Arc;

use ubtrfs_file::{MovedExtents, SumMap, sum_runs};
use ubtrfs_format::{Logical, TreeId};
use ubtrfs_volume::{CompletedWrites, Data};

use super::super::owner::Committer;
use super::plan::RelocationPlan;
use crate::committed::Committed;
use crate::error::{Errno, Result};

/// A data extent with its new address.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataTarget {
    pub(crate) from: Logical,
    pub(crate) length: u64,
    pub(crate) to: Logical,
    /// Whether its content has been copied there. Otherwise no file may use it as data.
    pub(crate) is_copied: bool,
}

/// The extents and nodes that move in one commit. Those that do not exist any more by then are left
/// out.
pub(crate) struct RelocationStep {
    pub(crate) data: Vec<DataTarget>,
    /// Nodes, by address and level.
    pub(crate) nodes: Vec<(Logical, u8)>,
    /// Proof that the copies are written.
    pub(crate) written: CompletedWrites<Data>,
    /// The most nodes for which space is reserved. Trees that have grown since, and new snapshots,
    /// may need more: then nothing moves, and the error is `EAGAIN`.
    pub(crate) most_nodes: usize,
}

impl RelocationStep {
    /// Plans the step in this state of the volume. The new places of data extents that are not in
    /// the plan are released.
    pub(in super::super) fn plan(&self, committer: &Committer, committed: &Arc<Committed>) -> Result<RelocationPlan> {
        let planned = self.try_plan(committer, committed);
        for target in &self.data {
            if !planned.as_ref().is_ok_and(|plan| plan.data.contains_key(&target.from)) {
                committer.info.space.release(target.to, target.length);
            }
        }
        planned
    }

    /// Releases the new places of all data.
    pub(in super::super) fn give_up(&self, committer: &Committer) {
        for target in &self.data {
            committer.info.space.release(target.to, target.length);
        }
    }

    fn try_plan(&self, committer: &Committer, committed: &Arc<Committed>) -> Result<RelocationPlan> {
        let mut plan = RelocationPlan::new(&committer.info, committed)?;
        for target in &self.data {
            plan.add_data(target.from, target.length, target.to)?;
        }
        for (at, level) in &self.nodes {
            plan.add_node(*at, *level)?;
        }
        let with_data = plan.check()?;
        let mut copied = self.data.iter().filter(|target| target.is_copied).map(|target| target.from);
        let is_short = self.data.iter().any(|target| !target.is_copied && with_data.contains(&target.from));
        if is_short || plan.nodes() > self.most_nodes {
            return Err(Errno::AGAIN.into());
        }
        plan.sums = Some(plan.sums_of_data(&mut copied)?);
        place_nodes(committer, &mut plan)?;
        Ok(plan)
    }
}

/// Allocates new places for all nodes of a plan, or for none.
fn place_nodes(committer: &Committer, plan: &mut RelocationPlan) -> Result<()> {
    let space = &committer.info.space;
    let mut placed = Vec::with_capacity(plan.nodes.len());
    for node in plan.nodes.values_mut() {
        let Some(to) = space.allocate_node(node.owner == TreeId::CHUNK, false) else {
            for at in placed {
                space.release(at, space.node_size());
            }
            return Err(Errno::NOSPC.into());
        };
        node.to = to;
        placed.push(to);
    }
    Ok(())
}

impl RelocationPlan {
    /// Returns the data extents that move.
    pub(in super::super) fn moved_extents(&self) -> MovedExtents {
        MovedExtents::new(self.data.iter().map(|(from, data)| (*from, data.to)))
    }

    /// Returns the checksums of the data that is copied, by its old addresses and by the new ones.
    /// Preallocated space may have some, too, of earlier data that no file uses.
    fn sums_of_data(&self, copied: &mut dyn Iterator<Item = Logical>) -> Result<SumMap> {
        let superblock = &self.committed.superblock;
        let tree = self.committed.tree(TreeId::CSUM)?;
        let mut sums = SumMap::new(superblock.sector_size, superblock.checksum.size());
        for from in copied {
            let Some(data) = self.data.get(&from) else { continue };
            for (at, run) in sum_runs(&tree, from, data.length, superblock.checksum, superblock.sector_size)? {
                sums.put(at, &run);
                sums.put(data.to.plus(at.0 - from.0), &run);
            }
        }
        Ok(sums)
    }
}
