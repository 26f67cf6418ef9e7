//! Edits an image in place and corrects the checksums, so that a reader finds the damage itself and
//! not a wrong checksum.
//!
//! This is for tests: a read or a write that fails panics, and so fails the test.

#![allow(clippy::unwrap_used, clippy::missing_panics_doc, reason = "a test fails by it")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use ubtrfs_format::items::{ChunkItem, RootItem, sys_chunks};
use ubtrfs_format::{
    Header, ItemType, Key, LeafBuilder, Logical, Node, Physical, SUPERBLOCK_COPIES, SUPERBLOCK_SIZE, Superblock, TreeId,
};

/// The items of a leaf.
pub type Items = Vec<(Key, Vec<u8>)>;

/// An image of one device, single or DUP, whose chunk tree was sound when it was opened.
#[derive(Debug)]
pub struct Image {
    file: File,
    /// The first superblock, as it was when the image was opened.
    pub superblock: Superblock,
    chunks: Vec<(Logical, ChunkItem)>,
}

impl Image {
    /// Opens an image that is not mounted.
    pub fn open(path: &Path) -> Self {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut bytes = [0; SUPERBLOCK_SIZE];
        file.read_exact_at(&mut bytes, SUPERBLOCK_COPIES[0].0).unwrap();
        let superblock = Superblock::parse(&bytes, SUPERBLOCK_COPIES[0]).unwrap();
        let chunks = sys_chunks(&superblock.sys_chunk_array).unwrap();
        let chunks = chunks.into_iter().map(|(key, chunk)| (Logical(key.offset), chunk)).collect();
        let mut image = Self { file, superblock, chunks };
        let mut found = Vec::new();
        for (key, data) in image.items(TreeId::CHUNK) {
            if key.item_type == ItemType::CHUNK_ITEM {
                found.push((Logical(key.offset), ChunkItem::parse(&data).unwrap()));
            }
        }
        image.chunks = found;
        image
    }

    /// The chunks by their addresses.
    pub fn chunks(&self) -> &[(Logical, ChunkItem)] {
        &self.chunks
    }

    /// Returns the physical addresses of all copies of a logical address.
    pub fn places(&self, at: Logical) -> Vec<Physical> {
        let holds = |(start, chunk): &&(Logical, ChunkItem)| at >= *start && at.0 - start.0 < chunk.length;
        let (start, chunk) = self.chunks.iter().find(holds).unwrap();
        chunk.stripes.iter().map(|stripe| stripe.offset.plus(at.0 - start.0)).collect()
    }

    /// Flips a bit of the byte at a logical address, in the copies with these numbers.
    pub fn flip(&self, at: Logical, copies: &[usize]) {
        let places = self.places(at);
        for copy in copies {
            self.flip_raw(places[*copy]);
        }
    }

    /// Flips a bit of the byte at a logical address, in all copies.
    pub fn flip_all(&self, at: Logical) {
        for place in self.places(at) {
            self.flip_raw(place);
        }
    }

    /// Returns the address of the root of a tree; `LOG` is the log tree of the first subvolume that
    /// has one.
    pub fn root(&self, tree: TreeId) -> Logical {
        match tree {
            TreeId::LOG => RootItem::parse(&self.leaf(self.superblock.log_root)[0].1).unwrap().bytenr,
            TreeId::CHUNK => self.superblock.chunk_root,
            TreeId::ROOT => self.superblock.root,
            _ => {
                let root = self
                    .items(TreeId::ROOT)
                    .into_iter()
                    .find(|(key, _)| key.objectid == tree.0 && key.item_type == ItemType::ROOT_ITEM);
                RootItem::parse(&root.unwrap().1).unwrap().bytenr
            }
        }
    }

    /// Returns the tree block at an address, from its first copy.
    pub fn read_block(&self, at: Logical) -> Vec<u8> {
        let mut block = vec![0; self.superblock.node_size as usize];
        self.file.read_exact_at(&mut block, self.places(at)[0].0).unwrap();
        block
    }

