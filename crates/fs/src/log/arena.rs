//! The space of the nodes of one log. A node is reused only when no durable superblock refers to it
//! (invariant 17).

use std::collections::BTreeSet;

use ubtrfs_format::Logical;

/// The space of one log. A write of the log allocates adjacent nodes, so that the device gets one
/// write instead of one for each node. For this the arena is circular and has several times the
/// space that the log needs, as long as the volume has enough.
#[derive(Debug, Default)]
pub(super) struct Arena {
    /// All nodes that were ever allocated for this log.
    pub(super) all: Vec<Logical>,
    /// Nodes to which no durable superblock refers any more.
    spare: BTreeSet<Logical>,
    /// The address after the node that was allocated last.
    next: Logical,
}

impl Arena {
    /// The arena should have this many times the nodes in use, and at least `MIN` nodes.
    const ROUNDS: usize = 4;
    const MIN: usize = 32;

    pub(super) fn take(
        &mut self,
        node_size: u64,
        mut allocate: impl FnMut(Urgency) -> Option<Logical>,
    ) -> Option<Logical> {
        let mut grow = |arena: &mut Self, demand| {
            let node = allocate(demand)?;
            arena.all.push(node);
            Some(node)
        };
        let is_small = self.all.len() < Self::MIN.max(Self::ROUNDS * (self.all.len() - self.spare.len()));
        let onward = self.spare.take(&self.next);
        let grown = || is_small.then(|| grow(self, Urgency::Convenience)).flatten();
        let node = onward.or_else(grown).or_else(|| self.take_spare()).or_else(|| grow(self, Urgency::Necessity))?;
        self.next = Logical(node.0 + node_size);
        Some(node)
    }

    /// Takes the next spare node behind the last allocated one, or else the first spare node.
    pub(super) fn take_spare(&mut self) -> Option<Logical> {
        let node = self.spare.range(self.next..).next().or_else(|| self.spare.first()).copied()?;
        self.spare.take(&node)
    }

    /// Makes nodes available again.
    pub(super) fn reuse(&mut self, nodes: impl IntoIterator<Item = Logical>) {
        for node in nodes {
            let fresh = self.spare.insert(node);
            assert!(fresh, "invariant 17: {node} is free already, and may be a node of the log again");
        }
    }

    /// Makes a node available again, to be used before any other.
    pub(super) fn reuse_first(&mut self, node: Logical) {
        self.spare.insert(node);
        self.next = node;
    }

    /// Returns all nodes.
    pub(super) fn into_nodes(self) -> Vec<Logical> {
        self.all
    }
}

/// How urgently the log needs space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// Without it the log can't be written.
    Necessity,
    /// With it the log's nodes would be less fragmented.
    Convenience,
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: u64 = 16384;

    /// Simulates writes of `width` nodes each that replace the nodes of the write before. Returns
    /// how many contiguous pieces each write consists of.
    fn pieces(width: usize, writes: usize, room: usize) -> Vec<usize> {
        let (mut arena, mut old) = (Arena::default(), Vec::new());
        let allocated = std::cell::Cell::new(0);
        let allocate = |demand| {
            let at = allocated.get();
            let limit = if demand == Urgency::Convenience { room } else { usize::MAX };
            (at < limit).then(|| {
                allocated.set(at + 1);
                Logical(at as u64 * NODE)
            })
        };
        let mut counts = Vec::new();
        for _ in 0..writes {
            let new: Vec<_> = (0..width).map(|_| arena.take(NODE, allocate).unwrap()).collect();
            counts.push(1 + new.windows(2).filter(|pair| pair[1].0 != pair[0].0 + NODE).count());
            arena.reuse(std::mem::replace(&mut old, new));
        }
        assert!(allocated.get() <= Arena::MIN.max((Arena::ROUNDS + 1) * 2 * width), "the log grows without end");
        let mut in_use = old.clone();
        in_use.extend(&arena.spare);
        in_use.sort_unstable();
        let mut all = arena.into_nodes();
        all.sort_unstable();
        assert_eq!(in_use, all, "nodes are lost, or used twice");
        counts
    }

    #[test]
    fn nodes_of_one_write_lie_side_by_side() {
        for width in [1, 3, 4, 17, 60] {
            let pieces = pieces(width, 1000, usize::MAX);
            assert!(pieces.iter().all(|count| *count <= 2), "{width}: {pieces:?}");
            assert!(pieces.iter().filter(|count| **count > 1).count() <= 1000 / 4, "{width}: {pieces:?}");
        }
    }

    #[test]
    fn little_space_is_enough() {
        let pieces = pieces(5, 100, 10);
        assert!(pieces.iter().all(|count| *count <= 2), "{pieces:?}");
    }
}
