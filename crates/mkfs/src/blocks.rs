//! Packing the items of a tree into blocks.

use std::ops::Range;

use ubtrfs_format::{
    BACKREF_REV_MIXED, ChecksumType, ChildPointer, Generation, Header, ITEM_HEADER_SIZE, InternalBuilder, Key,
    LeafBuilder, Logical, NodeFlags, Result, TreeId, Uuid, leaf_data_size,
};

/// Items of one tree, ascending.
pub(crate) type Items = Vec<(Key, Vec<u8>)>;

/// The properties that all blocks of a volume have in common.
pub(crate) struct Geometry {
    pub node_size: usize,
    pub checksum: ChecksumType,
    pub fsid: Uuid,
    pub chunk_tree_uuid: Uuid,
    pub generation: Generation,
}

/// A tree and the addresses of its blocks: the leaves in order, then the block above them if there
/// are several.
#[derive(Clone)]
pub(crate) struct PlacedTree {
    pub id: TreeId,
    pub blocks: Vec<Logical>,
}

impl PlacedTree {
    /// Returns the root block's address.
    pub fn root(&self) -> Logical {
        self.blocks.last().copied().unwrap_or_default()
    }

    /// Returns the root block's level.
    pub fn level(&self) -> u8 {
        u8::from(self.blocks.len() > 1)
    }

    /// Returns the first key of each block.
    pub fn first_keys(&self, items: &Items, node_size: usize) -> Vec<(Logical, Key)> {
        let first_of = |range: Range<usize>| items.get(range.start).map(|(key, _)| *key).unwrap_or_default();
        let leaves = leaves(items, node_size).into_iter().map(first_of);
        let mut keys: Vec<_> = self.blocks.iter().copied().zip(leaves).collect();
        if self.level() > 0 {
            keys.push((self.root(), first_of(0..0)));
        }
        keys
    }

    /// Every block's address and level.
    pub fn levels(&self) -> impl Iterator<Item = (Logical, u8)> {
        let root = self.root();
        self.blocks.iter().map(move |block| (*block, if *block == root { self.level() } else { 0 }))
    }
}

/// Divides the items among leaves. An empty tree has one empty leaf.
fn leaves(items: &Items, node_size: usize) -> Vec<Range<usize>> {
    let mut leaves = Vec::new();
    let (mut start, mut free) = (0, leaf_data_size(node_size));
    for (index, (_, data)) in items.iter().enumerate() {
        let need = data.len() + ITEM_HEADER_SIZE;
        if need > free {
            leaves.push(start..index);
            (start, free) = (index, leaf_data_size(node_size));
        }
        free = free.saturating_sub(need);
    }
    leaves.push(start..items.len());
    leaves
}

/// Returns how many blocks the items take: the leaves, and one more above them if there are
/// several.
pub(crate) fn block_count(items: &Items, node_size: usize) -> usize {
    let leaves = leaves(items, node_size).len();
    leaves + usize::from(leaves > 1)
}

/// Returns the bytes of every block of the tree.
pub(crate) fn encode(tree: &PlacedTree, items: &Items, geometry: &Geometry) -> Result<Vec<(Logical, Vec<u8>)>> {
    let header = |bytenr, level| Header {
        fsid: geometry.fsid,
        bytenr,
        flags: NodeFlags::WRITTEN | BACKREF_REV_MIXED,
        chunk_tree_uuid: geometry.chunk_tree_uuid,
        generation: geometry.generation,
        owner: tree.id,
        nritems: 0,
        level,
    };
    let mut encoded = Vec::with_capacity(tree.blocks.len());
    let mut children = Vec::new();
    for (range, bytenr) in leaves(items, geometry.node_size).into_iter().zip(&tree.blocks) {
        let mut block = vec![0; geometry.node_size];
        let mut leaf = LeafBuilder::new(&mut block);
        let key = items.get(range.start).map(|(key, _)| *key).unwrap_or_default();
        children.push(ChildPointer { key, bytenr: *bytenr, generation: geometry.generation });
        for (key, data) in &items[range] {
            leaf.push(*key, data)?;
        }
        leaf.finish(header(*bytenr, 0));
        encoded.push((*bytenr, block));
    }
    if children.len() > 1 {
        let mut block = vec![0; geometry.node_size];
        let mut root = InternalBuilder::new(&mut block);
        for child in children {
            root.push(child)?;
        }
        root.finish(header(tree.root(), tree.level()));
        encoded.push((tree.root(), block));
    }
    for (_, block) in &mut encoded {
        LeafBuilder::seal(block, geometry.checksum);
    }
    Ok(encoded)
}
