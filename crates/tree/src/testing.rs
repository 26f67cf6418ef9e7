//! Trees for tests of other crates.

use std::sync::Arc;

use ubtrfs_format::{
    ChecksumType, Generation, Header, Key, LeafBuilder, Logical, NodeExpectation, NodeFlags, TreeId, Uuid,
};

use crate::block::{Geometry, Root};
use crate::cache::{NodeCache, NodeSource};
use crate::error::BoxError;
use crate::tree::Snapshot;

struct Leaf(Vec<u8>);

impl NodeSource for Leaf {
    fn read_node(&self, _: &NodeExpectation) -> Result<Vec<u8>, BoxError> {
        Ok(self.0.clone())
    }
}

/// Returns a tree in memory of one leaf with these items.
///
/// # Panics
///
/// If they are not ascending, or don't fit a leaf.
pub fn tree_of(items: &[(Key, Vec<u8>)]) -> Snapshot {
    let geometry = Geometry {
        node_size: 16384,
        sector_size: 4096,
        fsid: Uuid::NIL,
        chunk_tree_uuid: Uuid::NIL,
        checksum: ChecksumType::Crc32c,
    };
    let root = Root { owner: TreeId::FS, bytenr: Logical(1 << 20), generation: Generation(7), level: 0 };
    let mut block = vec![0; 16384];
    let mut leaf = LeafBuilder::new(&mut block);
    for (key, data) in items {
        leaf.push(*key, data).unwrap_or_else(|error| panic!("{key}: {error}"));
    }
    leaf.finish(Header {
        fsid: Uuid::NIL,
        bytenr: root.bytenr,
        flags: NodeFlags::WRITTEN,
        chunk_tree_uuid: Uuid::NIL,
        generation: root.generation,
        owner: root.owner,
        nritems: 0,
        level: 0,
    });
    Snapshot::new(Arc::new(NodeCache::new(Arc::new(Leaf(block)), geometry, 1 << 20)), root)
}
