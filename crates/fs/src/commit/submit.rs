//! Submits the writes of nodes.

use std::sync::atomic::Ordering;

use ubtrfs_format::Logical;
use ubtrfs_tree::Block;
use ubtrfs_volume::{Nodes, Ticket, Write};

use super::owner::Committer;
use crate::error::{AtStep, Result, Step};

/// Submits the writes of new nodes, and puts the nodes into the cache.
pub(super) fn submit(committer: &Committer, nodes: Vec<(Logical, Block)>) -> Result<Ticket<Nodes>> {
    let writes = nodes.iter().map(|(at, block)| Write { at: *at, data: block.share() }).collect();
    let bytes: usize = nodes.iter().map(|(_, block)| block.len()).sum();
    committer.info.counters.commit_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    let ticket = committer.info.volume.writer().submit_nodes(writes).at(Step::WriteTreeBlocks)?;
    for (at, block) in nodes {
        let generation = block.header()?.generation;
        committer.info.cache.insert(at, generation, block);
    }
    Ok(ticket)
}
