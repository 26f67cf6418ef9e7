//! The entries of nodes that are being rebuilt.

use std::borrow::Cow;
use std::ops::Range;

use ubtrfs_format::{
    ChildPointer, Header, ITEM_HEADER_SIZE, InternalBuilder, KEY_POINTER_SIZE, Key, Leaf, LeafBuilder, Node, Result,
    leaf_data_size,
};

use crate::block::Block;

/// Items of a leaf that are replaced by a new one, or removed.
pub(super) struct Replacement<'a> {
    /// The slots of the old items; an empty range where an item is inserted.
    pub(super) old: Range<usize>,
    /// Key and data of the new item.
    pub(super) new: Option<(Key, Cow<'a, [u8]>)>,
}

/// The entries of a node that is to be written, or of several neighbours: they may be more than a
/// node holds, or fewer.
#[derive(Debug)]
pub(super) enum Contents {
    /// Items that make one leaf.
    Leaf(BuiltLeaf),
    Items(Items),
    Children(Vec<ChildPointer>),
}

/// A leaf that is complete except for its header. It is copied in runs of items from the old leaf,
/// which is much faster than item by item.
#[derive(Debug)]
pub(super) struct BuiltLeaf {
    block: Block,
    /// The bytes that its items take, with their headers.
    used: usize,
}

impl BuiltLeaf {
    /// A leaf with the items of `leaf` after `changes`. Fails if they don't fit.
    fn new(leaf: &Leaf<'_>, changes: &[Replacement<'_>], node_size: usize) -> Result<Self> {
        let mut used = 0;
        let block = Block::filled(node_size, |bytes| {
            let mut builder = LeafBuilder::new(bytes);
            let mut next = 0;
            for Replacement { old, new } in changes {
                builder.push_run(leaf, next..old.start)?;
                if let Some((key, data)) = new {
                    builder.push(*key, data)?;
                }
                next = old.end;
            }
            builder.push_run(leaf, next..leaf.len())?;
            used = leaf_data_size(node_size) - builder.free();
            builder.finish(Header::default());
            Ok(())
        })?;
        Ok(Self { block, used })
    }

    fn view(&self) -> Leaf<'_> {
        match self.block.node() {
            Ok(Node::Leaf(leaf)) => leaf,
            Ok(Node::Internal(_)) | Err(_) => Leaf::default(),
        }
    }
}

/// Items in order of their keys, their data in one buffer.
#[derive(Debug, Default)]
pub(super) struct Items {
    places: Vec<(Key, Range<usize>)>,
    data: Vec<u8>,
}

impl Items {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { places: Vec::new(), data: Vec::with_capacity(bytes) }
    }

    pub(super) fn push(&mut self, key: Key, data: &[u8]) {
        let start = self.data.len();
        self.data.extend_from_slice(data);
        self.places.push((key, start..self.data.len()));
    }

    fn push_run(&mut self, leaf: &Leaf<'_>, slots: Range<usize>) {
        slots.filter_map(|slot| leaf.item(slot)).for_each(|(key, data)| self.push(key, data));
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn key(&self, index: usize) -> Option<Key> {
        self.places.get(index).map(|(key, _)| *key)
    }
}

