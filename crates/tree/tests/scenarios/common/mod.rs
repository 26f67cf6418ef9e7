//! A volume in memory: blocks, an allocator that notices every leak and double free, and a tree in
//! it.
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use ubtrfs_format::{
    ChecksumType, Generation, Key, Logical, MAX_LEVEL, Node, NodeExpectation, TreeId, Uuid, leaf_data_size,
    verify_node_checksum,
};
use ubtrfs_tree::{
    BoxError, DirtyNodes, EditBatch, Error, FreedNode, Geometry, NodeAllocator, NodeCache, NodeSource, Root, Snapshot,
    Walk, merge,
};

pub fn geometry(node_size: u32) -> Geometry {
    Geometry {
        node_size,
        sector_size: 4096,
        fsid: Uuid([1; 16]),
        chunk_tree_uuid: Uuid([2; 16]),
        checksum: ChecksumType::Crc32c,
    }
}

/// Blocks by address.
pub struct Disk {
    pub blocks: Mutex<HashMap<Logical, Vec<u8>>>,
    /// Whether checksums must be right; tests that damage blocks switch it off.
    pub checksums: bool,
    pub geometry: Geometry,
}

impl NodeSource for Disk {
    fn read_node(&self, expected: &NodeExpectation) -> Result<Vec<u8>, BoxError> {
        let block = self.blocks.lock().get(&expected.bytenr).cloned().ok_or("no such block")?;
        if self.checksums {
            verify_node_checksum(&block, self.geometry.checksum)?;
        }
        Node::check(&block, expected, self.geometry.sector_size)?;
        Ok(block)
    }
}

/// Allocates addresses and records their owners.
#[derive(Default)]
pub struct Space {
    next: u64,
    step: u64,
    /// Addresses in use by the current tree.
    pub live: HashMap<Logical, (TreeId, u8)>,
    /// Addresses that were freed before they were submitted. They are allocated again first.
    reusable: Vec<Logical>,
    pub allocated: usize,
    pub freed: usize,
    /// If there are more nodes than this, leaves are written before the rest of their commit.
    pub early: Option<(usize, Arc<Disk>)>,
}

impl Space {
    pub fn new(node_size: u32) -> Self {
        Self { next: 1 << 20, step: node_size.into(), ..Self::default() }
    }
}

impl NodeAllocator for Space {
    fn allocate(&mut self, owner: TreeId, level: u8) -> Result<Logical, Error> {
        assert!(level < MAX_LEVEL);
        self.allocated += 1;
        let bytenr = self.reusable.pop().unwrap_or_else(|| {
            self.next += self.step;
            Logical(self.next)
        });
        assert_eq!(self.live.insert(bytenr, (owner, level)), None, "{bytenr} allocated twice");
        Ok(bytenr)
    }

    fn free(&mut self, node: FreedNode) -> Result<(), Error> {
        self.freed += 1;
        assert_eq!(self.live.remove(&node.bytenr), Some((node.tree, node.level)), "{node:?}");
        if node.born_in_this_commit {
            self.reusable.push(node.bytenr);
        }
        Ok(())
    }

    fn leaves_are_done(&mut self, dirty: &mut DirtyNodes) -> Result<(), Error> {
        if let Some((most, disk)) = &self.early
            && dirty.len() > *most
        {
            disk.blocks.lock().extend(dirty.take_leaves().into_iter().map(|(bytenr, block)| (bytenr, block.to_vec())));
        }
        Ok(())
    }
}

/// A tree in a volume in memory.
pub struct Bed {
    pub disk: Arc<Disk>,
    pub cache: Arc<NodeCache>,
    pub space: Space,
    pub geometry: Geometry,
    pub owner: TreeId,
    pub root: Option<Root>,
    pub generation: Generation,
    pub last_snapshot: Generation,
}

impl Bed {
    pub fn new(node_size: u32) -> Self {
        Self::writing_early(node_size, None)
    }

