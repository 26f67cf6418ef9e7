//! The items in which two trees differ, found without reading the nodes that they share.

use std::cmp::Ordering;
use std::ops::RangeInclusive;

use ubtrfs_format::{Generation, Key, Node};

use crate::block::{Block, NodeRef};
use crate::error::Result;
use crate::tree::{Item, Reader, Tree};

/// An item in which two trees differ: one of them lacks it, or its bytes differ.
#[derive(Clone, Debug)]
pub struct Difference {
    /// The item's key.
    pub key: Key,
    /// The item in the old tree.
    pub old: Option<Item>,
    /// The item in the new tree.
    pub new: Option<Item>,
}

impl<R: Reader + Clone> Tree<R> {
    /// Returns the items with keys in `range` in which this tree and a newer one differ, ascending.
    ///
    /// Nodes that both trees have (same address and generation) are neither read nor compared, so
    /// the cost depends on the differences, not on the size of the trees. Memory holds a path in
    /// each tree. Ends after an error.
    pub fn differences(&self, newer: &Self, range: &RangeInclusive<Key>) -> Differences<R> {
        Differences { old: Cursor::new(self.clone(), range), new: Cursor::new(newer.clone(), range) }
    }

    /// Returns the items with keys in `range` of leaves that this generation or a later one wrote,
    /// ascending. Other nodes are not read, except the root. Ends after an error.
    pub fn written_since(&self, generation: Generation, range: &RangeInclusive<Key>) -> WrittenSince<R> {
        WrittenSince { cursor: Cursor::new(self.clone(), range), generation }
    }
}

/// The iterator of [`Tree::differences`].
pub struct Differences<R> {
    old: Cursor<R>,
    new: Cursor<R>,
}

impl<R: Reader> Differences<R> {
    fn advance(&mut self) -> Result<Option<Difference>> {
        loop {
            let (old, new) = match (self.old.place()?, self.new.place()?) {
                (None, None) => return Ok(None),
                (Some(Place::Node(_)), None) => {
                    self.old.enter()?;
                    continue;
                }
                (None, Some(Place::Node(_))) => {
                    self.new.enter()?;
                    continue;
                }
                (Some(Place::Item(key)), None) => return Ok(Some(self.only_old(key))),
                (None, Some(Place::Item(key))) => return Ok(Some(self.only_new(key))),
                (Some(old), Some(new)) => (old, new),
            };
            match (old, new) {
                // Both trees have these items next, so they are equal wherever the nodes are in the
                // trees.
                (Place::Node(old), Place::Node(new)) if old.is_same_node(&new) => {
                    self.old.pass();
                    self.new.pass();
                }
                // The node that begins first can't be in the other tree. Of two that begin at the
                // same key, the higher one may have the other below it.
                (Place::Node(old), Place::Node(new)) => {
                    match old.first_key.cmp(&new.first_key).then(new.level.cmp(&old.level)) {
                        Ordering::Less => self.old.enter()?,
                        Ordering::Greater => self.new.enter()?,
                        Ordering::Equal => {
                            self.old.enter()?;
                            self.new.enter()?;
                        }
                    }
                }
                (Place::Item(key), Place::Node(node)) => {
                    if node.first_key.is_some_and(|first| key < first) {
                        return Ok(Some(self.only_old(key)));
                    }
                    self.new.enter()?;
                }
                (Place::Node(node), Place::Item(key)) => {
                    if node.first_key.is_some_and(|first| key < first) {
                        return Ok(Some(self.only_new(key)));
                    }
                    self.old.enter()?;
                }
                (Place::Item(old), Place::Item(new)) => match old.cmp(&new) {
                    Ordering::Less => return Ok(Some(self.only_old(old))),
                    Ordering::Greater => return Ok(Some(self.only_new(new))),
                    Ordering::Equal => {
                        let difference = Difference { key: old, old: self.old.take(), new: self.new.take() };
                        if difference.old.as_deref() != difference.new.as_deref() {
                            return Ok(Some(difference));
                        }
                    }
                },
            }
        }
    }

    fn only_old(&mut self, key: Key) -> Difference {
        Difference { key, old: self.old.take(), new: None }
    }

    fn only_new(&mut self, key: Key) -> Difference {
        Difference { key, old: None, new: self.new.take() }
    }
}

