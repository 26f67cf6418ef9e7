//! Iteration over the items of a tree, in both directions.

use std::ops::RangeInclusive;

use ubtrfs_format::{Key, Node};

use crate::block::{Block, NodeRef};
use crate::error::Result;
use crate::tree::{Item, Reader, Tree};

impl<R: Reader> Tree<R> {
    /// Returns the items with keys in `range`, ascending. Nodes are read when they are reached.
    /// Ends after an error.
    pub fn range(&self, range: RangeInclusive<Key>) -> Range<R>
    where
        R: Clone,
    {
        Range::new(self.clone(), &range)
    }

    /// As [`Self::range`], but if no item has the first key of the range, the last item before it
    /// comes first, since its key may stand for a range that reaches into this one. One search
    /// finds both.
    pub fn range_with_previous(&self, range: RangeInclusive<Key>) -> Range<R>
    where
        R: Clone,
    {
        Range { with_previous: true, ..Range::new(self.clone(), &range) }
    }

    /// Returns the items with keys in `range`, descending. Nodes are read when they are reached.
    /// Ends after an error.
    pub fn range_rev(&self, range: RangeInclusive<Key>) -> RangeRev<R>
    where
        R: Clone,
    {
        RangeRev::new(self.clone(), &range)
    }

    /// Returns the item with the greatest key up to `key`.
    pub fn last_at_or_before(&self, key: &Key) -> Result<Option<Item>>
    where
        R: Clone,
    {
        self.range_rev(Key::MIN..=*key).next().transpose()
    }
}

/// A node on the path from the root to the current item.
#[derive(Clone)]
struct Step {
    at: NodeRef,
    block: Block,
    /// If ascending, the slot of the next child or item; if descending, the slot after it.
    slot: usize,
    /// If ascending, for a node above leaves: the first child that has not been read ahead, and how
    /// many were read ahead the last time.
    ahead: (usize, usize),
}

/// The most children that are read ahead of the one that is needed.
const MAX_AHEAD: usize = 32;

/// The items in ascending order of their keys; the iterator of [`Tree::range`].
#[derive(Clone)]
pub struct Range<R> {
    tree: Tree<R>,
    path: Vec<Step>,
    start: Key,
    end: Key,
    /// The last item before `start` comes first, unless an item has that key.
    with_previous: bool,
    /// The path has not been entered yet.
    fresh: bool,
}

impl<R: Reader> Range<R> {
    fn new(tree: Tree<R>, range: &RangeInclusive<Key>) -> Self {
        let (start, end) = (*range.start(), *range.end());
        Self { tree, path: Vec::new(), start, end, with_previous: false, fresh: start <= end }
    }

    /// Descends to the first child or item of this node that is in the range. (A leaf that may have
    /// the key begins with an item that is not above it, unless it is the first leaf of the tree.
    /// So the item before the key is in the same leaf.)
    fn enter(&mut self, at: NodeRef) -> Result<()> {
        let block = self.tree.fetch(&at)?;
        let slot = match at.view(&block)? {
            Node::Leaf(leaf) => match leaf.search(&self.start) {
                Err(place) if self.with_previous => place.saturating_sub(1),
                Ok(place) | Err(place) => place,
            },
            Node::Internal(node) => node.slot_for(&self.start),
        };
        self.path.push(Step { at, block, slot, ahead: (slot + 1, 0) });
        Ok(())
    }

    /// Has the children read ahead that follow the one at `slot`, twice as many each time: a range
    /// that has been read far will probably be read farther.
    fn read_ahead(tree: &Tree<R>, step: &mut Step, slot: usize, end: &Key) -> Result<()> {
        let (ahead, window) = step.ahead;
        // Half of what was read ahead the last time is still to come.
        if !tree.reader().reads_ahead() || ahead > slot + 1 + window / 2 {
            return Ok(());
        }
        let Node::Internal(node) = step.block.node().map_err(|problem| step.at.bad(problem))? else { return Ok(()) };
        let (first, count) = (ahead.max(slot + 1), (2 * window).clamp(2, MAX_AHEAD));
        let children = (first..first + count).map_while(|slot| step.at.child(&node, slot));
        let children = children.take_while(|child| child.first_key.is_none_or(|first| first <= *end));
        tree.reader().prefetch(children);
        step.ahead = (first + count, count);
        Ok(())
    }