    /// A bed whose commits write leaves early if there are more nodes than `most`.
    pub fn writing_early(node_size: u32, most: Option<usize>) -> Self {
        let geometry = geometry(node_size);
        let disk = Arc::new(Disk { blocks: Mutex::default(), checksums: true, geometry });
        Self {
            cache: Arc::new(NodeCache::new(disk.clone(), geometry, 64 << 20)),
            space: Space { early: most.map(|most| (most, disk.clone())), ..Space::new(node_size) },
            disk,
            geometry,
            owner: TreeId::FS,
            root: None,
            generation: Generation(6),
            last_snapshot: Generation(0),
        }
    }

    /// Merges the batches in order into one commit and writes it. Returns the removed items in
    /// order.
    pub fn commit(&mut self, batches: &[EditBatch]) -> Result<Vec<(Key, Vec<u8>)>, Error> {
        self.generation = self.generation.next();
        let mut dirty = DirtyNodes::new(self.generation, self.geometry);
        let mut removed = Vec::new();
        for batch in batches {
            self.merge(batch, &mut dirty, &mut removed)?;
        }
        self.submit(dirty);
        Ok(removed)
    }

    pub fn merge(
        &mut self,
        batch: &EditBatch,
        dirty: &mut DirtyNodes,
        removed: &mut Vec<(Key, Vec<u8>)>,
    ) -> Result<(), Error> {
        let root = merge(
            &self.cache,
            self.root,
            self.owner,
            batch,
            dirty,
            &mut self.space,
            self.last_snapshot,
            &mut |key, bytes| removed.push((*key, bytes.to_vec())),
        )?;
        self.root = Some(root);
        Ok(())
    }

    pub fn submit(&self, dirty: DirtyNodes) {
        let generation = dirty.generation();
        for (bytenr, block) in dirty.into_sealed() {
            self.disk.blocks.lock().insert(bytenr, block.to_vec());
            self.cache.insert(bytenr, generation, block);
        }
    }

    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self.cache.clone(), self.root.unwrap())
    }

    /// Returns the tree with an empty cache.
    pub fn cold_snapshot(&self) -> Snapshot {
        let cache = NodeCache::new(self.disk.clone(), self.geometry, 64 << 20);
        Snapshot::new(Arc::new(cache), self.root.unwrap())
    }

    /// Checks every node against its parent and the allocator's records. Returns the average fill
    /// of leaves in percent.
    pub fn check(&self) -> usize {
        let (mut leaves, mut used, mut seen) = (0, 0, HashMap::new());
        // The cache is empty, so that the written nodes are checked, not those that the cache was
        // given.
        self.cold_snapshot().walk(&mut |at, block| {
            let block = block.unwrap();
            let header = block.header().unwrap();
            assert_eq!((header.owner, header.level), (self.owner, at.level));
            assert_eq!(seen.insert(at.bytenr, (header.owner, header.level)), None, "two pointers to {}", at.bytenr);
            match block.node().unwrap() {
                Node::Leaf(leaf) => {
                    leaves += 1;
                    used += leaf.used();
                    assert!(!leaf.is_empty() || self.root.unwrap().level == 0);
                }
                Node::Internal(node) => assert!(node.len() > 1 || at.first_key.is_some(), "a root with one child"),
            }
            Walk::Descend
        });
        assert_eq!(seen, self.space.live, "what the tree uses is not what the allocator has given out");
        used * 100 / (leaves * leaf_data_size(self.geometry.node_size as usize))
    }
}

/// Returns all items.
pub fn scan(snapshot: &Snapshot) -> BTreeMap<Key, Vec<u8>> {
    let mut last = None;
    snapshot
        .range(Key::MIN..=Key::MAX)
        .map(|item| {
            let item = item.unwrap();
            assert!(last < Some(item.key), "out of order");
            last = Some(item.key);
            (item.key, item.to_vec())
        })
        .collect()
}
