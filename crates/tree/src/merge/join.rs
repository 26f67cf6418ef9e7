//! Joining under-full neighbours.

use ubtrfs_format::Internal;

use super::contents::Contents;
use super::merger::{ChildUpdate, Merger, Rewrite};
use crate::block::NodeRef;
use crate::error::Result;

impl Merger<'_> {
    /// Drops empty pieces of one level and joins small ones with a neighbour under the same parent,
    /// `node` at `at`.
    pub(super) fn join(
        &mut self,
        at: &NodeRef,
        node: &Internal<'_>,
        pieces: Vec<ChildUpdate>,
    ) -> Result<Vec<ChildUpdate>> {
        let mut joined: Vec<ChildUpdate> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            match (joined.last_mut(), piece) {
                (_, ChildUpdate::Rewritten(open)) if open.contents.is_empty() => self.release(open.reusable)?,
                (Some(ChildUpdate::Rewritten(left)), ChildUpdate::Rewritten(right))
                    if self.belong_together(left, &right) =>
                {
                    left.append(*right);
                }
                (_, piece) => joined.push(piece),
            }
        }
        let mut index = 0;
        while index < joined.len() {
            let small = matches!(&joined[index], ChildUpdate::Rewritten(open) if self.is_small(open));
            let Some(neighbour) = small.then(|| self.neighbour(at, node, &joined, index)).flatten() else {
                index += 1;
                continue;
            };
            if let ChildUpdate::Kept(slot) = joined[neighbour]
                && let Some(kept) = at.child(node, slot)
            {
                joined[neighbour] = ChildUpdate::Rewritten(Box::new(self.open(&kept)?));
            }
            // The result may still be small, so it is examined again.
            index = neighbour.min(index);
            if let (ChildUpdate::Rewritten(right), Some(ChildUpdate::Rewritten(left))) =
                (joined.remove(index + 1), joined.get_mut(index))
            {
                left.append(*right);
            }
        }
        Ok(joined)
    }

    /// Returns whether two pieces that are written in any case are better written as one.
    fn belong_together(&self, left: &Rewrite, right: &Rewrite) -> bool {
        let (used, capacity) = (left.contents.used() + right.contents.used(), left.contents.capacity(self.node_size));
        self.is_small(left) || self.is_small(right) || used <= capacity * 3 / 4
    }

    /// Returns whether the contents take less than a third of a node, and are not where the tree
    /// grows.
    fn is_small(&self, open: &Rewrite) -> bool {
        !open.tail && open.contents.used() < open.contents.capacity(self.node_size) / 3
    }

    /// Returns the neighbour with which a small piece is joined: preferably one that is written in
    /// any case, or else one of this commit, or else any that no snapshot may share.
    fn neighbour(&self, at: &NodeRef, node: &Internal<'_>, pieces: &[ChildUpdate], index: usize) -> Option<usize> {
        let cost = |place: usize| match pieces.get(place)? {
            ChildUpdate::Rewritten(_) => Some(0),
            ChildUpdate::Kept(slot) => {
                let kept = at.child(node, *slot).filter(|kept| !self.shared.may_share(kept.generation))?;
                Some(if self.dirty.find(&kept).is_some() { 1 } else { 2 })
            }
        };
        let sides = [index.checked_sub(1), Some(index + 1)];
        sides.into_iter().flatten().filter_map(|place| Some((cost(place)?, place))).min().map(|(_, place)| place)
    }

    /// Reads a node that no edit touched, in order to rewrite it.
    fn open(&mut self, at: &NodeRef) -> Result<Rewrite> {
        let block = self.read(at)?;
        let contents = Contents::of(&at.view(&block)?);
        self.shared.enter(at, &block);
        let reusable = self.retire(at, &block)?;
        self.shared.leave(at);
        Ok(Rewrite { contents, reusable, tail: false })
    }
}

impl Rewrite {
    /// Adds the entries of the right neighbour.
    fn append(&mut self, right: Self) {
        self.contents.append(right.contents);
        self.reusable.extend(right.reusable);
        self.tail = right.tail;
    }
}
