//! Chooses the content of one step: the first remaining extents, within limits.

use std::collections::BTreeSet;
use std::sync::Arc;

use ubtrfs_format::items::{ExtentFlags, ExtentItem};
use ubtrfs_format::{ItemType, Key, Logical, TreeId};

use super::Relocator;
use crate::commit::RelocationPlan;
use crate::committed::Committed;
use crate::error::Result;

/// The most bytes of data in a step. One extent may exceed it.
const MAX_DATA: u64 = 32 << 20;
/// The most extents in a step.
pub(super) const MAX_EXTENTS: usize = 512;
/// The most nodes in a step. One extent may need more.
const MAX_NODES: u64 = 1000;
const MIN_NODES: u64 = 16;
/// A step may take one part in this many of the spare metadata for nodes, since it changes the
/// extent tree, too.
const PART_FOR_NODES: u64 = 8;

/// The extents and nodes that a step has to move.
pub(super) struct Batch {
    /// Data extents: address, length in bytes, and whether there is anything to copy.
    pub(super) data: Vec<(Logical, u64, bool)>,
    /// Nodes, by address and level.
    pub(super) nodes: Vec<(Logical, u8)>,
    /// The number of nodes that move together with these.
    pub(super) moving_nodes: usize,
    /// Upper bound of the items of the extent tree that may change.
    pub(super) edits: u64,
}

impl Batch {
    /// Returns the number of extents to be moved.
    pub(super) fn extents(&self) -> usize {
        self.data.len() + self.nodes.len()
    }
}

/// An extent of a group.
enum Extent {
    Data(Logical, u64),
    Node(Logical, u8),
}

impl Extent {
    fn parse(key: &Key, item: &[u8]) -> Result<Option<Self>> {
        let start = Logical(key.objectid);
        Ok(match key.item_type {
            ItemType::METADATA_ITEM => Some(Self::Node(start, key.offset as u8)),
            ItemType::EXTENT_ITEM => {
                let extent = ExtentItem::parse(key, item)?;
                let level = extent.tree_block.map_or(0, |(_, level)| level);
                let is_node = extent.flags & ExtentFlags::TREE_BLOCK != 0;
                Some(if is_node { Self::Node(start, level) } else { Self::Data(start, key.offset) })
            }
            _ => None,
        })
    }
}

impl Relocator {
    /// Chooses what the next step moves out of a range, at most `most_extents` extents.
    pub(super) fn choose(
        &self,
        committed: &Arc<Committed>,
        (start, end): (Logical, Logical),
        most_extents: usize,
    ) -> Result<Batch> {
        let spare = self.info.space.lock().spare_metadata() / self.info.space.node_size();
        let most_nodes = (spare / PART_FOR_NODES).clamp(MIN_NODES, MAX_NODES) as usize;
        let most_data = self.rate.step(MAX_DATA);
        let mut plan = RelocationPlan::new(&self.info, committed)?;
        let (mut data, mut nodes, mut bytes) = (Vec::new(), Vec::new(), 0);
        let range = Key::new(start.0, ItemType::EXTENT_ITEM, 0)..=Key::new(end.0 - 1, ItemType(u8::MAX), u64::MAX);
        for item in committed.tree(TreeId::EXTENT)?.range(range) {
            let item = item?;
            let is_full = plan.nodes() >= most_nodes || bytes >= most_data || data.len() + nodes.len() >= most_extents;
            match Extent::parse(&item.key, &item)? {
                Some(_) if is_full => break,
                Some(Extent::Data(at, length)) => {
                    plan.add_data(at, length, Logical(0))?;
                    bytes += length;
                    data.push((at, length));
                }
                Some(Extent::Node(at, level)) => {
                    plan.add_node(at, level)?;
                    nodes.push((at, level));
                }
                None => {}
            }
        }
        let with_data: BTreeSet<Logical> = plan.check()?;
        let data = data.into_iter().map(|(at, length)| (at, length, with_data.contains(&at))).collect();
        Ok(Batch { data, nodes, moving_nodes: plan.nodes(), edits: plan.edits() })
    }
}