    /// Enters the node. On a damaged volume a failure may be noted instead of returned. A node that
    /// failed is not on the path.
    fn enter_or_pass(&mut self, at: NodeRef) -> Result<()> {
        self.enter(at).or_else(|error| if self.tree.passes_over(&error) { Ok(()) } else { Err(error) })
    }

    fn advance(&mut self) -> Result<Option<Item>> {
        if std::mem::take(&mut self.fresh) {
            self.enter_or_pass(NodeRef::root(self.tree.root()))?;
        }
        while let Some(step) = self.path.last_mut() {
            let slot = step.slot;
            step.slot += 1;
            match step.block.node().map_err(|problem| step.at.bad(problem))? {
                Node::Leaf(leaf) => {
                    if let Some(item) = Item::new(&step.block, &leaf, slot) {
                        return Ok((item.key <= self.end).then_some(item));
                    }
                    self.path.pop();
                }
                Node::Internal(node) => match step.at.child(&node, slot) {
                    Some(child) if child.first_key.is_none_or(|first| first <= self.end) => {
                        if child.level == 0 {
                            Self::read_ahead(&self.tree, step, slot, &self.end)?;
                        }
                        self.enter_or_pass(child)?;
                    }
                    _ => drop(self.path.pop()),
                },
            }
        }
        Ok(None)
    }
}

impl<R: Reader> Iterator for Range<R> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Result<Item>> {
        let next = self.advance().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.path.clear();
        }
        next
    }
}

/// The items in descending order of their keys; the iterator of [`Tree::range_rev`].
#[derive(Clone)]
pub struct RangeRev<R> {
    tree: Tree<R>,
    path: Vec<Step>,
    start: Key,
    end: Key,
    fresh: bool,
}

impl<R: Reader> RangeRev<R> {
    fn new(tree: Tree<R>, range: &RangeInclusive<Key>) -> Self {
        Self { tree, path: Vec::new(), start: *range.start(), end: *range.end(), fresh: range.start() <= range.end() }
    }

    fn enter(&mut self, at: NodeRef) -> Result<()> {
        let block = self.tree.fetch(&at)?;
        let slot = match at.view(&block)? {
            Node::Leaf(leaf) => leaf.search(&self.end).map_or_else(|place| place, |found| found + 1),
            Node::Internal(node) => node.slot_for(&self.end) + 1,
        };
        self.path.push(Step { at, block, slot, ahead: (0, 0) });
        Ok(())
    }

    /// Enters the node. On a damaged volume a failure may be noted instead of returned. A node that
    /// failed is not on the path.
    fn enter_or_pass(&mut self, at: NodeRef) -> Result<()> {
        self.enter(at).or_else(|error| if self.tree.passes_over(&error) { Ok(()) } else { Err(error) })
    }

    fn advance(&mut self) -> Result<Option<Item>> {
        if std::mem::take(&mut self.fresh) {
            self.enter_or_pass(NodeRef::root(self.tree.root()))?;
        }
        while let Some(step) = self.path.last_mut() {
            let Some(slot) = step.slot.checked_sub(1) else {
                self.path.pop();
                continue;
            };
            step.slot = slot;
            match step.block.node().map_err(|problem| step.at.bad(problem))? {
                Node::Leaf(leaf) => {
                    let item = Item::new(&step.block, &leaf, slot);
                    return Ok(item.filter(|item| item.key >= self.start));
                }
                Node::Internal(node) => match step.at.child(&node, slot) {
                    Some(child) if child.upper.is_none_or(|upper| upper > self.start) => self.enter_or_pass(child)?,
                    _ => drop(self.path.pop()),
                },
            }
        }
        Ok(None)
    }
}

impl<R: Reader> Iterator for RangeRev<R> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Result<Item>> {
        let next = self.advance().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.path.clear();
        }
        next
    }
}