impl<R: Reader> Iterator for Differences<R> {
    type Item = Result<Difference>;

    fn next(&mut self) -> Option<Result<Difference>> {
        let next = self.advance().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.old.end();
            self.new.end();
        }
        next
    }
}

/// The iterator of [`Tree::written_since`].
pub struct WrittenSince<R> {
    cursor: Cursor<R>,
    generation: Generation,
}

impl<R: Reader> WrittenSince<R> {
    fn advance(&mut self) -> Result<Option<Item>> {
        while let Some(place) = self.cursor.place()? {
            match place {
                Place::Item(_) => return Ok(self.cursor.take()),
                // A node is never older than the nodes below it.
                Place::Node(node) if node.generation < self.generation => self.cursor.pass(),
                Place::Node(_) => self.cursor.enter()?,
            }
        }
        Ok(None)
    }
}

impl<R: Reader> Iterator for WrittenSince<R> {
    type Item = Result<Item>;

    fn next(&mut self) -> Option<Result<Item>> {
        let next = self.advance().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.cursor.end();
        }
        next
    }
}

/// The next node or item in a tree.
enum Place {
    /// A node that has not been read, with everything below it.
    Node(NodeRef),
    /// An item, by its key.
    Item(Key),
}

/// A node on the path to the next node or item.
struct Step {
    at: NodeRef,
    block: Block,
    /// The next child or item.
    slot: usize,
}

/// A place in a tree, before a node or an item. The caller decides for each node whether to read
/// it.
struct Cursor<R> {
    tree: Tree<R>,
    start: Key,
    end: Key,
    /// The root is next.
    is_fresh: bool,
    path: Vec<Step>,
}

impl<R: Reader> Cursor<R> {
    fn new(tree: Tree<R>, range: &RangeInclusive<Key>) -> Self {
        Self { tree, start: *range.start(), end: *range.end(), is_fresh: !range.is_empty(), path: Vec::new() }
    }

    /// Returns the next node or item, if there is one.
    fn place(&mut self) -> Result<Option<Place>> {
        if self.is_fresh {
            return Ok(Some(Place::Node(NodeRef::root(self.tree.root()))));
        }
        while let Some(step) = self.path.last() {
            let next = match step.block.node().map_err(|problem| step.at.bad(problem))? {
                Node::Leaf(leaf) => leaf.key(step.slot).map(Place::Item),
                Node::Internal(node) => step.at.child(&node, step.slot).map(Place::Node),
            };
            let is_beyond = match &next {
                Some(Place::Item(key)) => *key > self.end,
                Some(Place::Node(node)) => node.first_key.is_some_and(|first| first > self.end),
                None => {
                    self.path.pop();
                    continue;
                }
            };
            if is_beyond {
                self.end();
            }
            return Ok(next.filter(|_| !is_beyond));
        }
        Ok(None)
    }

    /// Reads the next node. Then its first child or item is next.
    fn enter(&mut self) -> Result<()> {
        let Some(Place::Node(at)) = self.place()? else { return Ok(()) };
        let read = self.tree.fetch(&at).and_then(|block| {
            let slot = match at.view(&block)? {
                Node::Leaf(leaf) => leaf.search(&self.start).unwrap_or_else(|place| place),
                Node::Internal(node) => node.slot_for(&self.start),
            };
            Ok((block, slot))
        });
        let (block, slot) = match read {
            Ok(read) => read,
            Err(error) if self.tree.passes_over(&error) => {
                self.pass();
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.pass();
        self.path.push(Step { at, block, slot });
        Ok(())
    }

    /// Skips the next node or item.
    fn pass(&mut self) {
        if std::mem::take(&mut self.is_fresh) {
            return;
        }
        if let Some(step) = self.path.last_mut() {
            step.slot += 1;
        }
    }

    /// Returns the next item, and goes on behind it.
    fn take(&mut self) -> Option<Item> {
        let step = self.path.last_mut()?;
        let slot = step.slot;
        step.slot += 1;
        match step.block.node() {
            Ok(Node::Leaf(leaf)) => Item::new(&step.block, &leaf, slot),
            _ => None,
        }
    }

    fn end(&mut self) {
        self.is_fresh = false;
        self.path.clear();
    }
}