    /// Writes a tree block to all its copies, with the right checksum.
    pub fn write_block(&self, at: Logical, mut block: Vec<u8>) {
        LeafBuilder::seal(&mut block, self.superblock.checksum);
        for place in self.places(at) {
            self.write_raw(place, &block);
        }
    }

    /// Returns the addresses of a tree's leaves, in order.
    pub fn leaves(&self, tree: TreeId) -> Vec<Logical> {
        let mut blocks = vec![self.root(tree)];
        loop {
            let mut next = Vec::new();
            for at in &blocks {
                match Node::view(&self.read_block(*at)).unwrap() {
                    Node::Leaf(_) => return blocks,
                    Node::Internal(node) => next.extend(node.iter().map(|child| child.bytenr)),
                }
            }
            blocks = next;
        }
    }

    /// The items of the leaf at an address.
    pub fn leaf(&self, at: Logical) -> Items {
        match Node::view(&self.read_block(at)).unwrap() {
            Node::Leaf(leaf) => leaf.iter().map(|(key, data)| (key, data.to_vec())).collect(),
            Node::Internal(_) => panic!("{at} is no leaf"),
        }
    }

    /// All items of a tree.
    pub fn items(&self, tree: TreeId) -> Items {
        self.leaves(tree).into_iter().flat_map(|at| self.leaf(at)).collect()
    }

    /// Changes the first leaf of which `change` returns `true`, and panics if there is none.
    pub fn edit_leaf(&self, tree: TreeId, mut change: impl FnMut(&mut Items) -> bool) {
        for at in self.leaves(tree) {
            let mut items = self.leaf(at);
            if !change(&mut items) {
                continue;
            }
            let mut block = self.read_block(at);
            let header = Header::parse(&block).unwrap();
            let mut builder = LeafBuilder::new(&mut block);
            for (key, data) in &items {
                builder.push(*key, data).unwrap();
            }
            builder.finish(header);
            self.write_block(at, block);
            return;
        }
        panic!("nothing to change in tree {tree}");
    }

    /// Changes the first item that `wanted` picks.
    pub fn edit(&self, tree: TreeId, wanted: impl Fn(&Key, &[u8]) -> bool, change: impl Fn(&mut Key, &mut Vec<u8>)) {
        self.edit_leaf(tree, |items| {
            let found = items.iter_mut().find(|(key, data)| wanted(key, data));
            found.map(|(key, data)| change(key, data)).is_some()
        });
    }

    /// Removes the first item that `wanted` picks among those that are not the first of their leaf.
    pub fn remove(&self, tree: TreeId, wanted: impl Fn(&Key, &[u8]) -> bool) {
        self.edit_leaf(tree, |items| {
            let found = items.iter().skip(1).position(|(key, data)| wanted(key, data));
            found.map(|position| items.remove(position + 1)).is_some()
        });
    }

    /// Adds an item to the leaf where it belongs.
    pub fn add(&self, tree: TreeId, key: Key, data: &[u8]) {
        let leaves = self.leaves(tree);
        let mut left = leaves.len();
        self.edit_leaf(tree, |items| {
            left -= 1;
            if left != 0 && items.last().is_some_and(|(last, _)| *last < key) {
                return false;
            }
            let position = items.partition_point(|(other, _)| *other < key);
            items.insert(position, (key, data.to_vec()));
            true
        });
    }

    /// Changes the copies of the superblock with these numbers, and writes each with the right
    /// checksum.
    pub fn edit_superblock(&self, copies: &[usize], change: impl Fn(&mut Superblock)) {
        for copy in copies {
            let at: Physical = SUPERBLOCK_COPIES[*copy];
            let mut superblock = Superblock { bytenr: at, ..self.superblock.clone() };
            change(&mut superblock);
            self.write_raw(at, &superblock.to_bytes().unwrap()[..]);
        }
    }

    /// Flips a bit of the byte at a physical address.
    pub fn flip_raw(&self, place: Physical) {
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, place.0).unwrap();
        self.write_raw(place, &[byte[0] ^ 0x10]);
    }

    /// Overwrites the bytes at a physical address.
    pub fn write_raw(&self, place: Physical, bytes: &[u8]) {
        self.file.write_all_at(bytes, place.0).unwrap();
    }
}
