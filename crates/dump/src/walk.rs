//! Visits all tree blocks of a volume, tree by tree.

use ubtrfs_format::items::{FileExtent, FileExtentKind, RootItem};
use ubtrfs_format::{Generation, ItemType, Key, Leaf, Logical, MAX_LEVEL, Node, Superblock, TreeId};
use ubtrfs_volume::ChunkMap;

use crate::chunks::{Expected, Geometry};
use crate::error::Result;
use crate::media::{Block, Devices, read_block};
use crate::seen::Seen;

/// How many damaged blocks are visited beyond as many as there are good ones. What a damaged block
/// or a hostile one refers to may be anything.
const MAX_MORE_BAD: u64 = 1000;

/// Gets the blocks.
pub(crate) trait Visitor {
    /// Gets a block.
    fn block(&mut self, expected: &Expected, block: Block) -> Result<()>;
    /// Gets to know that blocks were passed over since they were visited before.
    fn passed_over(&mut self);
    /// Gets a range of data that belongs to the volume's metadata: a free-space cache.
    fn cache(&mut self, at: Logical, len: u64) -> Result<()>;
}

/// A walk over all trees.
pub(crate) struct Walk<'a> {
    pub(crate) devices: &'a Devices,
    pub(crate) map: &'a ChunkMap,
    pub(crate) geometry: &'a Geometry,
    pub(crate) visitor: &'a mut dyn Visitor,
    seen: Seen,
    good: u64,
    bad: u64,
}

/// A tree to visit, as a root item has it.
struct Tree {
    expected: Expected,
    /// The children before this key were dropped.
    dropped_to: Option<Key>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(
        devices: &'a Devices,
        map: &'a ChunkMap,
        geometry: &'a Geometry,
        visitor: &'a mut dyn Visitor,
    ) -> Self {
        Self { devices, map, geometry, visitor, seen: Seen::new(geometry.sector_size), good: 0, bad: 0 }
    }

    /// Visits the chunk tree, the root tree with all trees that it refers to, and the log.
    pub(crate) fn run(mut self, superblock: &Superblock) -> Result<()> {
        let roots = [
            (TreeId::CHUNK, superblock.chunk_root, superblock.chunk_root_level, Some(superblock.chunk_root_generation)),
            (TreeId::ROOT, superblock.root, superblock.root_level, Some(superblock.generation)),
            // A log has the generation of the commit that would follow.
            (TreeId::LOG, superblock.log_root, superblock.log_root_level, None),
        ];
        for (tree, at, level, generation) in roots.into_iter().filter(|(_, at, _, _)| at.0 != 0) {
            self.tree(&Tree { expected: Expected { at, level, generation, tree }, dropped_to: None }, true)?;
        }
        Ok(())
    }

    fn tree(&mut self, tree: &Tree, has_roots: bool) -> Result<()> {
        self.visitor.passed_over();
        if tree.expected.level < MAX_LEVEL {
            self.block(tree, tree.expected, has_roots)?;
        }
        Ok(())
    }

    fn block(&mut self, tree: &Tree, expected: Expected, has_roots: bool) -> Result<()> {
        if self.bad > self.good + MAX_MORE_BAD {
            return Ok(());
        }
        if !self.seen.insert(expected.at.0) {
            self.visitor.passed_over();
            return Ok(());
        }
        let read = read_block(self.devices, self.map, self.geometry, &expected);
        let Block::Good(block) = read else {
            self.bad += 1;
            return self.visitor.block(&expected, read);
        };
        self.good += 1;
        let next = Self::next_of(tree, &expected, &block, has_roots);
        self.visitor.block(&expected, Block::Good(block))?;
        for child in next.children {
            self.block(tree, child, has_roots)?;
        }
        for (at, len) in next.caches {
            self.cache(at, len)?;
        }
        for tree in next.trees {
            self.tree(&tree, false)?;
        }
        Ok(())
    }

    fn next_of(tree: &Tree, expected: &Expected, block: &[u8], has_roots: bool) -> Next {
        let mut next = Next::default();
        match Node::view(block) {
            Ok(Node::Internal(node)) => {
                let Some(level) = expected.level.checked_sub(1) else { return next };
                let first = tree.dropped_to.as_ref().map_or(0, |key| node.slot_for(key));
                let child = |child: ubtrfs_format::ChildPointer| Expected {
                    at: child.bytenr,
                    level,
                    generation: Some(child.generation),
                    tree: expected.tree,
                };
                next.children = node.iter().skip(first).map(child).collect();
            }
            Ok(Node::Leaf(leaf)) if has_roots => next.roots(&leaf, expected.tree),
            _ => {}
        }
        next
    }

    fn cache(&mut self, at: Logical, len: u64) -> Result<()> {
        let sector = u64::from(self.geometry.sector_size);
        let mut done = 0;
        while done < len && self.map.locate(at.plus(done), sector).is_ok() {
            if self.seen.insert(at.0 + done) {
                self.visitor.cache(at.plus(done), sector)?;
            }
            done += sector;
        }
        Ok(())
    }
}

/// What a block refers to.
#[derive(Default)]
struct Next {
    children: Vec<Expected>,
    trees: Vec<Tree>,
    caches: Vec<(Logical, u64)>,
}

impl Next {
    /// Adds what a leaf of a tree of roots refers to.
    fn roots(&mut self, leaf: &Leaf<'_>, tree: TreeId) {
        for (key, data) in leaf.iter() {
            match key.item_type {
                ItemType::ROOT_ITEM => {
                    let Ok(item) = RootItem::parse(data) else { continue };
                    let dropped_to = Some(item.drop_progress).filter(|key| item.refs == 0 && key.objectid != 0);
                    let expected = Expected {
                        at: item.bytenr,
                        level: item.level,
                        generation: Some(Generation(item.generation.0)),
                        tree: TreeId(key.objectid),
                    };
                    self.trees.push(Tree { expected, dropped_to });
                }
                // Only free-space caches have data in the root tree.
                ItemType::EXTENT_DATA if tree == TreeId::ROOT => {
                    if let Ok(FileExtent {
                        kind: FileExtentKind::Regular { disk_bytenr, disk_num_bytes, prealloc: false, .. },
                        ..
                    }) = FileExtent::parse(data)
                        && disk_bytenr.0 != 0
                        && disk_bytenr.0.checked_add(disk_num_bytes).is_some()
                    {
                        self.caches.push((disk_bytenr, disk_num_bytes));
                    }
                }
                _ => {}
            }
        }
    }
}
