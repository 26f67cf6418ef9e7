//! Bulk update: a root and a batch of edits give a new root.

mod changes;
mod contents;
mod join;
mod resolve;
mod unshare;

use std::sync::Arc;

use ubtrfs_format::{
    BACKREF_REV_MIXED, ChildPointer, Generation, Header, Internal, Key, Leaf, Logical, MAX_LEVEL, Node, NodeFlags,
    TreeId,
};

use self::changes::Changes;
use self::contents::{Contents, Items};
use self::resolve::Change;
use crate::{Block, DirtyNodes, EditBatch, Error, NodeCache, NodeRef, Result, Root};

/// Where nodes get their space.
pub trait NodeAllocator {
    /// The address of free space for a node of `owner` at `level`. The space stays the node's until
    /// it is freed.
    fn allocate(&mut self, owner: TreeId, level: u8) -> Result<Logical>;

    /// The tree no longer uses this node; others may.
    fn free(&mut self, node: FreedNode) -> Result<()>;

    /// `tree` is about to replace this node, which other trees may use as well, by a copy: what its
    /// entries lead to gets the references that the two will have. Ancestors come before their
    /// descendants, each node once, before it is freed.
    ///
    /// An allocator of trees without snapshots need not know how: [`Error::Shared`].
    fn unshare(&mut self, tree: TreeId, node: &Block) -> Result<()> {
        let Header { bytenr, generation, .. } =
            node.header().map_err(|problem| Error::Block { tree, bytenr: Logical(0), problem })?;
        Err(Error::Shared { tree, bytenr, generation })
    }

    /// This merge changes none of the leaves that are in `dirty` now. Who can't have them all in
    /// memory may [take]( DirtyNodes::take_leaves) them and submit them; they have to be readable
    /// then, through the cache or from its source.
    fn leaves_are_done(&mut self, dirty: &mut DirtyNodes) -> Result<()> {
        let _ = dirty;
        Ok(())
    }
}

/// A node that its tree no longer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FreedNode {
    /// Its address.
    pub bytenr: Logical,
    /// The tree that used it.
    pub tree: TreeId,
    /// Its generation.
    pub generation: Generation,
    /// Its level.
    pub level: u8,
    /// It was allocated in this commit and never submitted: no superblock and no log has ever
    /// referred to it.
    pub born_in_this_commit: bool,
}

/// Merges `edits` into the tree under `root`, or makes a new tree, and returns the new root.
///
/// Every touched node is written once, into `dirty`. Nodes that no edit touches are not read (but
/// for a neighbour that an under-full node is joined with) and keep their address; so does a leaf
/// whose edits change nothing, and a node that `dirty` held already. New nodes are of `owner` and
/// of the generation of `dirty`. A tree without items is one empty leaf.
///
/// `removed` hears of every item of the tree that a delete or a deleted range removes or a put
/// replaces (also by the same bytes), and of those that a patch changes or removes, with the bytes
/// that the tree held.
///
/// Before a node of a generation up to `last_snapshot` (if that is not 0), or one that a relocation
/// made, is replaced, the allocator is asked to [unshare](NodeAllocator::unshare) it, after all
/// such nodes above it. After any error, the tree under `root` is as it was, but `dirty` and the
/// allocator are not: the commit has to be given up.
#[expect(clippy::too_many_arguments, reason = "a merge has that many sides, and each caller has them apart")]
pub fn merge(
    cache: &Arc<NodeCache>,
    root: Option<Root>,
    owner: TreeId,
    edits: &EditBatch,
    dirty: &mut DirtyNodes,
    allocator: &mut dyn NodeAllocator,
    last_snapshot: Generation,
    removed: &mut dyn FnMut(&Key, &[u8]),
) -> Result<Root> {
    let node_size = dirty.geometry().node_size as usize;
    let shared = unshare::SharedPath::new(last_snapshot);
    let mut merger = Merger { cache, owner, dirty, allocator, shared, removed, node_size };
    let (keys, ranges) = (edits.iter().map(|(key, edit)| (*key, edit)).collect::<Vec<_>>(), ranges_of(edits));
    let changes = Changes { edits: &keys, ranges: &ranges };
    match root {
        None => {
            let leaf = Leaf::default();
            let contents = Contents::changed(&leaf, &merger.resolve(None, &leaf, changes)?, node_size);
            merger.make_root(0, Open { contents, homes: Vec::new(), tail: true })
        }
        Some(root) if edits.is_empty() => Ok(root),
        Some(root) => match merger.update(&NodeRef::root(&root), changes)? {
            None => Ok(root),
            Some(open) => merger.make_root(root.level, open),
        },
    }
}

