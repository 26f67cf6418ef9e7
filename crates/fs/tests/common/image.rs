//! Finds things in an image, and damages them.

#![allow(dead_code, reason = "each test program uses its part")]

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use ubtrfs_format::items::{ChunkItem, ExtentItem, RootItem};
use ubtrfs_format::{
    HEADER_SIZE, Header, ITEM_HEADER_SIZE, ItemType, Key, LeafBuilder, Logical, Node, Physical, Superblock, TreeId,
};
use ubtrfs_volume::{Exclusive, FileDevice, OpenMode, Volume};

/// An image of one device, single or DUP, whose metadata was sound when it was opened.
pub struct Image {
    file: File,
    superblock: Superblock,
    chunks: Vec<(Logical, ChunkItem)>,
}

impl Image {
    pub fn open(path: &Path) -> Self {
        let device = Arc::new(FileDevice::open(path, OpenMode::ReadOnly, Exclusive::No).unwrap());
        let volume = Volume::open(vec![device], ubtrfs_volume::OpenOptions { read_only: true }).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        Self { file, superblock: volume.superblock(), chunks: volume.chunks() }
    }

    pub fn chunks(&self) -> Vec<(Logical, ChunkItem)> {
        self.chunks.clone()
    }

    /// Where the copies of an address are.
    fn places(&self, at: Logical) -> Vec<u64> {
        let holds = |(start, chunk): &&(Logical, ChunkItem)| at >= *start && at.0 - start.0 < chunk.length;
        let (start, chunk) = self.chunks.iter().find(holds).unwrap();
        chunk.stripes.iter().map(|stripe| stripe.offset.0 + at.0 - start.0).collect()
    }

    fn block(&self, at: Logical) -> Vec<u8> {
        let mut block = vec![0; self.superblock.node_size as usize];
        self.file.read_exact_at(&mut block, self.places(at)[0]).unwrap();
        block
    }

    /// Overwrites bytes.
    pub fn write(&self, at: Physical, bytes: &[u8]) {
        self.file.write_all_at(bytes, at.0).unwrap();
    }

    /// Flips a bit of a byte in some copies.
    pub fn flip(&self, at: Logical, offset: u64, copies: &[usize]) {
        for copy in copies {
            let place = self.places(at)[*copy] + offset;
            let mut byte = [0];
            self.file.read_exact_at(&mut byte, place).unwrap();
            self.write(Physical(place), &[byte[0] ^ 0x10]);
        }
    }

    /// The root of a tree.
    pub fn root(&self, tree: TreeId) -> Logical {
        for leaf in self.leaves_below(self.superblock.root) {
            if let Node::Leaf(leaf) = Node::view(&self.block(leaf)).unwrap() {
                for (key, data) in leaf.iter() {
                    if key.objectid == tree.0 && key.item_type == ItemType::ROOT_ITEM {
                        return RootItem::parse(data).unwrap().bytenr;
                    }
                }
            }
        }
        panic!("no tree {tree}");
    }

    /// The leaves of a tree, in order.
    pub fn leaves(&self, tree: TreeId) -> Vec<Logical> {
        self.leaves_below(self.root(tree))
    }

    fn leaves_below(&self, root: Logical) -> Vec<Logical> {
        match Node::view(&self.block(root)).unwrap() {
            Node::Leaf(_) => vec![root],
            Node::Internal(node) => node.iter().flat_map(|child| self.leaves_below(child.bytenr)).collect(),
        }
    }

    /// The keys of a leaf.
    pub fn keys(&self, leaf: Logical) -> Vec<Key> {
        match Node::view(&self.block(leaf)).unwrap() {
            Node::Leaf(leaf) => leaf.iter().map(|(key, _)| key).collect(),
            Node::Internal(_) => panic!("{leaf} is no leaf"),
        }
    }

    /// The leaf and slot of the last item of a tree that `is_it` is true of, and its key.
    pub fn find(&self, tree: TreeId, is_it: impl Fn(&Key) -> bool) -> (Logical, usize, Key) {
        let hit = |leaf: &Logical| {
            let keys = self.keys(*leaf);
            keys.iter().rposition(&is_it).map(|slot| (*leaf, slot, keys[slot]))
        };
        self.leaves(tree).iter().rev().find_map(hit).unwrap()
    }

    /// Leaf and slot of the item number `skip` of those that `is_it` is true of.
    pub fn nth(&self, tree: TreeId, skip: usize, is_it: impl Fn(&Key) -> bool) -> Option<(Logical, usize)> {
        let places = |leaf: Logical| self.keys(leaf).into_iter().enumerate().map(move |(slot, key)| (leaf, slot, key));
        let found = self.leaves(tree).into_iter().flat_map(places).filter(|(_, _, key)| is_it(key));
        found.map(|(leaf, slot, _)| (leaf, slot)).nth(skip)
    }

    /// An item's bytes.
    pub fn item(&self, leaf: Logical, slot: usize) -> Vec<u8> {
        match Node::view(&self.block(leaf)).unwrap() {
            Node::Leaf(leaf) => leaf.data(slot).unwrap().to_vec(),
            Node::Internal(_) => panic!("{leaf} is no leaf"),
        }
    }

    /// Overwrites bytes of an item in all copies of its leaf, and puts the checksums right.
    pub fn change_item(&self, leaf: Logical, slot: usize, offset: usize, bytes: &[u8]) {
        let block = self.block(leaf);
        let header = HEADER_SIZE + slot * ITEM_HEADER_SIZE;
        let data = u32::from_le_bytes(*block[header + 17..].first_chunk().unwrap()) as usize;
        self.change_leaf(leaf, block, HEADER_SIZE + data + offset, bytes);
    }

    /// Gives an item's key another offset.
    pub fn change_key_offset(&self, leaf: Logical, slot: usize, offset: u64) {
        let at = HEADER_SIZE + slot * ITEM_HEADER_SIZE + 9;
        self.change_leaf(leaf, self.block(leaf), at, &offset.to_le_bytes());
    }

    fn change_leaf(&self, leaf: Logical, mut block: Vec<u8>, at: usize, bytes: &[u8]) {
        assert_eq!(Header::parse(&block).unwrap().level, 0);
        block[at..at + bytes.len()].copy_from_slice(bytes);
        LeafBuilder::seal(&mut block, self.superblock.checksum);
        for place in self.places(leaf) {
            self.write(Physical(place), &block);
        }
    }

    /// The first extent that holds data.
    pub fn data_extent(&self) -> Logical {
        for leaf in self.leaves(TreeId::EXTENT) {
            if let Node::Leaf(leaf) = Node::view(&self.block(leaf)).unwrap() {
                for (key, data) in leaf.iter().filter(|(key, _)| key.item_type == ItemType::EXTENT_ITEM) {
                    let item = ExtentItem::parse(&key, data).unwrap();
                    if item.flags & ubtrfs_format::items::ExtentFlags::DATA != 0 {
                        return Logical(key.objectid);
                    }
                }
            }
        }
        panic!("no data");
    }
}
