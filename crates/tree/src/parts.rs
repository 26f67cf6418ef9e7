//! Parts of a tree that may be read by several threads at once.

use std::ops::RangeInclusive;

use ubtrfs_format::{Key, Node};

use crate::block::NodeRef;
use crate::error::Result;
use crate::tree::{Reader, Tree};

impl<R: Reader> Tree<R> {
    /// Divides the keys of the tree into at most `count` ranges in ascending order, each with about
    /// as many leaves as the others. Together they have all keys from [`Key::MIN`] to [`Key::MAX`].
    /// A tree with fewer than `min_leaves` leaves is one range. Reads no leaf.
    pub fn parts(&self, count: usize, min_leaves: usize) -> Result<Vec<RangeInclusive<Key>>> {
        let starts = self.starts(min_leaves)?;
        let count = if starts.len() < min_leaves { 1 } else { count.min(starts.len()) };
        let mut ranges = Vec::with_capacity(count);
        let mut start = Key::MIN;
        for part in 1..count {
            let next = starts[part * starts.len() / count];
            if let Some(last) = next.predecessor().filter(|last| *last >= start) {
                ranges.push(start..=last);
                start = next;
            }
        }
        ranges.push(start..=Key::MAX);
        Ok(ranges)
    }

    /// Returns the first keys of all nodes of a level that has at least `wanted` nodes, or of all
    /// leaves if there are fewer.
    fn starts(&self, wanted: usize) -> Result<Vec<Key>> {
        let mut nodes = vec![NodeRef::root(self.root())];
        while nodes.len() < wanted && nodes.iter().all(|node| node.level > 0) {
            let mut below = Vec::new();
            for at in &nodes {
                let block = self.fetch(at)?;
                if let Node::Internal(node) = at.view(&block)? {
                    below.extend((0..).map_while(|slot| at.child(&node, slot)));
                }
            }
            nodes = below;
        }
        Ok(nodes.iter().map(|node| node.first_key.unwrap_or(Key::MIN)).collect())
    }
}
