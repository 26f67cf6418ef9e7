//! Trees for readers.

use std::ops::Deref;
use std::sync::Arc;

use ubtrfs_format::{Key, Leaf, Node};
use ubtrfs_threads::OnceLock;

use crate::block::{Block, NodeRef, Root};
use crate::cache::NodeCache;
use crate::error::{Error, Result};

/// Access to the nodes of a tree.
pub trait Reader {
    /// Returns the node's bytes. The caller checks that they fit the position.
    fn fetch(&self, at: &NodeRef) -> Result<Block>;

    /// Has nodes read ahead that will be needed soon, if reading takes long.
    fn prefetch(&self, _nodes: impl Iterator<Item = NodeRef>) {}

    /// Returns whether [`Self::prefetch`] does anything.
    fn reads_ahead(&self) -> bool {
        false
    }

    /// Returns whether ranges skip a node that fails with this error, and continue with its
    /// neighbour.
    fn passes_over(&self, _error: &Error) -> bool {
        false
    }
}

impl Reader for Arc<NodeCache> {
    fn fetch(&self, at: &NodeRef) -> Result<Block> {
        NodeCache::fetch(self, at)
    }

    fn prefetch(&self, nodes: impl Iterator<Item = NodeRef>) {
        NodeCache::prefetch(self, nodes);
    }

    fn reads_ahead(&self) -> bool {
        NodeCache::reads_ahead(self)
    }

    fn passes_over(&self, error: &Error) -> bool {
        NodeCache::passes_over(self, error)
    }
}

/// A tree that does not change while it is read.
#[derive(Clone, Debug)]
pub struct Tree<R> {
    reader: R,
    root: Root,
    /// The root node, once this tree or a clone has read it: all threads start there, and would
    /// contend for it in the cache.
    root_block: Arc<OnceLock<Block>>,
}

/// A tree as a commit left it. It is cheap to clone, and valid as long as its nodes' space is not
/// reused.
pub type Snapshot = Tree<Arc<NodeCache>>;

impl Snapshot {
    /// The tree under `root`, whose nodes come from `cache`.
    pub fn new(cache: Arc<NodeCache>, root: Root) -> Self {
        Self::with_reader(cache, root)
    }

    /// Returns the cache that the nodes come from.
    pub fn cache(&self) -> &Arc<NodeCache> {
        &self.reader
    }
}

impl<R: Reader> Tree<R> {
    pub(crate) fn with_reader(reader: R, root: Root) -> Self {
        Self { reader, root, root_block: Arc::default() }
    }

    /// Returns the tree's root.
    pub fn root(&self) -> &Root {
        &self.root
    }

    fn root_block(&self) -> Result<&Block> {
        if let Some(block) = self.root_block.get() {
            return Ok(block);
        }
        let block = self.reader.fetch(&NodeRef::root(&self.root))?;
        Ok(self.root_block.get_or_init(|| block))
    }

    /// Returns the node's bytes. The caller checks that they fit the position.
    pub(crate) fn fetch(&self, at: &NodeRef) -> Result<Block> {
        if *at == NodeRef::root(&self.root) { self.root_block().cloned() } else { self.reader.fetch(at) }
    }

    /// Returns the item with this key.
    pub fn get(&self, key: &Key) -> Result<Option<Item>> {
        let mut at = NodeRef::root(&self.root);
        let mut block = self.root_block()?;
        let mut child;
        loop {
            match at.view(block)? {
                Node::Leaf(leaf) => {
                    let Ok(slot) = leaf.search(key) else { return Ok(None) };
                    return Ok(Item::new(block, &leaf, slot));
                }
                Node::Internal(node) => {
                    let Some(next) = at.child(&node, node.slot_for(key)) else { return Ok(None) };
                    at = next;
                    child = self.reader.fetch(&at)?;
                    block = &child;
                }
            }
        }
    }

    /// Has the leaves read ahead that have these keys, or would have them, if reading takes long.
    pub fn prefetch(&self, keys: impl IntoIterator<Item = Key>) -> Result<()> {
        if !self.reader.reads_ahead() || self.root.level == 0 {
            return Ok(());
        }
        let mut leaves: Vec<NodeRef> = Vec::new();
        for key in keys {
            let is_there = |leaf: &NodeRef| {
                leaf.first_key.is_some_and(|first| first <= key) && leaf.upper.is_none_or(|upper| key < upper)
            };
            if leaves.iter().rev().any(is_there) {
                continue;
            }
            let mut at = NodeRef::root(&self.root);
            while at.level > 0
                && let Some(child) = self.child_for(&at, &key)?
            {
                at = child;
            }
            leaves.push(at);
        }
        self.reader.prefetch(leaves.into_iter());
        Ok(())
    }

    /// Returns the reader of its nodes.
    pub(crate) fn reader(&self) -> &R {
        &self.reader
    }

    /// Returns the nodes from the root to the leaf that has this key, or would have it.
    pub fn path_to(&self, key: &Key) -> Result<Vec<NodeRef>> {
        let mut path = vec![NodeRef::root(&self.root)];
        while let Some(child) = path.last().map_or(Ok(None), |at| self.child_for(at, key))? {
            path.push(child);
        }
        Ok(path)
    }

    /// Returns the child of a node that has a key or would have it, or `None` for a leaf.
    fn child_for(&self, at: &NodeRef, key: &Key) -> Result<Option<NodeRef>> {
        Ok(match at.view(&self.fetch(at)?)? {
            Node::Leaf(_) => None,
            Node::Internal(node) => at.child(&node, node.slot_for(key)),
        })
    }

    /// Returns whether ranges skip a node that fails with this error; see
    /// [`NodeCache::passing_over`].
    pub(crate) fn passes_over(&self, error: &Error) -> bool {
        self.reader.passes_over(error)
    }
}

/// An item of a tree: its key, and its bytes by dereference. It keeps its whole leaf in memory.
#[derive(Clone)]
pub struct Item {
    /// The item's key.
    pub key: Key,
    leaf: Block,
    start: u32,
    end: u32,
}

impl Item {
    pub(crate) fn new(block: &Block, leaf: &Leaf<'_>, slot: usize) -> Option<Self> {
        let (key, data) = leaf.item(slot)?;
        let start = block.offset_of(data);
        Some(Self { key, leaf: block.clone(), start: start as u32, end: (start + data.len()) as u32 })
    }

    /// Returns the leaf that holds the item.
    pub fn leaf(&self) -> &Block {
        &self.leaf
    }
}

impl Deref for Item {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.leaf.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

impl std::fmt::Debug for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Item").field("key", &self.key).field("bytes", &&**self).finish_non_exhaustive()
    }
}