fn ranges_of(edits: &EditBatch) -> Vec<(Key, Key)> {
    edits.deleted_ranges().map(std::ops::RangeInclusive::into_inner).collect()
}

/// A part of a level after the edits below it have been merged. Small, for most children of a node
/// are only passed on.
enum Piece {
    /// The child in this slot of the parent stays as it is.
    Kept(usize),
    /// Entries that are yet to be written into nodes.
    Open(Box<Open>),
}

/// Entries of one level that will become one or more nodes, or none.
struct Open {
    contents: Contents,
    /// Addresses of this commit's nodes that held the entries: the new nodes take them first.
    homes: Vec<Logical>,
    /// At the right edge of the tree, and entries came only behind those that were there.
    tail: bool,
}

struct Merger<'a> {
    cache: &'a NodeCache,
    owner: TreeId,
    dirty: &'a mut DirtyNodes,
    allocator: &'a mut dyn NodeAllocator,
    shared: unshare::SharedPath,
    removed: &'a mut dyn FnMut(&Key, &[u8]),
    node_size: usize,
}

impl Merger<'_> {
    fn read(&self, at: &NodeRef) -> Result<Block> {
        self.dirty.find(at).map_or_else(|| self.cache.fetch(at), |block| Ok(block.clone()))
    }

    /// Merges `changes` into the node; `None` if it stays as it is.
    fn update(&mut self, at: &NodeRef, changes: Changes<'_>) -> Result<Option<Open>> {
        let block = self.read(at)?;
        let view = at.view(&block)?;
        self.shared.enter(at, &block);
        let piece = match view {
            Node::Leaf(leaf) => self.update_leaf(at, &block, leaf, changes)?,
            Node::Internal(node) => self.update_internal(at, &block, node, changes)?,
        };
        self.shared.leave(at);
        Ok(piece)
    }

    fn update_leaf(
        &mut self,
        at: &NodeRef,
        block: &Block,
        leaf: Leaf<'_>,
        changes: Changes<'_>,
    ) -> Result<Option<Open>> {
        let changes = self.resolve(Some(at.bytenr), &leaf, changes)?;
        if changes.is_empty() {
            return Ok(None);
        }
        let homes = self.retire(at, block)?;
        let contents = Contents::changed(&leaf, &changes, self.node_size);
        let last = leaf.len().wrapping_sub(1);
        let tail = at.upper.is_none() && (leaf.is_empty() || contents.key(last) == leaf.key(last));
        Ok(Some(Open { contents, homes, tail }))
    }

    fn update_internal(
        &mut self,
        at: &NodeRef,
        block: &Block,
        node: Internal<'_>,
        changes: Changes<'_>,
    ) -> Result<Option<Open>> {
        let pieces = self.update_children(at, &node, changes)?;
        if pieces.is_empty() {
            return Ok(None);
        }
        let mut children = Vec::with_capacity(pieces.len() + 1);
        for piece in self.join(at, &node, pieces)? {
            match piece {
                Piece::Kept(slot) => children.extend(node.child(slot)),
                Piece::Open(open) => children.extend(self.write(at.level - 1, *open)?),
            }
        }
        if at.level == 1 {
            self.allocator.leaves_are_done(self.dirty)?;
        }
        // All children may have been rewritten in place.
        if children.iter().copied().eq(node.iter()) {
            return Ok(None);
        }
        let homes = self.retire(at, block)?;
        let last = node.len().wrapping_sub(1);
        let tail = at.upper.is_none() && children.get(last).map(|child| child.key) == node.key(last);
        Ok(Some(Open { contents: Contents::Children(children), homes, tail }))
    }

    /// Merges `changes` into the children of a node: a piece for each, or none at all if all stay
    /// as they are.
    fn update_children(&mut self, at: &NodeRef, node: &Internal<'_>, mut changes: Changes<'_>) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut slot = 0;
        while let Some(first) = changes.first_key() {
            // A range may have begun in a child before.
            slot = slot.max(node.slot_for(&first));
            let Some(child) = at.child(node, slot) else { break };
            let below = changes.take_for(&child);
            if !below.is_empty()
                && let Some(open) = self.update(&child, below)?
            {
                pieces.reserve(node.len() - pieces.len());
                pieces.extend((pieces.len()..slot).map(Piece::Kept));
                pieces.push(Piece::Open(Box::new(open)));
            }
            slot += 1;
        }
        if !pieces.is_empty() {
            pieces.extend((pieces.len()..node.len()).map(Piece::Kept));
        }
        Ok(pieces)
    }

    /// Takes a node out of the tree because its entries change: a node of this commit leaves its
    /// address to its successors, any other is freed, once what its entries lead to has its
    /// references.
    fn retire(&mut self, at: &NodeRef, block: &Block) -> Result<Vec<Logical>> {
        let owner = block.header().map_err(|problem| at.bad(problem))?.owner;
        let born_in_this_commit = self.dirty.find(at).is_some();
        if born_in_this_commit {
            if owner != self.owner {
                return Err(Error::Shared { tree: self.owner, bytenr: at.bytenr, generation: at.generation });
            }
            return Ok(vec![at.bytenr]);
        }
        self.shared.unshare(self.owner, self.allocator)?;
        let (tree, bytenr, generation, level) = (self.owner, at.bytenr, at.generation, at.level);
        self.allocator.free(FreedNode { bytenr, tree, generation, level, born_in_this_commit })?;
        Ok(Vec::new())
    }

    /// Frees addresses of this commit that no node needs any more.
    fn release(&mut self, homes: impl IntoIterator<Item = Logical>) -> Result<()> {
        for bytenr in homes {
            let Some(Ok(header)) = self.dirty.remove(bytenr).map(|block| block.header()) else { continue };
            self.allocator.free(FreedNode {
                bytenr,
                tree: self.owner,
                generation: header.generation,
                level: header.level,
                born_in_this_commit: true,
            })?;
        }
        Ok(())
    }

    /// Writes entries into as many nodes of `level` as they need.
    fn write(&mut self, level: u8, open: Open) -> Result<Vec<ChildPointer>> {
        let generation = self.dirty.generation();
        let Open { mut contents, homes, tail } = open;
        let groups = contents.partition(self.node_size, tail);
        let mut homes = homes.into_iter();
        let mut pointers = Vec::with_capacity(groups.len());
        for group in groups {
            let bytenr = match homes.next() {
                Some(home) => home,
                None => self.allocator.allocate(self.owner, level)?,
            };
            let header = Header {
                fsid: self.dirty.geometry().fsid,
                bytenr,
                flags: NodeFlags::WRITTEN | BACKREF_REV_MIXED,
                chunk_tree_uuid: self.dirty.geometry().chunk_tree_uuid,
                generation,
                owner: self.owner,
                nritems: group.len() as u32,
                level,
            };
            let key = contents.key(group.start).unwrap_or(Key::MIN);
            let block = contents.build(group, header, self.node_size);
            let block = block.map_err(|problem| Error::Block { tree: self.owner, bytenr, problem })?;
            self.dirty.insert(bytenr, block);
            pointers.push(ChildPointer { key, bytenr, generation });
        }
        self.release(homes)?;
        Ok(pointers)
    }

    /// Puts a root on top of the entries of `level`, with as many levels as they need and no more.
    fn make_root(&mut self, mut level: u8, mut open: Open) -> Result<Root> {
        if open.contents.is_empty() && level > 0 {
            // The address was allocated for its level, so the empty leaf gets one of its own.
            self.release(open.homes)?;
            (level, open) = (0, Open { contents: Contents::Items(Items::default()), homes: Vec::new(), tail: true });
        }
        if let Contents::Children(children) = &open.contents
            && let [only] = children[..]
            && self.may_be_root(level - 1, only)?
        {
            self.release(open.homes)?;
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
            open = Open { contents: Contents::Children(children), homes: Vec::new(), tail };
        }
    }

    /// Whether a node is the tree's alone: a root has to be. One that snapshots may use stays below
    /// a root of one child.
    fn may_be_root(&self, level: u8, only: ChildPointer) -> Result<bool> {
        let ChildPointer { bytenr, generation, .. } = only;
        let at = NodeRef::root(&Root { owner: self.owner, bytenr, generation, level });
        Ok(!self.shared.is_shared(&at, &self.read(&at)?))
    }

    /// The only node of its level becomes the root, or the only child at the end of a chain below
    /// it.
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
            let homes = self.retire(&at, &block)?;
            self.release(homes)?;
            let ChildPointer { bytenr, generation, .. } = only;
            root = Root { bytenr, generation, level: root.level - 1, ..root };
        }
    }
}