impl Contents {
    /// The contents with the items of `leaf` after `changes`.
    pub(super) fn changed(leaf: &Leaf<'_>, changes: &[Replacement<'_>], node_size: usize) -> Self {
        if let Ok(built) = BuiltLeaf::new(leaf, changes, node_size) {
            return Self::Leaf(built);
        }
        let mut items = Items::with_capacity(2 * node_size);
        let mut next = 0;
        for Replacement { old, new } in changes {
            items.push_run(leaf, next..old.start);
            if let Some((key, data)) = new {
                items.push(*key, data);
            }
            next = old.end;
        }
        items.push_run(leaf, next..leaf.len());
        Self::Items(items)
    }

    pub(super) fn of(node: &Node<'_>) -> Self {
        match node {
            Node::Leaf(leaf) => {
                let mut items = Items::default();
                items.push_run(leaf, 0..leaf.len());
                Self::Items(items)
            }
            Node::Internal(internal) => Self::Children(internal.iter().collect()),
        }
    }

    /// Returns how many bytes of entries one node of this kind holds.
    pub(super) fn capacity(&self, node_size: usize) -> usize {
        match self {
            Self::Leaf(_) | Self::Items(_) => leaf_data_size(node_size),
            Self::Children(_) => InternalBuilder::capacity(node_size) * KEY_POINTER_SIZE,
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.view().len(),
            Self::Items(items) => items.len(),
            Self::Children(children) => children.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns how many bytes the entries take in nodes.
    pub(super) fn used(&self) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.used,
            Self::Items(items) => items.data.len() + items.len() * ITEM_HEADER_SIZE,
            Self::Children(children) => children.len() * KEY_POINTER_SIZE,
        }
    }

    pub(super) fn key(&self, index: usize) -> Option<Key> {
        match self {
            Self::Leaf(leaf) => leaf.view().key(index),
            Self::Items(items) => items.key(index),
            Self::Children(children) => children.get(index).map(|child| child.key),
        }
    }

    /// Adds the entries of the right neighbour, which is of the same level.
    pub(super) fn append(&mut self, mut right: Self) {
        self.take_apart();
        right.take_apart();
        match (self, right) {
            (Self::Items(left), Self::Items(right)) => {
                let shift = left.data.len();
                left.data.extend_from_slice(&right.data);
                let moved = right.places.into_iter().map(|(key, at)| (key, at.start + shift..at.end + shift));
                left.places.extend(moved);
            }
            (Self::Children(left), Self::Children(right)) => left.extend(right),
            _ => unreachable!("neighbours are of one level"),
        }
    }

    /// Turns a built leaf into single items.
    fn take_apart(&mut self) {
        if let Self::Leaf(built) = self {
            *self = Self::of(&Node::Leaf(built.view()));
        }
    }

    fn weight(&self, index: usize) -> usize {
        match self {
            Self::Leaf(leaf) => leaf.view().data(index).map_or(0, |data| data.len() + ITEM_HEADER_SIZE),
            Self::Items(items) => items.places.get(index).map_or(0, |(_, at)| at.len() + ITEM_HEADER_SIZE),
            Self::Children(_) => KEY_POINTER_SIZE,
        }
    }

    /// Divides the entries among nodes. With `full`, all nodes but the last are filled completely,
    /// as suits entries that keep being appended. Otherwise they get about the same amount. Without
    /// entries there is one empty node.
    pub(super) fn partition(&self, node_size: usize, full: bool) -> Vec<Range<usize>> {
        if let Self::Leaf(_) = self {
            return std::iter::once(0..self.len()).collect();
        }
        let capacity = self.capacity(node_size);
        let mut groups = Vec::with_capacity(1);
        let mut left = self.used();
        let mut start = 0;
        loop {
            let target = if full { capacity } else { left.div_ceil(left.div_ceil(capacity).max(1)) };
            let (mut end, mut size) = (start, 0);
            while end < self.len() {
                let weight = self.weight(end);
                if end > start && (size + weight > capacity || size + weight / 2 > target) {
                    break;
                }
                size += weight;
                end += 1;
            }
            groups.push(start..end);
            left -= size;
            start = end;
            if start == self.len() {
                return groups;
            }
        }
    }

    /// Builds the node with the entries of `group`.
    pub(super) fn build(&mut self, group: Range<usize>, header: Header, node_size: usize) -> Result<Block> {
        match self {
            Self::Leaf(leaf) => {
                header.put(leaf.block.bytes_mut());
                Ok(leaf.block.clone())
            }
            Self::Items(items) => Block::filled(node_size, |bytes| {
                let mut builder = LeafBuilder::new(bytes);
                for (key, place) in &items.places[group] {
                    builder.push(*key, &items.data[place.clone()])?;
                }
                builder.finish(header);
                Ok(())
            }),
            Self::Children(children) => Block::filled(node_size, |bytes| {
                let mut builder = InternalBuilder::new(bytes);
                for child in &children[group] {
                    builder.push(*child)?;
                }
                builder.finish(header);
                Ok(())
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ubtrfs_format::ItemType;

    fn contents(sizes: &[usize]) -> Contents {
        let mut items = Items::default();
        for (index, size) in sizes.iter().enumerate() {
            items.push(Key::new(1, ItemType(1), index as u64), &vec![0; *size]);
        }
        Contents::Items(items)
    }

    #[test]
    fn appended_entries_fill_nodes_and_others_are_halved() {
        let capacity = leaf_data_size(4096);
        let contents = contents(&[75; 41]);
        assert!(contents.used() > capacity);
        assert_eq!(contents.partition(4096, true), [0..39, 39..41]);
        assert_eq!(contents.partition(4096, false), [0..21, 21..41]);
    }

    #[test]
    fn any_sizes_fit_their_nodes() {
        let capacity = leaf_data_size(4096);
        let max = ubtrfs_format::max_item_size(4096);
        for sizes in [vec![max; 5], vec![max, 0, max, 0, 0], vec![0, max, 1, 2000, 2000, 1, max], vec![max / 2 + 1; 7]]
        {
            let contents = contents(&sizes);
            for full in [false, true] {
                let groups = contents.partition(4096, full);
                let mut next = 0;
                for group in groups {
                    assert!(group.start == next && group.end > next);
                    assert!(group.clone().map(|index| contents.weight(index)).sum::<usize>() <= capacity);
                    next = group.end;
                }
                assert_eq!(next, sizes.len());
            }
        }
        let groups = contents(&[]).partition(4096, false);
        assert!(groups.len() == 1 && groups[0].is_empty());
    }
}
