//! The root of a tree after a merge: as many levels as its entries need.

use ubtrfs_format::{ChildPointer, MAX_LEVEL, Node};

use super::contents::{Contents, Items};
use super::merger::{Merger, Rewrite};
use crate::block::{NodeRef, Root};
use crate::error::{Error, Result};

impl Merger<'_> {
    /// Makes a root above the entries of `level`, with the fewest levels.
    pub(super) fn make_root(&mut self, mut level: u8, mut open: Rewrite) -> Result<Root> {
        if open.contents.is_empty() && level > 0 {
            // The old address was allocated for its level, so the empty leaf gets its own.
            self.release(open.reusable)?;
            (level, open) =
                (0, Rewrite { contents: Contents::Items(Items::default()), reusable: Vec::new(), tail: true });
        }
        if let Contents::Children(children) = &open.contents
            && let [only] = children[..]
            && self.may_be_root(level - 1, only)?
        {
            self.release(open.reusable)?;
            return self.collapse(level - 1, only);
        }
        loop {
            let tail = open.tail;
            let children = self.write(level, open)?;
            if let [only] = children[..] {
                return Ok(Root { owner: self.owner, bytenr: only.bytenr, generation: only.generation, level });
            }
            level += 1;
            if level >= MAX_LEVEL {
                return Err(Error::TooDeep { tree: self.owner });
            }
            open = Rewrite { contents: Contents::Children(children), reusable: Vec::new(), tail };
        }
    }

    /// Returns whether only this tree uses a node, as is required of a root. A node that snapshots
    /// may use stays below a root with one child.
    fn may_be_root(&self, level: u8, only: ChildPointer) -> Result<bool> {
        let ChildPointer { bytenr, generation, .. } = only;
        let at = NodeRef::root(&Root { owner: self.owner, bytenr, generation, level });
        Ok(!self.shared.is_shared(&at, &self.read(&at)?))
    }

    /// Makes the only node of its level the root, or, if a chain of single children begins there,
    /// the last node of the chain.
    fn collapse(&mut self, level: u8, only: ChildPointer) -> Result<Root> {
        let ChildPointer { bytenr, generation, .. } = only;
        let mut root = Root { owner: self.owner, bytenr, generation, level };
        loop {
            let at = NodeRef::root(&root);
            let block = self.read(&at)?;
            let child = match at.view(&block)? {
                Node::Internal(node) if node.len() == 1 => node.child(0),
                _ => None,
            };
            let Some(only) = child else { return Ok(root) };
            if !self.may_be_root(root.level - 1, only)? {
                return Ok(root);
            }
            let reusable = self.retire(&at, &block)?;
            self.release(reusable)?;
            let ChildPointer { bytenr, generation, .. } = only;
            root = Root { bytenr, generation, level: root.level - 1, ..root };
        }
    }
}
